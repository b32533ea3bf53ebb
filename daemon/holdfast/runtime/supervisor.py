"""Keeps the daemon's eternal tasks, and measures how long the turns of their loop take."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

import structlog

_WINDOW = 60.0
"""Seconds for which turns are compared before the longest of them becomes the former one."""
log = structlog.get_logger(__name__)


class Stalls:
    """The longest turn of a loop within the last minute or two. Any thread may ask for it.

    A turn is all that the loop does between two waits. It begins when the wait was due to end, so
    that a process which gets no CPU shows too. It is timed where the loop waits anyway: a loop that
    has nothing to do is not woken for it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take the time from *monotonic*, in seconds."""
        self._monotonic = monotonic
        self._began: float | None = None
        self._seen = (monotonic(), 0.0, 0.0)
        """Since when turns are compared, the longest since then, and the longest before."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop whose turns are timed."""
        return asyncio.SelectorEventLoop(TimedSelector(self, self._monotonic))

    def turn_began(self, at: float) -> None:
        """Note that a turn began; only the loop's thread calls this."""
        self._began = at

    def turn_ended(self, at: float) -> None:
        """Note that the turn ended, if one had begun; only the loop's thread calls this."""
        if self._began is None:
            return
        took, self._began = at - self._began, None
        since, longest, former = self._seen
        if at - since >= _WINDOW:
            self._seen = (at, took, longest if at - since < 2 * _WINDOW else 0.0)
        elif took > longest:
            self._seen = (since, took, former)

    def longest(self) -> float:
        """Return the seconds of the longest turn, of the present one those so far."""
        now, began = self._monotonic(), self._began
        since, longest, former = self._seen
        return max(
            0.0 if began is None else now - began,
            longest if now - since < 2 * _WINDOW else 0.0,
            former if now - since < _WINDOW else 0.0,
        )


class TimedSelector(selectors.DefaultSelector):
    """Waits for the loop, and notes when the turns between the waits begin and end."""

    def __init__(self, stalls: Stalls, monotonic: Callable[[], float]) -> None:
        """Tell *stalls* of the turns, in the time of *monotonic*."""
        super().__init__()
        self._stalls = stalls
        self._monotonic = monotonic

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as the selector does, *timeout* seconds at most; raise what it raises."""
        began = self._monotonic()
        self._stalls.turn_ended(began)
        events = super().select(timeout)
        due = None if events or timeout is None else began + max(timeout, 0.0)
        self._stalls.turn_began(self._monotonic() if due is None else due)
        return events


class TaskEndedError(Exception):
    """A task that was to run until it is cancelled returned; that is a bug."""


class Supervisor:
    """Runs named tasks until one fails, or until told to stop.

    A failure is logged at once with its traceback, cancels the others and leaves the `async with`
    block as that same error: recovery is a new process, the path that is tested. Cancelling the
    supervisor's own task stops everything and is no failure.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self._stopping = False
        self._owner: asyncio.Task[object] | None = None
        self._cancelled_owner = False

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the tasks that run, in the order of their start."""
        return tuple(name for name, task in self._tasks.items() if not task.done())

    def start(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Run *work* as the task called *name*, which is not in use."""
        if self._stopping or self._owner is None:
            work.close()
            raise RuntimeError(f"cannot start task {name}: the supervisor is not running")
        if name in self.running:
            work.close()
            raise RuntimeError(f"cannot start task {name}: one of that name runs already")
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._ended)

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        interrupted = False
        while True:
            try:
                if tasks:
                    await asyncio.wait(tasks)
                await asyncio.sleep(0)  # lets the callbacks of tasks that ended before us run
                break
            except asyncio.CancelledError:
                # By our own `_ended`, or told to stop while stopping: either way see it through.
                interrupted = True
        if self._failure is not None:
            if self._owner is not None and self._cancelled_owner:
                self._owner.uncancel()
            raise self._failure
        if interrupted:
            raise asyncio.CancelledError

    def _ended(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        expected = self._stopping
        if not expected:
            del self._tasks[name]
        failure = _failure_of(task, expected=expected)
        if failure is None:
            return
        log.error("task failed", task=name, exc_info=failure)
        if self._failure is not None:
            return
        self._failure = failure
        if not self._stopping and self._owner is not None:
            self._stopping = True
            self._cancelled_owner = True
            self._owner.cancel()


def _failure_of(task: asyncio.Task[None], *, expected: bool) -> BaseException | None:
    if task.cancelled():
        return None if expected else TaskEndedError(f"task {task.get_name()} was cancelled")
    error = task.exception()
    if error is None and not expected:
        return TaskEndedError(
            f"task {task.get_name()} returned, but must run until the daemon stops"
        )
    return error
