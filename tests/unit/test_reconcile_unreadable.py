"""What becomes of Allocations while kubelet's checkpoint cannot be read."""

from collections.abc import Callable

from fakes.books import (
    BOOT,
    HALF,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    drafted,
    entry,
    inventory,
    lock_of,
    seen,
    silicon,
    unreadable,
)
from holdfast.model.book.book import Book, LockState, Phase, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import Observation, PodSighting, reconcile
from holdfast.model.ids import BootId, PodUid
from holdfast.model.kubelet import KubeletView

_D0 = silicon(d0="a")
_NODE = inventory({WHOLE: _D0, HALF: silicon(h0="a")})
_LIVES = PodSighting(cgroup="/kubepods/pod", inode=7, populated=True, processes=(41,))
_EMPTY = PodSighting(cgroup="/kubepods/pod", inode=7, populated=False)


def _after(book: Book, view: KubeletView, *living: PodUid, sighting: PodSighting = _LIVES) -> Book:
    draft = drafted(book)
    sightings = dict.fromkeys(living, sighting)
    reconcile(
        draft,
        Observation(
            pending_timeout=60.0, view=view, inventory=_NODE, boot=BOOT, sightings=sightings
        ),
    )
    return draft.book


def test_a_pods_own_second_allocate_is_no_sign_that_its_first_is_over() -> None:
    """An init container passed the gate; the main container's Allocate came right after its own."""
    book = book_of(
        allocated(_D0, pod=X, active=True),
        allocated(silicon(h0="a"), resource=HALF, pod=Y),
        allocated(_D0, pod=X),
    )
    after = _after(book, unreadable(), X, Y)
    assert after.allocations[1].phase is Phase.ACTIVE
    assert lock_of(after, "d0").pod == X
    assert lock_of(after, "d0").state is LockState.HELD


def test_another_allocate_of_its_devices_ends_one_whose_pod_is_over() -> None:
    book = book_of(allocated(_D0, pod=X, active=True), allocated(_D0))
    after = _after(book, unreadable(), X)
    assert list(after.allocations) == [2]
    assert lock_of(after, "d0").state is LockState.RELEASING


def test_books_that_cannot_be_read_name_nobody() -> None:
    """What was read last may be of a pod that is gone."""
    view = unreadable(seen(entry(X, "d0")))
    after = _after(book_of(allocated(_D0)), view)
    assert after.allocations[1].pod is None


def test_books_that_cannot_be_read_adopt_nobody() -> None:
    assert _after(Book(), unreadable(seen(entry(X, "d0")))).allocations == {}


def _seen_before(boot: BootId = BOOT) -> Callable[[Draft], None]:
    """Return a step after which the cgroup of pod X has been seen to exist, in *boot*."""
    record = PodRecord(uid=X, boot=boot, cgroup="/kubepods/pod", inode=7)
    return lambda draft: draft.note_pod(record)


def test_a_pod_whose_cgroup_is_gone_is_over_and_one_whose_never_was_seen_is_not() -> None:
    seen_before = book_of(allocated(_D0, pod=X, active=True), _seen_before())
    after = _after(seen_before, unreadable())
    assert "the cgroup of pod pod-x is gone (unverified" in lock_of(after, "d0").evidence
    never = book_of(allocated(_D0, pod=X, active=True))
    assert _after(never, unreadable()).allocations == never.allocations
    former_boot = book_of(allocated(_D0, pod=X, active=True), _seen_before(BootId("boot-0")))
    assert _after(former_boot, unreadable()).allocations == former_boot.allocations


def test_a_pod_that_lives_in_its_cgroup_is_not_over() -> None:
    book = book_of(allocated(_D0, pod=X, active=True), _seen_before())
    assert _after(book, unreadable(), X).allocations == book.allocations


def test_an_empty_cgroup_is_no_sign_that_a_pod_is_over_that_has_passed_the_gate() -> None:
    """Where the runtime has no pause, nothing is in it before the container is made."""
    book = book_of(
        allocated(_D0, pod=X, active=True),
        allocated(silicon(h0="a"), resource=HALF, pod=Y),
    )
    after = _after(book, unreadable(), X, sighting=_EMPTY)
    assert after.allocations[1].phase is Phase.ACTIVE
    assert lock_of(after, "d0").state is LockState.HELD
    assert lock_of(after, "d0").pod == X
