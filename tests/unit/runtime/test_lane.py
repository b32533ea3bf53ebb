"""Blocking calls run in order beside the loop, and one that hangs is named and left behind."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from holdfast.errors import LaneStuckError
from holdfast.runtime.lane import Lane
from waiting import until


async def test_calls_run_in_the_order_they_were_made() -> None:
    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        order: list[int] = []

        def note(number: int) -> None:
            time.sleep(0.002 if number % 2 else 0)
            order.append(number)

        await asyncio.gather(*(lane.run(lambda number=n: note(number)) for n in range(20)))  # type: ignore[misc]

    assert order == list(range(20))


async def test_what_takes_no_time_goes_ahead_of_what_waits() -> None:
    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        gate, order = threading.Event(), list[str]()
        begun = asyncio.create_task(lane.run(lambda: gate.wait(20)))
        waits = asyncio.create_task(lane.run(lambda: order.append("waits")))
        await until(lambda: len(lane._waiting) == 1)
        ahead = asyncio.create_task(lane.run(lambda: order.append("ahead"), ahead=True))
        await until(lambda: len(lane._waiting) == 2)
        gate.set()
        await asyncio.gather(begun, waits, ahead)

    assert order == ["ahead", "waits"]


async def test_the_loop_goes_on_while_a_call_blocks() -> None:
    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        gate = threading.Event()
        blocked = asyncio.create_task(lane.run(lambda: gate.wait(20)))
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()

        assert await blocked


async def test_who_waits_for_an_answer_goes_on_before_those_who_follow_what_comes_after() -> None:
    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        order: list[str] = []
        published = asyncio.Event()

        async def follow() -> None:
            await published.wait()
            order.append("follower")

        def after(answer: int) -> None:
            order.append(f"after {answer}")
            published.set()

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        answer: int = await lane.run(lambda: 7, after=after)
        order.append(f"answer {answer}")
        await following

    assert order == ["after 7", "answer 7", "follower"]


async def test_what_comes_after_a_call_comes_although_the_caller_has_given_up() -> None:
    with contextlib.closing(Lane("scan", deadline=0.05)) as lane:
        gate, seen = threading.Event(), list[bool]()
        with pytest.raises(LaneStuckError):
            await lane.run(lambda: gate.wait(20), after=seen.append)
        gate.set()

        await until(lambda: seen)

    assert seen == [True]


async def test_a_lane_that_hangs_keeps_nothing_of_the_calls_that_were_given_up() -> None:
    class Book:
        """Something that a caller has at the time, and that is large."""

    async def ask(lane: Lane) -> weakref.ref[Book]:
        book = Book()
        with pytest.raises(LaneStuckError):
            await lane.run(lambda: str(book))
        return weakref.ref(book)

    with contextlib.closing(Lane("nvml", deadline=0.01)) as lane:
        begun, gate = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            gate.wait(20)

        while not begun.is_set():  # on a busy machine a call is given up before its turn
            with pytest.raises(LaneStuckError):
                await lane.run(hang)
        kept = [await ask(lane) for _ in range(3)]
        await asyncio.sleep(0.02)  # the loop itself keeps the timer that it has just called
        gc.collect()
        left = [each for each in kept if each() is not None]
        waiting = asyncio.create_task(lane.run(lambda: 42, deadline=20))
        await asyncio.sleep(0)
        gate.set()

        assert await waiting == 42, "and who still waits has its turn"

    assert left == []


async def test_nothing_comes_after_a_call_that_fails() -> None:
    def fail() -> None:
        raise KeyError("absent")

    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        seen: list[None] = []
        with pytest.raises(KeyError):
            await lane.run(fail, after=seen.append)
        await lane.run(lambda: None)

    assert seen == []


async def test_an_error_of_the_call_reaches_the_caller() -> None:
    def fail() -> None:
        raise KeyError("absent")

    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        with pytest.raises(KeyError, match="absent"):
            await lane.run(fail)

        assert await lane.run(lambda: 42) == 42, "and the lane goes on"


async def test_a_timeout_error_of_the_call_itself_is_its_answer() -> None:
    def fail() -> None:
        raise TimeoutError("the driver's own")

    with (
        contextlib.closing(Lane("nvml", deadline=20)) as lane,
        pytest.raises(TimeoutError, match="the driver's own"),
    ):
        await lane.run(fail)


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3)])
async def test_an_error_that_would_steer_the_interpreter_arrives_as_a_plain_one(
    error: BaseException,
) -> None:
    def fail() -> None:
        raise error

    with contextlib.closing(Lane("nvml", deadline=20)) as lane:
        with pytest.raises(RuntimeError, match="a call on a lane raised") as caught:
            await lane.run(fail)

        assert caught.value.__cause__ is error


async def test_a_stuck_call_is_named_and_left_behind() -> None:
    lane, gate = Lane("nvml", deadline=0.05), threading.Event()
    assert lane.stuck_since is None

    with pytest.raises(LaneStuckError, match="lane nvml: no answer within 0.05 s"):
        await lane.run(lambda: gate.wait(20))

    since = lane.stuck_since
    assert since is not None
    assert since <= time.monotonic()
    gate.set()
    await until(lambda: lane.stuck_since is None, what="the lane to recover")
    assert await lane.run(lambda: 1, deadline=20) == 1
    lane.close()


async def test_a_call_may_have_a_deadline_of_its_own() -> None:
    lane, gate = Lane("device", deadline=0.01), threading.Event()
    patient = asyncio.create_task(lane.run(lambda: gate.wait(20), deadline=20))
    await asyncio.sleep(0.03)
    gate.set()

    assert await patient
    lane.close()


async def test_a_call_given_up_while_queued_never_runs() -> None:
    lane, gate, ran = Lane("ledger", deadline=20), threading.Event(), threading.Event()
    blocked = asyncio.create_task(lane.run(lambda: gate.wait(20)))
    await asyncio.sleep(0)
    with pytest.raises(LaneStuckError):
        await lane.run(ran.set, deadline=0.01)
    gate.set()
    await blocked

    assert await lane.run(ran.is_set) is False
    lane.close()


async def test_a_cancelled_caller_leaves_the_lane_usable() -> None:
    lane, gate = Lane("ledger", deadline=20), threading.Event()
    caller = asyncio.create_task(lane.run(lambda: gate.wait(20)))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()

    assert await lane.run(lambda: "next") == "next"
    lane.close()


async def test_the_latency_is_that_of_the_last_call() -> None:
    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        await lane.run(lambda: time.sleep(0.5))
        slow = lane.latency
        await lane.run(lambda: None)

        assert slow >= 0.5
        assert lane.latency < slow


async def test_a_closed_lane_finishes_what_was_queued_and_takes_no_more() -> None:
    lane = Lane("ledger", deadline=20)
    last = asyncio.create_task(lane.run(lambda: "written"))
    await asyncio.sleep(0)
    lane.close()

    assert await last == "written"
    with pytest.raises(LaneStuckError, match="lane ledger: it is closed"):
        await lane.run(lambda: None)


def test_a_stuck_lane_does_not_keep_the_process_alive() -> None:
    story = (
        "import asyncio, time\n"
        "from holdfast.errors import LaneStuckError\n"
        "from holdfast.runtime.lane import Lane\n"
        "async def main():\n"
        "    try:\n"
        "        await Lane('nvml', deadline=0.01).run(lambda: time.sleep(3600))\n"
        "    except LaneStuckError:\n"
        "        print('left behind')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", story], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "left behind\n"


async def test_what_a_call_is_about_is_never_put_into_words() -> None:
    """It can be a whole book, which took 15 ms of each Allocate on a node with 800 devices."""
    asked: list[object] = []

    class Call:
        def __call__(self) -> int:
            return 1

        def __repr__(self) -> str:
            asked.append(self)
            return "a book"

    with contextlib.closing(Lane("scan", deadline=20)) as lane:
        assert await lane.run(Call()) == 1
    assert not asked
