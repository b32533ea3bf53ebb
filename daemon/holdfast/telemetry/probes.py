"""/livez, /readyz and /metrics over HTTP, from a thread that the event loop cannot wedge."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One readiness check; `reason` says what is wrong, or what was seen."""

    name: str
    passes: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """All checks, as the loop published them at `at` (monotonic seconds)."""

    checks: tuple[Check, ...] = (
        Check(name="start", passes=False, reason="the daemon has not come up yet"),
    )
    at: float = 0.0

    @property
    def ready(self) -> bool:
        """Tell whether every check passes."""
        return all(check.passes for check in self.checks)


class Board:
    """What the loop publishes for the probes to read from their own thread."""

    def __init__(self) -> None:
        """Start with a fresh heartbeat and nothing ready."""
        self._beat = time.monotonic()
        self._readiness = Readiness(at=self._beat)

    def beat(self) -> None:
        """Show that the loop turns."""
        self._beat = time.monotonic()

    @property
    def silent_for(self) -> float:
        """Return for how many seconds the loop has not beaten."""
        return time.monotonic() - self._beat

    @property
    def readiness(self) -> Readiness:
        """Return the latest checks."""
        return self._readiness

    def publish(self, checks: tuple[Check, ...]) -> None:
        """Replace the checks."""
        self._readiness = Readiness(checks=checks, at=time.monotonic())


class ProbeServer:
    """Serves the probes until closed. `/livez` fails only for what a restart mends."""

    def __init__(
        self, address: str, port: int, *, board: Board, registry: CollectorRegistry, stall: float
    ) -> None:
        """Listen on *address* and *port*; raises SettingsError naming the port when it is taken.

        The loop counts as stalled after *stall* seconds without a beat.
        """
        answers = {
            "/livez": lambda: _livez(board, stall),
            "/readyz": lambda: _readyz(board),
            "/metrics": lambda: (
                HTTPStatus.OK,
                CONTENT_TYPE_LATEST,
                generate_latest(registry),
            ),
        }
        server = _Server6 if ":" in address else ThreadingHTTPServer
        try:
            self._server = server((address, port), _handler(answers))
        except OSError as error:
            message = (
                f"cannot serve probes on port {port}: {error.strerror}; choose another with "
                "http.port, or 0 for none"
            )
            raise SettingsError(message) from error
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, name="probes", daemon=True, args=(0.1,)
        ).start()

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Answer = tuple[HTTPStatus, str, bytes]
_TEXT = "text/plain; charset=utf-8"


class _Server6(ThreadingHTTPServer):
    address_family = AF_INET6


def _handler(answers: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            status, kind, body = answer() if answer else (HTTPStatus.NOT_FOUND, _TEXT, b"")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a probe each second is no news."""

    return Handler


def _livez(board: Board, stall: float) -> Answer:
    silent = board.silent_for
    if silent > stall:
        text = f"event loop silent for {silent:.1f} s\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, text.encode()
    return HTTPStatus.OK, _TEXT, b"ok\n"


def _readyz(board: Board) -> Answer:
    readiness = board.readiness
    age = time.monotonic() - readiness.at
    lines = [
        f"{'ok    ' if check.passes else 'FAILED'} {check.name}"
        + (f": {check.reason}" if check.reason else "")
        for check in readiness.checks
    ]
    status = HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _TEXT, ("\n".join([*lines, f"checked {age:.1f} s ago"]) + "\n").encode()
