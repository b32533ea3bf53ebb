"""The longest turn of the event loop is seen, while it lasts and afterwards, and is forgotten."""

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from holdfast.runtime.supervisor import Stalls, TimedSelector
from holdfast.runtime.watched import Watched
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board
from manual_clock import ManualClock
from waiting import wait_until

_METRIC = "holdfast_event_loop_stall_seconds "


@contextlib.contextmanager
def _loop(stalls: Stalls) -> Iterator[asyncio.AbstractEventLoop]:
    """Run a loop whose turns are timed on a thread of its own."""
    loop = stalls.new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _shown(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(each.removeprefix(_METRIC)) for each in lines if each.startswith(_METRIC))


def test_a_blocked_loop_shows_in_the_metric_while_it_is_blocked_and_afterwards() -> None:
    stalls, release = Stalls(), threading.Event()
    registry = Metrics(stalls).registry
    with (
        contextlib.closing(
            ProbeServer("127.0.0.1", 0, board=Board(), registry=registry, stall=Watched(30.0))
        ) as server,
        _loop(stalls) as loop,
    ):
        loop.call_soon_threadsafe(release.wait)
        try:
            wait_until(lambda: _shown(server.port) > 0.5)
        finally:
            release.set()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(20)

        assert _shown(server.port) > 0.5


def test_a_loop_that_waits_does_not_stall() -> None:
    clock = ManualClock()
    stalls = Stalls(clock.monotonic)
    stalls.turn_began(clock.monotonic())
    stalls.turn_ended(clock.monotonic())
    clock.shift(50.0)

    assert stalls.longest() == 0.0


@pytest.mark.parametrize(
    ("later", "longest"), [(0.0, 3.0), (59.0, 3.0), (115.0, 3.0), (121.0, 0.0)]
)
@pytest.mark.parametrize("turns", [0, 1, 4])
def test_the_longest_turn_is_shown_for_one_to_two_minutes(
    later: float, longest: float, turns: int
) -> None:
    """However often the loop turns meanwhile."""
    clock = ManualClock()
    stalls = Stalls(clock.monotonic)
    stalls.turn_began(clock.monotonic())
    clock.shift(3.0)
    stalls.turn_ended(clock.monotonic())
    for _ in range(turns):
        clock.shift(later / turns)
        stalls.turn_began(clock.monotonic())
        stalls.turn_ended(clock.monotonic())
    clock.shift(0.0 if turns else later)

    assert stalls.longest() == longest


def test_a_wait_that_ends_too_late_is_a_stall() -> None:
    """As of a process that gets no CPU: the loop does nothing, and everybody waits for it."""
    times = iter([0.0, 100.0])
    stalls = Stalls(lambda: next(times, 105.0))
    with TimedSelector(stalls, lambda: next(times, 105.0)) as selector:
        assert selector.select(0.01) == []
    stalls.turn_ended(105.0)

    assert stalls.longest() == pytest.approx(4.99)
