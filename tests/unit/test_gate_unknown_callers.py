"""What a start may and may not do while it is not known, or not certain, whose it is."""

from msgspec.structs import replace

from fakes.books import (
    HALF,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    drafted,
    ids,
    lock_of,
    silicon,
)
from fakes.doors import why_wait
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.marks import Asker, Mark, Marks
from holdfast.model.gate.gate import Caller, Passage, arrive, enter, who_calls
from holdfast.model.kubelet import KubeletView

_D0 = silicon(d0="a")
_PASSAGE = Passage(resource=WHOLE, asked=ids("d0"), devices=_D0)
_KNOWN = Caller(pods=(X,))
_DRAIN = Marks(drain=Mark(asker=Asker(uid=0, pid=7), at=0.0, reason="repair"))


def _draining(book: Book) -> Book:
    return replace(book, marks=_DRAIN)


def test_an_unknown_callers_start_makes_up_no_pod() -> None:
    draft = drafted(book_of(allocated(_D0)))
    assert enter(draft, _PASSAGE, Caller(), "passed") is None
    assert not draft.book.pods
    assert lock_of(draft.book, "d0").pod is None


def test_a_start_whose_allocation_was_identified_meanwhile_is_not_written_down_twice() -> None:
    """The pod was learned between the look at the caller and its entry."""
    draft = drafted(book_of(allocated(_D0, pod=Y)))
    assert enter(draft, _PASSAGE, Caller(allocation=1), "passed") is not None
    assert list(draft.book.allocations) == [1]


def test_a_lock_whose_allocation_is_not_in_the_book_is_not_the_callers() -> None:
    book = replace(book_of(allocated(_D0)), allocations={})
    assert lock_of(book, "d0").state is LockState.HELD
    assert why_wait(_PASSAGE, _KNOWN, book) is not None


def test_the_same_id_under_another_resource_name_is_another_device() -> None:
    """Its lock is not the caller's, and nor is its Allocation."""
    other_name = allocated(_D0, resource=HALF)
    assert why_wait(_PASSAGE, _KNOWN, book_of(other_name, allocated(_D0))) is not None
    known = book_of(allocated(_D0, resource=HALF, pod=X))
    assert who_calls(_PASSAGE, KubeletView(), known) == Caller()


def test_an_unknown_caller_does_not_wait_for_a_pod_that_wants_other_hardware() -> None:
    draft = drafted()
    draft.allocate(WHOLE, silicon(d1="b"), pod=Y)
    assert why_wait(_PASSAGE, Caller(), draft.book) is None


def test_what_is_withheld_by_hand_is_given_again_to_the_pod_that_started_on_it() -> None:
    """Its init container and its main container have an Allocation each."""
    book = book_of(allocated(_D0, pod=X, active=True), allocated(_D0, pod=X))
    assert why_wait(_PASSAGE, _KNOWN, _draining(book)) is None
    assert "repair" in str(why_wait(_PASSAGE, Caller(pods=(Y,)), _draining(book)))


def test_what_is_withheld_by_hand_is_given_to_the_only_start_that_can_be_meant() -> None:
    one = book_of(allocated(_D0, active=True))
    assert why_wait(_PASSAGE, Caller(), _draining(one)) is None
    two = book_of(allocated(_D0, active=True), allocated(_D0))
    assert "repair" in str(why_wait(_PASSAGE, Caller(), _draining(two)))


def test_a_start_that_nobody_allocated_for_takes_the_locks_of_what_is_free() -> None:
    draft = drafted()
    arrive(draft, _PASSAGE, Caller())
    assert lock_of(draft.book, "d0").allocation == 1


def test_a_start_on_what_a_known_pod_was_allocated_is_not_written_down_again() -> None:
    draft = drafted(book_of(allocated(_D0, pod=Y)))
    arrive(draft, _PASSAGE, Caller())
    assert list(draft.book.allocations) == [1]
