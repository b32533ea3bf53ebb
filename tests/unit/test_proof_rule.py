"""Whom a lock is given to when the kernel shows another pod with the device than the book."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    HALF,
    X,
    Y,
    Z,
    allocated,
    book_of,
    breaches,
    drafted,
    lock_of,
    silicon,
    unlocked,
)
from holdfast.model.book.book import Book, LockState, Phase
from holdfast.model.book.proof import hand_to_true_owner, true_owner
from holdfast.model.book.queue import settle
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import DeviceAccess, Holder

_D0 = silicon(d0="a")
_BOTH = silicon(d0="a", d1="b")
_TWO_KEYS = silicon(d0="ab")


def _held_by(*pods: PodUid | None) -> KernelFacts:
    return KernelFacts(
        holders=tuple(
            Holder(
                process=ProcessId(40 + n, 1),
                command="python",
                access=frozenset({DeviceAccess.NODE}),
                pod=pod,
            )
            for n, pod in enumerate(pods)
        )
    )


_GRANTED = book_of(allocated(_D0, pod=X), allocated(_D0, pod=Y))


def test_a_pod_that_was_granted_the_device_and_holds_it_gets_the_lock_of_one_that_waits() -> None:
    draft = drafted(_GRANTED)
    hand_to_true_owner(draft, lock_of(_GRANTED, "d0"), _held_by(Y))
    lock = lock_of(draft.book, "d0")
    assert (lock.pod, lock.allocation, lock.state) == (Y, 2, LockState.HELD)
    assert "the process scan shows that it is held by pid 40 (python)" in lock.evidence
    phases = {each.id: each.phase for each in draft.book.allocations.values()}
    assert phases == {1: Phase.PENDING, 2: Phase.ACTIVE}
    assert not breaches(draft.book)
    assert not unlocked(draft.book)
    # Nor does the older claim take it back.
    assert true_owner(draft.book, lock, _held_by(Y)) is None


_X, _Y = allocated(_D0, pod=X), allocated(_D0, pod=Y)
_X_HAS_STARTED = allocated(_D0, pod=X, active=True)
_BESIDE, _HALF = allocated(silicon(d1="b"), pod=Y), allocated(silicon(h0="a"), resource=HALF, pod=Y)
_Z_HAS_STARTED = allocated(silicon(d1="b"), pod=Z, active=True)
_CANNOT_START = book_of(_X, _Z_HAS_STARTED, allocated(_BOTH, pod=Y))
_UNSURE = replace(_held_by(Y), gaps=("pid 7 could not be read",))
_STAYS = {
    "nobody": (_GRANTED, _held_by()),
    "no scan was made": (_GRANTED, KernelFacts()),
    "it is as the lock says": (_GRANTED, _held_by(X)),
    "a process of no pod": (_GRANTED, _held_by(None)),
    "a pod that was granted nothing": (_GRANTED, _held_by(Z)),
    "a pod that nothing was ever granted to": (book_of(_X), _held_by(Y)),
    "a pod that was granted something else": (book_of(_X, _BESIDE), _held_by(Y)),
    "a scan that could not see everything": (_GRANTED, _UNSURE),
    "two others": (_GRANTED, _held_by(Y, Z)),
    "its own pod as well": (_GRANTED, _held_by(X, Y)),
    "its own pod is not known": (book_of(allocated(_D0), _Y), _held_by(Y)),
    "its own pod has passed the gate": (book_of(_X_HAS_STARTED, _Y), _held_by(Y)),
    "its own pod has passed the gate by another Allocation": (
        book_of(_X, _X_HAS_STARTED, _Y),
        _held_by(Y),
    ),
    "a pod that was granted a part of it": (
        book_of(allocated(_TWO_KEYS, pod=X), _HALF),
        _held_by(Y),
    ),
    "a pod that could not have started on all that it was granted": (_CANNOT_START, _held_by(Y)),
}


@pytest.mark.parametrize(("book", "facts"), _STAYS.values(), ids=_STAYS.keys())
def test_a_lock_stays_whose_it_is(book: Book, facts: KernelFacts) -> None:
    lock = lock_of(book, "d0")
    assert true_owner(book, lock, facts) is None
    draft = drafted(book)
    hand_to_true_owner(draft, lock, facts)
    assert draft.book is book


def test_a_lock_that_moved_meanwhile_is_left_alone() -> None:
    draft = drafted(_GRANTED)
    draft.note(lock_of(_GRANTED, "d0"), "something else happened")
    before = draft.book
    hand_to_true_owner(draft, lock_of(_GRANTED, "d0"), _held_by(Y))
    assert draft.book == before


def test_a_pod_that_is_still_to_let_go_of_something_itself_is_proven_all_the_same() -> None:
    draft = drafted(book_of(allocated(silicon(d1="b"), pod=X, active=True)))
    draft.end(draft.holdings.allocations[1], "kubelet no longer counts it")
    draft.allocate(HALF, _D0, pod=Y)
    draft.allocate(HALF, _BOTH, pod=X)
    settle(draft)
    lock = lock_of(draft.book, "d0", HALF)
    proven = true_owner(draft.book, lock, _held_by(X))
    assert lock.pod == Y
    assert proven is not None
    assert proven.pod == X


def test_whatever_else_it_was_granted_with_the_device_follows_in_the_same_change() -> None:
    book = book_of(allocated(_BOTH, pod=X), allocated(_BOTH, pod=Y))
    draft = drafted(book)
    hand_to_true_owner(draft, lock_of(book, "d0"), _held_by(Y))
    assert [lock_of(draft.book, each).pod for each in ("d0", "d1")] == [Y, Y]
