"""When kubelet is asked about pods that seem to be over."""

import itertools

from msgspec.structs import replace

from fakes.books import X, Y
from holdfast.model.book.pods import PodSighting
from holdfast.reclaim.sightings import Endings
from manual_clock import ManualClock

ALIVE = PodSighting(cgroup="/kubepods/podx", inode=7, populated=True, processes=(42,))
EMPTY = PodSighting(cgroup="/kubepods/podx", inode=7, populated=False)


def _asked(endings: Endings, clock: ManualClock, seconds: float, step: float = 0.5) -> list[float]:
    """Return after how many of the next *seconds* kubelet was asked, with a look each *step*."""
    found = []
    for count in range(int(seconds / step) + 1):
        if endings.due():
            found.append(count * step)
        clock.shift(step)
    return found


def test_a_pod_whose_last_process_ended_is_asked_about_until_kubelet_drops_it() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    endings.follow([X], {X: ALIVE}, had_cgroup=[X])
    endings.follow([X], {X: EMPTY}, had_cgroup=[X])
    asked = _asked(endings, clock, 20.0)
    assert asked[:4] == [0.0, 1.0, 3.0, 6.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert max(gaps) <= 5.0, "what kubelet drops goes within 5 s"
    endings.follow([], {}, had_cgroup=[X])
    assert _asked(endings, clock, 100.0) == []


def test_a_pod_whose_cgroup_cannot_be_read_does_not_seem_to_be_over() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    for sighting in (
        ALIVE,
        replace(EMPTY, populated=None, unlisted="cannot read cgroup.events: Input/output error"),
    ):
        endings.follow([X], {X: sighting}, had_cgroup=[X])
    assert _asked(endings, clock, 100.0) == [5.0, 10.0, 20.0], "as of any that has started"


def test_a_pod_is_not_over_because_none_of_its_processes_could_be_listed() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    for sighting in (ALIVE, replace(ALIVE, processes=())):
        endings.follow([X], {X: sighting}, had_cgroup=[X])
    assert _asked(endings, clock, 100.0) == [5.0, 10.0, 20.0], "as of any that has started"


def test_the_removal_of_the_cgroup_is_asked_about_at_once() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    for sighting in (ALIVE, EMPTY):
        endings.follow([X], {X: sighting}, had_cgroup=[X])
    _asked(endings, clock, 300.0)
    endings.follow([X], {}, had_cgroup=[X])
    assert _asked(endings, clock, 3.5) == [0.0, 1.0, 3.0]


def test_a_pod_that_has_not_begun_is_not_asked_about() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    endings.follow([X, Y], {X: EMPTY}, had_cgroup=[X])
    assert _asked(endings, clock, 100.0) == []


def test_a_pod_that_has_processes_again_is_not_over() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    for sighting in (ALIVE, EMPTY, ALIVE):
        endings.follow([X], {X: sighting}, had_cgroup=[X])
    assert 0.0 not in _asked(endings, clock, 100.0)


def test_a_program_that_may_have_ended_before_it_was_seen_is_asked_about_soon() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    endings.follow([X], {X: ALIVE}, had_cgroup=[X])
    assert _asked(endings, clock, 1000.0) == [5.0, 10.0, 20.0]


def test_an_empty_cgroup_costs_no_questions_for_ever() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    for sighting in (ALIVE, EMPTY):
        endings.follow([X], {X: sighting}, had_cgroup=[X])
    assert max(_asked(endings, clock, 1000.0)) <= 60.0
    assert endings.pause() > 1e9


def test_the_exit_of_a_holder_is_asked_about_even_where_its_pod_has_other_processes() -> None:
    clock = ManualClock()
    endings = Endings(clock)
    endings.follow([X], {X: ALIVE}, had_cgroup=[X])
    _asked(endings, clock, 100.0)
    endings.holder_exited()
    assert endings.pause() == 0.0
    assert _asked(endings, clock, 4.0) == [0.0, 1.0, 3.0]
    endings.follow([], {}, had_cgroup=[])
    assert _asked(endings, clock, 100.0) == []
