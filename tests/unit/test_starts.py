"""What is known of the container starts that wait at the gate."""

from fakes.books import WHOLE, X, ids
from holdfast.allocation.starts import Start, StartOutcome, Starts, Wait
from holdfast.model.gate.waiting import Waiting
from holdfast.model.ids import PodUid


def start(pod: PodUid | None = X) -> Start:
    return Start(resource=WHOLE, asked=ids("d0"), since=100.0, stirred=100.0, pod=pod)


def test_a_start_that_waits_is_told_with_its_pod_and_why_until_it_leaves() -> None:
    starts, waits = Starts(), start()
    starts.waits(waits, Wait(StartOutcome.IN_USE, "d0 is in use"))
    assert [*starts.waiting(103.0)] == [
        Waiting(pods=frozenset({X}), what="google.com/tpu d0", why="d0 is in use", seconds=3.0)
    ]
    starts.leaves(waits)
    assert not [*starts.waiting(103.0)]


def test_a_start_of_an_unknown_pod_and_one_that_will_soon_go_on_are_not_told() -> None:
    starts = Starts()
    starts.waits(start(pod=None), Wait(StartOutcome.IN_USE, "d0 is in use"))
    starts.waits(start(), Wait(StartOutcome.STARTING, "a moment", transient=True))
    assert starts.count == 2
    assert not [*starts.waiting(103.0)]
