"""Delays grow within their bounds; the manual clock wakes sleepers in order."""

import asyncio
import time
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.clock import Clock, SystemClock, backoff
from manual_clock import ManualClock
from waiting import beside


@given(first=st.floats(0.001, 10), last=st.floats(0.001, 100))
def test_a_delay_is_never_above_the_last_nor_below_half_its_step(first: float, last: float) -> None:
    delays = list(islice(backoff(first, last), 40))

    assert all(min(first, last) / 2 <= delay <= last for delay in delays)
    assert delays[-1] >= last / 2


def test_delays_differ_between_two_daemons() -> None:
    assert list(islice(backoff(1, 8), 10)) != list(islice(backoff(1, 8), 10))


async def test_the_system_clock_reads_the_machines_clocks() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic()
    await clock.sleep(0.001)

    assert before < clock.monotonic() <= time.monotonic()
    assert abs(clock.wall() - time.time()) < 5


async def test_sleepers_of_the_manual_clock_wake_in_the_order_of_their_times() -> None:
    clock, woken = ManualClock(), list[tuple[str, float]]()
    start = clock.monotonic()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.monotonic() - start))

    tasks = [asyncio.create_task(sleeper("long", 5)), asyncio.create_task(sleeper("short", 2, 2))]
    await clock.advance(4.5)
    assert woken == [("short", 2.0), ("short", 4.0)]
    assert clock.sleepers == 1

    await clock.advance(1)

    assert woken[-1] == ("long", 5.0)
    await asyncio.gather(*tasks)


async def test_a_cancelled_sleeper_of_the_manual_clock_is_forgotten() -> None:
    clock = ManualClock()
    async with beside(clock.sleep(10)):
        await asyncio.sleep(0)

    assert clock.sleepers == 0
