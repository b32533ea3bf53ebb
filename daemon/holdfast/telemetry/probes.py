"""/livez, /readyz and /metrics over HTTP, from threads that the event loop cannot wedge."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.errors import SettingsError

log = structlog.get_logger(__name__)

_CLIENT_PATIENCE = 5.0  # seconds that a client may stay silent before it is left
_MOST_CLIENTS = 32  # at once; each has a thread


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

        An empty *address* is every address of the host. Port 0 is any free one. The loop counts as
        stalled after *stall* seconds without a beat.
        """
        answers = {
            "/livez": lambda: _livez(board, stall),
            "/readyz": lambda: _readyz(board, stall),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)),
        }
        try:
            self._server = _Server(address, port, _handler(answers))
        except OSError as error:
            where = f"port {port}" + (f" of {address}" if address else "")
            raise SettingsError(
                f"cannot serve probes on {where}: {error.strerror}; choose another with http.port, "
                "or 0 for none"
            ) from error
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        self._thread.join(_CLIENT_PATIENCE)
        self._server.server_close()

    def _serve(self) -> None:
        # Not serve_forever, which wakes many times a second to see whether it is to stop.
        while not self._closed:
            self._server.handle_request()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Answer = tuple[HTTPStatus, str, bytes]
_TEXT = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    """Serves a bounded number of clients, on IPv4 and IPv6 where no address says which."""

    daemon_threads = True  # a client that says nothing must not hold the daemon's end
    request_queue_size = 64

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._both = not address and socket.has_dualstack_ipv6()
        self._free = threading.BoundedSemaphore(_MOST_CLIENTS)
        self.address_family = socket.AF_INET6 if self._both or ":" in address else socket.AF_INET
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's own looks the host's name up, which can take seconds on a node without DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in socketserver
        # Others wait in the kernel's queue meanwhile, which costs no memory of ours.
        if self._free.acquire(timeout=_CLIENT_PATIENCE):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        log.debug("probe not answered", client=str(client_address))


def _handler(answers: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    nothing = f"there are {', '.join(answers)}\n".encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_PATIENCE
        server_version, sys_version = "holdfast", ""

        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            status, kind, body = answer() if answer else (HTTPStatus.NOT_FOUND, _TEXT, nothing)
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


def _readyz(board: Board, stall: float) -> Answer:
    readiness = board.readiness
    age = time.monotonic() - readiness.at
    stale = Check(name="checks are fresh", passes=age <= stall, reason=f"{age:.1f} s old")
    checks = (*readiness.checks, stale)
    lines = [
        f"{'ok    ' if check.passes else 'FAILED'} {check.name}"
        + (f": {check.reason}" if check.reason else "")
        for check in checks
    ]
    ready = all(check.passes for check in checks)
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _TEXT, ("\n".join(lines) + "\n").encode()
