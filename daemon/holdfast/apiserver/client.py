"""Asks the API server by a few connections: each call on a lane, each with a deadline."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from holdfast.apiserver.wire import Access, ApiRequest, ApiResponse, Wire, unanswered
from holdfast.errors import ApiServerError, LaneStuckError, ObjectGoneError, UnreadableAnswerError
from holdfast.model.dra.outcomes import ApiOutcome, api_outcome
from holdfast.model.text import printable
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane

T = TypeVar("T")

_FIRST_PAUSE, _LAST_PAUSE = 0.2, 2.0
_MOST_TEXT = 500
"""Characters of the server's own text; kubelet shows ours in an event of at most 1024."""
_NOT_FOUND = "NotFound"
_BUSY = frozenset(
    {
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
AT_ONCE = 4
"""Calls at one time. A pod rarely has more claims, and the API server limits each client, too."""


class ApiRefusedError(ApiServerError):
    """The API server answered that it will not; `status` is HTTP's, `reason` Kubernetes' own."""

    def __init__(self, text: str, *, status: int, reason: str = "") -> None:
        """Be the error with that *text*."""
        super().__init__(text)
        self.status = status
        self.reason = reason


class ApiObjectGoneError(ApiRefusedError, ObjectGoneError):
    """There is no such object: 404 in Kubernetes' own words, not in those of a proxy on the way."""


class StatusDetails(Struct, frozen=True, kw_only=True):
    """Which object a refusal is about."""

    name: str = ""


class Status(Struct, frozen=True, kw_only=True):
    """The API server's own words about a call that it refused."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    @property
    def is_gone(self) -> bool:
        """Tell whether there is no such object; of an API that is not served none is named."""
        named = self.details is not None and self.details.name != ""
        return named and self.reason == _NOT_FOUND


class RequestObserver(Protocol):
    """Hears of requests to the API server."""

    def asked_server(self, outcome: ApiOutcome) -> None:
        """Hear how one ended: also each that was tried again, and the start of each watch."""


class ApiServer:
    """One connection to the API server. Calls wait for each other; each has its own deadline."""

    def __init__(
        self, access: Access, *, name: str, clock: Clock, observer: RequestObserver
    ) -> None:
        """Call the server of *access*; *name* is the lane's."""
        self.access = access
        self.clock = clock
        self._wire = Wire(access, clock)
        self._lane = Lane(name, deadline=_LAST_PAUSE)
        self._under_way: ApiRequest | None = None
        self.observer = observer

    async def ask(self, request: ApiRequest, kind: type[T], *, deadline: float) -> T:
        """Return the answer to *request* as a *kind*; within *deadline* seconds.

        A reading call is tried again while the server cannot be reached or is busy, a writing one
        only where the server says that it did not look at it (429). Raise ApiServerError when that
        does not help, ApiRefusedError when the server refuses, ApiObjectGoneError where it says
        that there is no such object. An answer that makes no sense is UnreadableAnswerError at
        once: a tenant can see to it that the next one is no better, and others wait for the
        connection.
        """
        end = self.clock.monotonic() + deadline
        pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        failure: ApiServerError | None = None
        while True:
            try:
                answer = await self._once(request, end - self.clock.monotonic())
            except LaneStuckError as error:
                # An earlier answer says more than that the time for the next one ran out.
                raise failure or unanswered(self.access, error) from error
            except ApiServerError as error:
                if failure is None or not _is_late(error):
                    failure = error
                pause = next(pauses) if request.method == "GET" else None
            else:
                if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                    return decoded(answer.body, kind)
                failure = refusal(request, answer)
                pause = _pause(request, answer, pauses)
            if pause is None or self.clock.monotonic() + pause >= end:
                raise failure
            await self.clock.sleep(pause)

    async def close(self) -> None:
        """Cut the call that is under way, and take no more."""
        self._wire.abort()
        with contextlib.suppress(LaneStuckError):
            await self._lane.run(self._wire.close)
        self._lane.close()

    async def _once(self, request: ApiRequest, left: float) -> ApiResponse:
        try:
            answer = await self._lane.run(partial(self._exchange, request, left), deadline=left)
        except (LaneStuckError, asyncio.CancelledError) as error:
            # Without this a server that sends a byte now and then would keep the lane.
            if self._under_way is request:
                self._wire.abort()
            if isinstance(error, LaneStuckError):
                self.observer.asked_server(ApiOutcome.TIMEOUT)
            raise
        except ApiServerError as error:
            late = _is_late(error)
            self.observer.asked_server(ApiOutcome.TIMEOUT if late else ApiOutcome.UNREACHABLE)
            raise
        self.observer.asked_server(api_outcome(answer.status))
        return answer

    def _exchange(self, request: ApiRequest, left: float) -> ApiResponse:
        self._under_way = request
        try:
            return self._wire.exchange(request, left)
        finally:
            self._under_way = None


def _is_late(error: ApiServerError) -> bool:
    """Tell whether the connection waited in vain: it may notice before the lane does."""
    return isinstance(error.__cause__, TimeoutError)


def decoded(body: bytes, kind: type[T]) -> T:
    """Return *body* as a *kind*; raise UnreadableAnswerError where it is none.

    Any object may have what a tenant wrote, which the API server lets be nested ten times as deep
    as the decoder can read. Text that is no UTF-8 may come of a proxy on the way.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableAnswerError(
            f"cannot understand the API server's answer: {printable(str(error), _MOST_TEXT)}"
        ) from error


def understood(request: ApiRequest, answer: ApiResponse, kind: type[T]) -> T:
    """Return *answer* as a *kind*; raise ApiRefusedError where it is no success."""
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise refusal(request, answer)
    return decoded(answer.body, kind)


def refusal(request: ApiRequest, answer: ApiResponse) -> ApiRefusedError:
    """Return the error for an *answer* that is no success, with the server's own words."""
    try:
        status = decoded(answer.body, Status)
    except UnreadableAnswerError:  # a proxy on the way, with a page of its own
        status = Status()
    words = printable(status.message, _MOST_TEXT) or f"HTTP status {answer.status}"
    text = f"cannot {_VERBS[request.method]} {request.about}: the API server says: {words}"
    gone = answer.status == HTTPStatus.NOT_FOUND and status.is_gone
    kind = ApiObjectGoneError if gone else ApiRefusedError
    return kind(text, status=answer.status, reason=status.reason)


_VERBS = {"GET": "read", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}


def _pause(request: ApiRequest, answer: ApiResponse, pauses: Iterator[float]) -> float | None:
    """Return how long to wait before the same call may succeed, None when it will not."""
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        return next(pauses) if answer.retry_after is None else max(answer.retry_after, _FIRST_PAUSE)
    if request.method == "GET" and answer.status in _BUSY:
        return max(next(pauses), answer.retry_after or 0.0)
    return None


@dataclass(kw_only=True, eq=False)
class ApiServers:
    """Connections that are opened when one more is needed, up to some; each has a lane.

    They are to the server of `access`, by `at_once` lanes, which have `name` and a number.
    """

    access: Access
    name: str
    clock: Clock
    observer: RequestObserver
    at_once: int

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.at_once)
        self._all: list[ApiServer] = []
        self._idle: deque[ApiServer] = deque()

    async def ask(self, request: ApiRequest, kind: type[T], *, deadline: float) -> T:
        """Return the answer to *request*, as `ApiServer.ask` does.

        *deadline* is from the moment on at which a connection is free for it.
        """
        async with self._turns:
            server = self._idle.pop() if self._idle else self._another()
            try:
                answer = await server.ask(request, kind, deadline=deadline)
            except BaseException:
                self._idle.appendleft(server)  # its thread may still be in the call
                raise
            self._idle.append(server)
            return answer

    async def close(self) -> None:
        """Cut the calls that are under way, and take no more."""
        await asyncio.gather(*(each.close() for each in self._all))

    def _another(self) -> ApiServer:
        made = ApiServer(
            self.access,
            name=f"{self.name} {len(self._all)}",
            clock=self.clock,
            observer=self.observer,
        )
        self._all.append(made)
        return made
