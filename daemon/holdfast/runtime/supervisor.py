"""Keeps the daemon's eternal tasks: the first that ends, ends them all."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

import structlog

log = structlog.get_logger(__name__)


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
