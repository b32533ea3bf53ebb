"""Asks the API server: one call after the other on a lane, each with a deadline."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import Struct

from holdfast.apiserver.access import Access
from holdfast.apiserver.wire import Answer, Request, Wire
from holdfast.errors import ApiServerError, LaneStuckError, ObjectGoneError
from holdfast.model.dra.outcomes import ApiOutcome, api_outcome
from holdfast.model.text import printable
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane

T = TypeVar("T")

_FIRST_PAUSE, _LAST_PAUSE = 0.2, 2.0
_MOST_TEXT = 500
"""Characters of the server's own text; kubelet shows ours in an event of at most 1024."""
_BUSY = frozenset(
    {
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class ApiRefusedError(ApiServerError):
    """The API server answered that it will not; `status` is HTTP's, `reason` Kubernetes' own."""

    def __init__(self, text: str, *, status: int, reason: str = "") -> None:
        """Be the error with that *text*."""
        super().__init__(text)
        self.status = status
        self.reason = reason


class ApiObjectGoneError(ApiRefusedError, ObjectGoneError):
    """There is no such object (404)."""


class Status(Struct, frozen=True, kw_only=True):
    """The API server's own words about a call that it refused."""

    message: str = ""
    reason: str = ""
    code: int = 0


class ApiServer:
    """One connection to the API server. Calls wait for each other; each has its own deadline."""

    def __init__(self, access: Access, *, name: str, clock: Clock) -> None:
        """Call the server of *access*; *name* is the lane's."""
        self._wire = Wire(access)
        self._lane = Lane(name, deadline=_LAST_PAUSE)
        self._clock = clock
        self._under_way: Request | None = None
        self.observe: Callable[[ApiOutcome], None] = lambda _outcome: None
        """Hears how each request ended, every one that was tried again included, and each watch."""

    async def ask(self, request: Request, kind: type[T], *, deadline: float) -> T:
        """Return the answer to *request* as a *kind*; within *deadline* seconds.

        A reading call is tried again while the server cannot be reached or is busy, a writing one
        only where the server says that it did not look at it (429). Raise ApiServerError when that
        does not help, ApiRefusedError when the server refuses, ApiObjectGoneError for a 404.
        """
        end = self._clock.monotonic() + deadline
        pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        failure: ApiServerError | None = None
        while True:
            try:
                answer = await self._once(request, end - self._clock.monotonic())
                if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                    return decoded(answer.body, kind)
                failure = refusal(request, answer)
                pause = _pause(request, answer, pauses)
            except LaneStuckError as error:
                # An earlier answer says more than that time ran out on the way to the next one.
                raise failure or ApiServerError(
                    f"cannot ask the API server: it does not answer within {deadline:g} s"
                ) from error
            except ApiServerError as error:
                failure = error
                pause = next(pauses) if request.method == "GET" else None
            if pause is None or self._clock.monotonic() + pause >= end:
                raise failure
            await self._clock.sleep(pause)

    async def close(self) -> None:
        """Cut the call that is under way, and take no more."""
        self._wire.abort()
        with contextlib.suppress(LaneStuckError):
            await self._lane.run(self._wire.close)
        self._lane.close()

    async def _once(self, request: Request, left: float) -> Answer:
        try:
            answer = await self._lane.run(partial(self._exchange, request, left), deadline=left)
        except (LaneStuckError, asyncio.CancelledError) as error:
            # Without this a server that sends a byte now and then would keep the lane.
            if self._under_way is request:
                self._wire.abort()
            if isinstance(error, LaneStuckError):
                self.observe(ApiOutcome.TIMEOUT)
            raise
        except ApiServerError:
            self.observe(ApiOutcome.UNREACHABLE)
            raise
        self.observe(api_outcome(answer.status))
        return answer

    def _exchange(self, request: Request, left: float) -> Answer:
        self._under_way = request
        try:
            return self._wire.exchange(request, left)
        finally:
            self._under_way = None


def decoded(body: bytes, kind: type[T]) -> T:
    """Return *body* as a *kind*; raise ApiServerError where it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ApiServerError(
            f"cannot understand the API server's answer: {printable(str(error), _MOST_TEXT)}"
        ) from error


def refusal(request: Request, answer: Answer) -> ApiRefusedError:
    """Return the error for an *answer* that is no success, with the server's own words."""
    try:
        status = msgspec.json.decode(answer.body, type=Status)
    except msgspec.DecodeError:  # a proxy on the way, with a page of its own
        status = Status()
    words = printable(status.message, _MOST_TEXT) or f"HTTP status {answer.status}"
    text = f"cannot {_VERBS[request.method]} {request.about}: the API server says: {words}"
    kind = ApiObjectGoneError if answer.status == HTTPStatus.NOT_FOUND else ApiRefusedError
    return kind(text, status=answer.status, reason=status.reason)


_VERBS = {"GET": "read", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}


def _pause(request: Request, answer: Answer, pauses: Iterator[float]) -> float | None:
    """Return how long to wait before the same call may succeed, None when it will not."""
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        return next(pauses) if answer.retry_after is None else max(answer.retry_after, _FIRST_PAUSE)
    if request.method == "GET" and answer.status in _BUSY:
        return max(next(pauses), answer.retry_after or 0.0)
    return None
