"""The first eternal task that ends, ends them all, and the reason is not lost."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from holdfast.runtime.supervisor import Supervisor, TaskEndedError
from waiting import until


class BrokenError(Exception):
    """What a task fails of here."""


async def _forever(on_stop: Callable[[], None] = lambda: None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        on_stop()


async def _slow_to_end(may_end: asyncio.Event, seen: list[str]) -> None:
    seen.append("runs")
    try:
        await asyncio.Event().wait()
    finally:
        seen.append("ends")
        await may_end.wait()
        seen.append("over")


async def _fail() -> None:
    await asyncio.sleep(0)
    raise BrokenError("no such thing")


async def test_leaving_the_block_stops_every_task() -> None:
    stopped: list[str] = []
    async with Supervisor() as supervisor:
        supervisor.start("a", _forever(lambda: stopped.append("a")))
        supervisor.start("b", _forever(lambda: stopped.append("b")))
        await asyncio.sleep(0)
        assert supervisor.running == ("a", "b")

    assert sorted(stopped) == ["a", "b"]


async def test_a_failure_is_logged_and_ends_the_group() -> None:
    stopped: list[str] = []

    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("watcher", _forever(lambda: stopped.append("watcher")))
            supervisor.start("scanner", _fail())
            await _forever()

    with capture_logs() as logs, pytest.raises(BrokenError, match="no such thing"):
        await live()

    assert stopped == ["watcher"]
    assert [(entry["event"], entry["task"]) for entry in logs] == [("task failed", "scanner")]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the owner is not left cancelled"
    await asyncio.sleep(0)


async def test_a_task_that_returns_ends_the_group() -> None:
    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("registrar", asyncio.sleep(0))
            await _forever()

    with capture_logs(), pytest.raises(TaskEndedError, match="task registrar returned"):
        await live()


async def test_a_failure_that_nobody_awaited_yet_is_not_lost() -> None:
    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("scanner", _fail())
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with capture_logs(), pytest.raises(BrokenError):
        await live()
    await asyncio.sleep(0)


async def test_cancelling_the_owner_is_a_clean_stop() -> None:
    stopped: list[str] = []

    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("a", _forever(lambda: stopped.append("a")))
            await _forever()

    owner = asyncio.create_task(live())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner

    assert stopped == ["a"]


async def test_two_tasks_cannot_share_a_name() -> None:
    async with Supervisor() as supervisor:
        supervisor.start("a", _forever())
        with pytest.raises(RuntimeError, match="one of that name runs already"):
            supervisor.start("a", _forever())


async def test_an_error_while_stopping_is_logged_and_raised() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise BrokenError("cannot clean up")

    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("stubborn", stubborn())
            await asyncio.sleep(0)

    with capture_logs() as logs, pytest.raises(BrokenError, match="cannot clean up"):
        await live()

    assert len(logs) == 1


@pytest.mark.parametrize("left", [True, False], ids=["left", "cancelled"])
async def test_a_stop_during_a_stop_interrupts_no_task_at_its_end(left: bool) -> None:
    may_end = asyncio.Event()
    seen: list[str] = []

    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("a", _slow_to_end(may_end, seen))
            await asyncio.sleep(0)
            await (asyncio.sleep(0) if left else _forever())

    owner = asyncio.create_task(live())
    await until(lambda: seen)
    if not left:
        owner.cancel()
    await until(lambda: seen == ["runs", "ends"])
    for _ in range(2):
        owner.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert seen == ["runs", "ends", "over"]


async def test_a_stop_after_a_failure_interrupts_neither_the_other_tasks_nor_what_follows() -> None:
    may_end = asyncio.Event()
    seen: list[str] = []

    async def live() -> None:
        try:
            async with Supervisor() as supervisor:
                supervisor.start("a", _slow_to_end(may_end, seen))
                supervisor.start("b", _fail())
                await _forever()
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    with capture_logs():
        owner = asyncio.create_task(live())
        await until(lambda: seen == ["runs", "ends"])
        owner.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(BrokenError):
            await owner
    assert seen == ["runs", "ends", "over", "closed"]


@pytest.mark.parametrize("began", [True, False])
async def test_a_task_that_a_stranger_cancels_ends_the_group(began: bool) -> None:
    async def live() -> None:
        async with Supervisor() as supervisor:
            supervisor.start("scanner", _forever())
            if began:
                await asyncio.sleep(0)
            (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "scanner")
            task.cancel()
            await _forever()

    with capture_logs(), pytest.raises(TaskEndedError, match="task scanner was cancelled"):
        await asyncio.wait_for(live(), 60)
