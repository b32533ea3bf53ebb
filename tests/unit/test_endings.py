"""When kubelet is asked about pods that seem to be over."""

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from fakes.books import BOOT, X, Y, device_lock, name
from holdfast.model.book.book import Book, LockState, PodRecord
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.reclaim.sightings import Endings
from manual_clock import ManualClock

ALIVE = PodSighting(cgroup="/kubepods/podx", inode=7, populated=True, processes=(42,))
EMPTY = PodSighting(cgroup="/kubepods/podx", inode=7, populated=False)
OF_X = Book(
    locks={name("d0"): device_lock(name("d0"), state=LockState.HELD, since=0.0, pod=X)},
    pods={X: PodRecord(uid=X, boot=BOOT, cgroup="/kubepods/podx")},
)


class _Looks:
    """Looks at the pods of a book by a clock that a test moves."""

    def __init__(self, book: Book = OF_X) -> None:
        self.clock = ManualClock()
        self.endings = Endings(self.clock)
        self.book = book
        self.seen: Mapping[PodUid, PodSighting] = {}

    def see(self, *sightings: PodSighting) -> None:
        """Look at pod X, whose cgroup is like each of *sightings* in turn."""
        for each in sightings:
            self.seen = {X: each}
            self._asks()

    def asked(self, seconds: float) -> list[float]:
        """Return after how many of the next *seconds* kubelet was asked, with two looks each."""
        found = []
        for count in range(int(seconds / 0.5) + 1):
            if self._asks():
                found.append(count * 0.5)
            self.clock.shift(0.5)
        return found

    def _asks(self) -> bool:
        return self.endings.is_question_due(self.book, self.seen)


def test_a_pod_whose_last_process_ended_is_asked_about_until_kubelet_drops_it() -> None:
    looks = _Looks()
    looks.see(ALIVE)
    looks.seen = {X: EMPTY}
    asked = looks.asked(20.0)
    assert asked[:4] == [0.0, 1.0, 3.0, 6.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert max(gaps) <= 5.0, "what kubelet drops goes within 5 s"
    looks.book = replace(OF_X, locks={})
    assert looks.asked(100.0) == []


def test_a_pod_whose_cgroup_cannot_be_read_does_not_seem_to_be_over() -> None:
    looks = _Looks()
    unread = replace(
        EMPTY, populated=None, unlisted="cannot read cgroup.events: Input/output error"
    )
    looks.see(ALIVE, unread)
    assert looks.asked(100.0) == [5.0, 10.0, 20.0], "as of any that has started"


def test_a_pod_is_not_over_because_none_of_its_processes_could_be_listed() -> None:
    looks = _Looks()
    looks.see(ALIVE, replace(ALIVE, processes=()))
    assert looks.asked(100.0) == [5.0, 10.0, 20.0], "as of any that has started"


def test_the_removal_of_the_cgroup_is_asked_about_at_once() -> None:
    looks = _Looks()
    looks.see(ALIVE, EMPTY)
    looks.asked(300.0)
    looks.seen = {}
    assert looks.asked(3.5) == [0.0, 1.0, 3.0]


def test_a_pod_that_has_not_begun_is_not_asked_about() -> None:
    of_y = device_lock(name("d1"), state=LockState.HELD, since=0.0, pod=Y)
    looks = _Looks(replace(OF_X, locks={**OF_X.locks, name("d1"): of_y}))
    looks.seen = {X: EMPTY}
    assert looks.asked(100.0) == []


def test_a_pod_that_has_processes_again_is_not_over() -> None:
    looks = _Looks()
    looks.see(ALIVE, EMPTY, ALIVE)
    assert 0.0 not in looks.asked(100.0)


def test_a_program_that_may_have_ended_before_it_was_seen_is_asked_about_soon() -> None:
    looks = _Looks()
    looks.see(ALIVE)
    assert looks.asked(1000.0) == [5.0, 10.0, 20.0]


def test_an_empty_cgroup_costs_no_questions_for_ever() -> None:
    looks = _Looks()
    looks.see(ALIVE, EMPTY)
    assert max(looks.asked(1000.0)) <= 60.0
    assert looks.endings.pause() > 1e9


def test_the_exit_of_a_holder_is_asked_about_even_where_its_pod_has_other_processes() -> None:
    looks = _Looks()
    looks.see(ALIVE)
    looks.asked(100.0)
    looks.endings.holder_exited()
    assert looks.endings.pause() == 0.0
    assert looks.asked(4.0) == [0.0, 1.0, 3.0]
    looks.book = replace(OF_X, locks={})
    assert looks.asked(100.0) == []
