"""A named thread for calls that can block, with a deadline for each."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import LaneStuckError
from holdfast.runtime.watched import Watched

T = TypeVar("T")


class Lane:
    """Runs calls in order on one daemon thread, but for those that go ahead.

    A ThreadPoolExecutor will not do: the interpreter joins its threads at exit, so one driver call
    that never returns would keep the pod Terminating until it is killed.

    A call that has started cannot be recalled: one with an effect checks its fence first.
    """

    def __init__(self, name: str, *, deadline: float | Watched[float]) -> None:
        self.name = name
        self._deadline = deadline if isinstance(deadline, Watched) else Watched(deadline)
        self._waiting: deque[_Call[Any]] = deque()
        """The calls in the queue, without those that were given up: a lane can hang for weeks."""
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """Wakes the thread: True for calls that wait, False after the last of them."""
        self._closed = False
        self._last: Callable[[], object] | None = None
        self._current: _Call[Any] | None = None
        self.latency = 0.0
        """How long the last finished call took, in seconds. May be read from any thread."""
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._thread.start()

    @property
    def deadline(self) -> float:
        """How long a call may take that begins now, in seconds."""
        return self._deadline.value

    @property
    def stuck_since(self) -> float | None:
        """When the call on the lane passed its deadline (time.monotonic), or None.

        May be read from any thread. It goes back to None when the call returns after all.
        """
        current = self._current
        if current is None:
            return None
        return current.due if time.monotonic() >= current.due else None

    async def run(
        self,
        call: Callable[[], T],
        *,
        deadline: float | None = None,
        after: Callable[[T], None] | None = None,
        ahead: bool = False,
    ) -> T:
        """Return what *call* returns, or raise what it raises.

        *deadline* (seconds, the lane's own when None) counts from now, the time in the queue
        included. Raise LaneStuckError when it passes; a call still in the queue then never runs.
        *after* is called on the loop with what *call* returned, before anybody has the answer, and
        also where the caller has given up by then. *ahead*: what takes no time goes before all that
        wait.
        """
        if self._closed:
            raise LaneStuckError(f"cannot use lane {self.name}: it is closed")
        patience = self.deadline if deadline is None else deadline
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = _Call(call, loop, time.monotonic() + patience, after, answer)
        if ahead:
            self._waiting.appendleft(task)
        else:
            self._waiting.append(task)
        if self._wakes.empty():
            self._wakes.put(True)
        # Cheaper than asyncio.timeout, which would cancel the caller to wake it.
        timer = loop.call_later(patience, self._give_up, task, patience)
        try:
            return await answer
        finally:
            timer.cancel()
            task.abandoned = True
            with contextlib.suppress(ValueError):  # its turn has come
                self._waiting.remove(task)

    def close(self, *, patience: float = 0.0, last: Callable[[], object] | None = None) -> None:
        """Take no more calls and end the thread after those already queued, and after *last*.

        Wait at most *patience* seconds for it: a stuck call is left behind.
        """
        if not self._closed:
            self._closed, self._last = True, last
            self._wakes.put(False)
        if patience > 0:
            self._thread.join(patience)

    def _give_up(self, task: "_Call[T]", patience: float) -> None:
        message = f"cannot wait for lane {self.name}: no answer within {round(patience, 2):g} s"
        _fail(task, LaneStuckError(message))

    def _work(self) -> None:
        while self._wakes.get():
            while (task := self._next()) is not None:
                self._carry_out(task)
        if self._last is not None:
            self._last()

    def _next(self) -> "_Call[Any] | None":
        try:
            return self._waiting.popleft()
        except IndexError:  # nobody waits any more
            return None

    def _carry_out(self, task: "_Call[Any]") -> None:
        if task.abandoned:  # the caller gave up at the moment at which its turn came
            return
        started = time.monotonic()
        self._current = task
        try:
            answer = task.call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, not hidden
            act = partial(_fail, task, error)
        else:
            act = partial(_succeed, task, answer)
        self.latency = time.monotonic() - started
        self._current = None
        with contextlib.suppress(RuntimeError):  # the loop closed while we were away
            # Once, at the very end: the loop takes the interpreter as soon as it is woken, and this
            # thread would have to wait for whatever it does then.
            task.loop.call_soon_threadsafe(act)


class Lanes(Protocol):
    """Opens lanes, so that it is known which calls hang."""

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        """Return a new lane, of which every call may take *deadline* seconds."""


@dataclass(slots=True, eq=False, repr=False)  # `remove` writes what it does not find: here a book
class _Call(Generic[T]):
    call: Callable[[], T]
    loop: asyncio.AbstractEventLoop
    due: float
    after: Callable[[T], None] | None
    answer: asyncio.Future[T]
    abandoned: bool = False


def _succeed(task: _Call[T], answer: T) -> None:
    # The answer first: whoever waits for it goes on before those who follow what `after` publishes.
    if not task.answer.done():
        task.answer.set_result(answer)
    if task.after is not None:
        task.after(answer)


def _fail(task: _Call[T], error: BaseException) -> None:
    if not task.answer.done():
        task.answer.set_exception(_as_result(error))


def _as_result(error: BaseException) -> BaseException:
    # A future refuses StopIteration, and SystemExit in a lane must not pass for a clean stop.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"a call on a lane raised {error!r}")
    wrapped.__cause__ = error
    return wrapped
