"""/livez, /readyz and /metrics over HTTP, from threads that the event loop cannot wedge."""

import contextlib
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.errors import SettingsError
from holdfast.telemetry.board import Board
from holdfast.telemetry.readyz import as_json, as_text, check_rows, freshness

log = structlog.get_logger(__name__)

_CLIENT_PATIENCE = 5.0  # seconds that a client may stay silent before it is left
_MOST_CLIENTS = 32  # at once; each has a thread


class ProbeServer:
    """Serves the probes until closed. `/livez` fails only for what a restart mends."""

    def __init__(
        self, address: str, port: int, *, board: Board, registry: CollectorRegistry, stall: float
    ) -> None:
        """Listen on *address* and *port*; raises SettingsError naming the port when it is taken.

        An empty *address* is every address of the host. Port 0 is any free one. The loop counts as
        stalled after *stall* seconds without a beat.
        """
        answers: dict[str, Callable[[bool], Answer]] = {
            "/livez": lambda _json: _livez(board, stall),
            "/readyz": lambda json: _readyz(board, stall, json=json),
            "/metrics": lambda _json: (
                HTTPStatus.OK,
                CONTENT_TYPE_LATEST,
                generate_latest(registry),
            ),
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
_JSON = "application/json"


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


def _handler(answers: dict[str, Callable[[bool], Answer]]) -> type[BaseHTTPRequestHandler]:
    nothing = f"there are {', '.join(answers)}\n".encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_PATIENCE
        server_version, sys_version = "holdfast", ""

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            answer = answers.get(asked.path)
            # Checks are told in full always, so `?verbose` of Kubernetes' own probes needs nothing.
            json = "json" in parse_qs(asked.query).get("output", ()) or (
                _JSON in self.headers.get("Accept", "")
            )
            status, kind, body = answer(json) if answer else (HTTPStatus.NOT_FOUND, _TEXT, nothing)
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


def _readyz(board: Board, stall: float, *, json: bool) -> Answer:
    readiness = board.readiness
    rows = [*check_rows(readiness), freshness(readiness, stall)]
    ready = all(row["passes"] for row in rows)
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    if json:
        return status, _JSON, as_json(rows).encode()
    return status, _TEXT, as_text(rows).encode()
