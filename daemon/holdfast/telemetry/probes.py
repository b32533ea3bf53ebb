"""/livez, /readyz and /metrics over HTTP, on a thread that the event loop cannot block.

The port has no password, so no answer names a process, a pod or a path.
"""

import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.errors import SettingsError
from holdfast.runtime.watched import Watched
from holdfast.telemetry.httpserver import SECONDS, HttpServer, Request, Response
from holdfast.telemetry.readyz import Board, as_json, as_text, freshness, public_rows

_JSON = "application/json"
_REUSE = 0.2
"""Seconds for which one rendering of the metrics is reused, because rendering is expensive."""


class ProbeServer:
    """Serves the probes until closed. `/livez` fails only where a restart helps."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        board: Board,
        registry: CollectorRegistry,
        stall: Watched[float],
    ) -> None:
        """Listen on *address* and *port*; raises SettingsError naming the port when it is taken.

        An empty *address* means all addresses of the host. Port 0 means any free port. The loop
        counts as stalled after *stall* seconds without a heartbeat.
        """
        self._board = board
        self._registry = registry
        self._stall = stall
        self._metrics: tuple[float, bytes] | None = None
        self._answers: dict[str, Callable[[Request, str], Response]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics_page,
        }
        try:
            self._server = HttpServer(address, port, self._answer, seconds=SECONDS)
        except OSError as error:
            where = f"port {port}" + (f" of {address}" if address else "")
            raise SettingsError(
                f"cannot serve probes on {where}: {error.strerror}; choose another with http.port, "
                "or 0 for none"
            ) from error

    @property
    def port(self) -> int:
        """Return the port in use."""
        return self._server.port

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _answer(self, request: Request) -> Response:
        try:
            asked = urlsplit(request.target)
        except ValueError:
            return Response(status=HTTPStatus.BAD_REQUEST, body=b"invalid URL\n")
        answer = self._answers.get(asked.path)
        if answer is None:
            known = f"not found; use {', '.join(self._answers)}\n"
            return Response(status=HTTPStatus.NOT_FOUND, body=known.encode())
        return answer(request, asked.query)

    def _livez(self, _request: Request, _query: str) -> Response:
        silent = self._board.silent_for
        if silent > self._stall.value:
            text = f"event loop has not run for {silent:.1f} s\n"
            return Response(status=HTTPStatus.SERVICE_UNAVAILABLE, body=text.encode())
        return Response(body=b"ok\n")

    def _readyz(self, request: Request, query: str) -> Response:
        asked = parse_qs(query)
        found = [*public_rows(self._board.readiness), freshness(self._board, self._stall.value)]
        # As in Kubernetes' own probes. A name that is not there fails nothing: while the daemon
        # starts or stops there is only one check.
        excluded = frozenset(asked.get("exclude", ()))
        unknown = excluded.difference(row["name"] for row in found)
        rows = [row for row in found if row["name"] not in excluded]
        ready = all(row["passes"] for row in rows)
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        # Every other check is listed, so `?verbose` as in Kubernetes' own probes has no effect.
        if "json" in asked.get("output", ()) or _JSON in request.fields.get("accept", ""):
            return Response(status=status, kind=_JSON, body=as_json(rows, unknown).encode())
        return Response(status=status, body=as_text(rows, unknown).encode())

    def _metrics_page(self, _request: Request, _query: str) -> Response:
        now = time.monotonic()
        if self._metrics is None or now - self._metrics[0] > _REUSE:
            self._metrics = (now, generate_latest(self._registry))
        return Response(kind=CONTENT_TYPE_LATEST, body=self._metrics[1])
