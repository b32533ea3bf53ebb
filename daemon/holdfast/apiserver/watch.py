"""Follows a watch of the API server, on a thread of its own that can be left behind.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import asyncio
import contextlib
import http.client
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from http import HTTPStatus

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.apiserver.client import ApiServer, Status, decoded, refusal
from holdfast.apiserver.wire import MOST_BYTES, ApiRequest, ApiResponse, Wire, reason
from holdfast.errors import ApiServerError
from holdfast.model.dra.outcomes import ApiOutcome, api_outcome

_SHORTEST, _LONGEST = 300, 600
"""Seconds after which the server ends a watch; drawn, so that nodes do not begin together."""
_GRACE = 30.0
_MOST_WAITING = 64
"""Events that the thread reads ahead of whoever follows."""
_CONNECT = 10.0


class TooOldError(ApiServerError):
    """The version to watch from is forgotten (410): list again."""


class WatchEvent(Struct, frozen=True, kw_only=True):
    """One event: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``, and its object as JSON."""

    type: str
    object: Raw


async def watch(
    server: ApiServer, request: ApiRequest, version: str, *, begun: Callable[[], None]
) -> AsyncIterator[WatchEvent]:
    """Yield what happens to the objects of *request* after *version*, until *server* ends it.

    *begun* is called once the server has taken the watch. Raise TooOldError when *version* is too
    old, ApiServerError when the watch fails.
    """

    def observe(outcome: ApiOutcome) -> None:
        server.observer.asked_server(outcome)
        if outcome is ApiOutcome.OK:
            begun()

    reader = _Reader(server, _asking(request, version), observe)
    try:
        while (event := await reader.next()) is not None:
            yield event
    finally:
        reader.stop()


def _asking(request: ApiRequest, version: str) -> ApiRequest:
    seconds = random.randint(_SHORTEST, _LONGEST)  # noqa: S311 - spreads load, guards no secret
    more = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(seconds),
    }
    return replace(request, query={**request.query, **more})


class _Reader:
    """The thread, and what it read. `next` and `stop` belong to the event loop."""

    def __init__(
        self, server: ApiServer, request: ApiRequest, observe: Callable[[ApiOutcome], None]
    ) -> None:
        self._observe = observe
        self._wire = Wire(server.access, server.clock)
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_MOST_WAITING)
        self._stopped = False
        threading.Thread(target=self._work, name="api-watch", daemon=True).start()

    async def next(self) -> WatchEvent | None:
        """Return the next event, None at the end of the watch."""
        found = await self._read.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self) -> None:
        """Have the thread end; nobody waits for it."""
        self._stopped = True
        self._wire.abort()
        self._room.release()

    def _work(self) -> None:
        try:
            for event in self._events():
                self._hand(event)
                if self._stopped:
                    return
            self._hand(None)
        except Exception as error:  # noqa: BLE001 - handed to who follows, not hidden
            self._hand(error)
        finally:
            self._wire.close()

    def _hand(self, found: WatchEvent | Exception | None) -> None:
        self._room.acquire()
        self._on_loop(partial(self._read.put_nowait, found))

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed while we were away
            self._loop.call_soon_threadsafe(call)

    def _events(self) -> Iterator[WatchEvent]:
        response = self._begun()
        if isinstance(response, ApiResponse):
            raise self._refusal(response)
        self._wire.patience(_LONGEST + _GRACE)
        while line := self._line(response):
            event = decoded(line, WatchEvent)
            if event.type == "ERROR":
                body = bytes(event.object)
                raise self._refusal(ApiResponse(status=decoded(body, Status).code, body=body))
            yield event

    def _refusal(self, answer: ApiResponse) -> ApiServerError:
        failure = refusal(self._request, answer)
        return TooOldError(str(failure)) if answer.status == HTTPStatus.GONE else failure

    def _begun(self) -> http.client.HTTPResponse | ApiResponse:
        outcome = ApiOutcome.UNREACHABLE
        try:
            response = self._wire.stream(self._request, _CONNECT)
            outcome = api_outcome(response.status)
        finally:
            if not self._stopped:  # else it was we who ended it
                self._on_loop(partial(self._observe, outcome))
        return response

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        """Return the next line, nothing at the end of the answer or where it was cut."""
        try:
            line = response.readline(MOST_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiServerError(f"cannot watch {self._request.about}: {reason(error)}") from error
        return line if line.endswith(b"\n") else b""
