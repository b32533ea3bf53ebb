"""A published value reaches every follower, whatever its pace."""

import asyncio
from collections.abc import AsyncIterator

from holdfast.runtime.watched import Changes, Watched, pause
from manual_clock import ManualClock
from waiting import until


async def _collect(values: AsyncIterator[int], into: list[int]) -> None:
    async for value in values:
        into.append(value)  # noqa: PERF401 - one at a time, so that the test sees them come


async def test_a_follower_sees_the_current_value_at_once() -> None:
    watched = Watched(7)

    assert await anext(watched.follow()) == 7


async def test_every_follower_ends_up_with_the_latest_value() -> None:
    watched = Watched(0)
    seen: list[list[int]] = [[], [], []]
    tasks = [asyncio.create_task(_collect(watched.follow(), into)) for into in seen]
    await until(lambda: all(seen), what="the first value")

    for value in range(1, 6):
        watched.set(value)
        await asyncio.sleep(0)
    watched.set(6)
    watched.set(7)
    await until(lambda: all(values[-1] == 7 for values in seen), what="the latest value")
    for task in tasks:
        task.cancel()

    assert all(6 not in values for values in seen), "a version between may be skipped"
    assert all(values == sorted(set(values)) for values in seen)


async def test_a_slow_follower_never_holds_up_the_writer() -> None:
    watched = Watched(0)
    slow = watched.follow()
    assert await anext(slow) == 0

    for value in range(1, 1001):
        watched.set(value)

    assert await anext(slow) == 1000
    assert watched.version == 1000


async def test_an_equal_value_is_not_published() -> None:
    watched = Watched((1, 2))
    watched.set((1, 2))

    assert watched.version == 0


async def test_a_change_between_two_looks_is_not_missed() -> None:
    watched = Watched(0)
    values = watched.follow()
    await anext(values)
    waiting = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)

    watched.set(1)
    watched.set(2)

    assert await waiting == 2


async def test_until_returns_the_first_value_that_fits() -> None:
    watched = Watched(0)
    waiting = asyncio.create_task(watched.until(lambda value: value > 2))
    for value in range(1, 5):
        watched.set(value)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert await waiting == 3
    assert await watched.until(lambda value: value == 4) == 4


async def test_a_pause_ends_when_its_settings_say_so_also_after_they_have_changed() -> None:
    clock, settings = ManualClock(), Watched(60.0)
    paused = asyncio.create_task(pause(clock, settings, lambda seconds: seconds))
    await clock.advance(30.0)
    assert not paused.done()
    settings.set(40.0)
    await clock.advance(9.0)
    assert not paused.done()
    await clock.advance(2.0)
    assert paused.done()

    paused = asyncio.create_task(pause(clock, settings, lambda seconds: seconds))
    await clock.advance(20.0)
    settings.set(10.0)
    await clock.advance(0.0)
    assert paused.done()


async def test_the_first_change_of_several_values_is_seen_before_and_while_it_is_waited_for() -> (
    None
):
    one, other = Watched(0), Watched(0)
    before = Changes([one, other])
    other.set(1)
    assert await before.wait(60)

    meanwhile = [asyncio.create_task(Changes([one, other]).wait(60)) for _ in range(2)]
    await asyncio.sleep(0)
    one.set(1)
    other.set(2)
    assert await asyncio.gather(*meanwhile) == [True, True]
    assert not await Changes([one, other]).wait(0)


async def test_who_waits_no_more_is_forgotten() -> None:
    one, other = Watched(0), Watched(0)
    given_up = asyncio.create_task(Changes([one, other]).wait(60))
    await asyncio.sleep(0)
    assert one.waiting == other.waiting != set()
    given_up.cancel()
    one.set(1)
    await asyncio.gather(given_up, return_exceptions=True)
    assert given_up.cancelled()
    await Changes([one, other]).wait(0)
    assert one.waiting == other.waiting == set()


async def test_who_changes_a_value_in_each_turn_leaves_others_theirs() -> None:
    watched = Watched(0)

    async def restless() -> None:
        while True:
            changes = Changes([watched])
            watched.set(watched.value + 1)
            await changes.wait(60)

    task = asyncio.create_task(restless())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert watched.value > 0
