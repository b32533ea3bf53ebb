"""For how long kubelet has been without a pod: nobody's clock makes that longer."""

from fakes.books import X, Y
from holdfast.reclaim.evidence import UncountedPods
from manual_clock import ManualClock


async def test_the_time_begins_with_the_first_look_without_the_pod() -> None:
    clock = ManualClock()
    uncounted = UncountedPods(clock)
    assert uncounted.seconds(X, counted=False) == 0.0
    clock.step_wall(86400.0)
    assert uncounted.seconds(X, counted=False) == 0.0
    await clock.advance(30.0)
    clock.step_wall(-86400.0)
    assert uncounted.seconds(X, counted=False) == 30.0
    assert uncounted.seconds(Y, counted=False) == 0.0


async def test_a_pod_that_is_counted_again_has_not_been_without_kubelet() -> None:
    clock = ManualClock()
    uncounted = UncountedPods(clock)
    uncounted.seconds(X, counted=False)
    await clock.advance(30.0)
    assert uncounted.seconds(X, counted=True) == 0.0
    await clock.advance(30.0)
    assert uncounted.seconds(X, counted=False) == 0.0


async def test_books_that_cannot_be_read_neither_begin_nor_end_the_time() -> None:
    clock = ManualClock()
    uncounted = UncountedPods(clock)
    uncounted.seconds(X, counted=None)
    await clock.advance(30.0)
    assert uncounted.seconds(X, counted=False) == 0.0
    await clock.advance(10.0)
    assert uncounted.seconds(X, counted=None) == 10.0
    assert uncounted.seconds(X, counted=False) == 10.0


async def test_what_is_of_no_interest_is_forgotten() -> None:
    clock = ManualClock()
    uncounted = UncountedPods(clock)
    uncounted.seconds(X, counted=False)
    uncounted.keep([Y])
    await clock.advance(30.0)
    assert uncounted.seconds(X, counted=False) == 0.0
