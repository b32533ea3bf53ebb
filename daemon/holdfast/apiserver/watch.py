"""Follows a watch of the API server, on a lane of its own that can be left behind.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import http.client
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.apiserver.client import ApiServer, Status, decoded, refusal
from holdfast.apiserver.wire import MOST_BYTES, ApiRequest, ApiResponse, Wire, reason, unanswered
from holdfast.errors import ApiServerError, LaneStuckError
from holdfast.model.dra.outcomes import ApiOutcome, api_outcome
from holdfast.runtime.lane import Lane

_SHORTEST, _LONGEST = 300, 600
"""Seconds after which the server ends a watch; drawn, so that nodes do not begin together."""
_GRACE = 30.0
_CONNECT, _BEGIN = 10.0, 30.0
"""Seconds for each wait on the network until the watch has begun, and for all of that."""


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
    asked, wire = _asking(request, version), Wire(server.access, server.clock)
    lane = Lane("api-watch", deadline=_LONGEST + 2 * _GRACE)
    try:
        response = await _answer(server, lane, partial(wire.stream, asked, _CONNECT))
        if isinstance(response, ApiResponse):
            raise _refusal(asked, response)
        begun()
        wire.patience(_LONGEST + _GRACE)
        while (event := await lane.run(partial(_next, response, asked))) is not None:
            yield event
    except LaneStuckError as error:
        raise unanswered(server.access, error) from error
    finally:
        wire.abort()
        lane.close(last=wire.close)  # whoever is cancelled may not get to wait for it


def _asking(request: ApiRequest, version: str) -> ApiRequest:
    seconds = random.randint(_SHORTEST, _LONGEST)  # noqa: S311 - spreads load, guards no secret
    more = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(seconds),
    }
    return replace(request, query={**request.query, **more})


async def _answer(
    server: ApiServer, lane: Lane, ask: Callable[[], http.client.HTTPResponse | ApiResponse]
) -> http.client.HTTPResponse | ApiResponse:
    """Return how the server answers, and have its observer hear of that."""
    try:
        response = await lane.run(ask, deadline=_BEGIN)
    except (ApiServerError, LaneStuckError):
        server.observer.asked_server(ApiOutcome.UNREACHABLE)
        raise
    server.observer.asked_server(api_outcome(response.status))
    return response


def _next(response: http.client.HTTPResponse, request: ApiRequest) -> WatchEvent | None:
    """Return the next event, None at the end of the answer or where it was cut."""
    try:
        line = response.readline(MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ApiServerError(f"cannot watch {request.about}: {reason(error)}") from error
    if not line.endswith(b"\n"):
        return None
    event = decoded(line, WatchEvent)
    if event.type == "ERROR":
        body = bytes(event.object)
        raise _refusal(request, ApiResponse(status=decoded(body, Status).code, body=body))
    return event


def _refusal(request: ApiRequest, answer: ApiResponse) -> ApiServerError:
    failure = refusal(request, answer)
    return TooOldError(str(failure)) if answer.status == HTTPStatus.GONE else failure
