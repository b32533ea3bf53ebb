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


@pytest.mark.parametrize(
    ("book", "facts"),
    [
        (_GRANTED, _held_by()),
        (_GRANTED, KernelFacts()),
        (_GRANTED, _held_by(X)),
        (_GRANTED, _held_by(None)),
        (_GRANTED, _held_by(Z)),
        (book_of(allocated(_D0, pod=X)), _held_by(Y)),
        (book_of(allocated(_D0, pod=X), allocated(silicon(d1="b"), pod=Y)), _held_by(Y)),
        (_GRANTED, replace(_held_by(Y), gaps=("pid 7 could not be read",))),
        (_GRANTED, _held_by(Y, Z)),
        (_GRANTED, _held_by(X, Y)),
        (book_of(allocated(_D0), allocated(_D0, pod=Y)), _held_by(Y)),
        (book_of(allocated(_D0, pod=X, active=True), allocated(_D0, pod=Y)), _held_by(Y)),
        (
            book_of(
                allocated(_D0, pod=X), allocated(_D0, pod=X, active=True), allocated(_D0, pod=Y)
            ),
            _held_by(Y),
        ),
        (
            book_of(allocated(_TWO_KEYS, pod=X), allocated(silicon(h0="a"), resource=HALF, pod=Y)),
            _held_by(Y),
        ),
        (
            book_of(
                allocated(_D0, pod=X),
                allocated(silicon(d1="b"), pod=Z, active=True),
                allocated(_BOTH, pod=Y),
            ),
            _held_by(Y),
        ),
    ],
    ids=[
        "nobody",
        "no scan was made",
        "it is as the lock says",
        "a process of no pod",
        "a pod that was granted nothing",
        "a pod that nothing was ever granted to",
        "a pod that was granted something else",
        "a scan that could not see everything",
        "two others",
        "its own pod as well",
        "its own pod is not known",
        "its own pod has passed the gate",
        "its own pod has passed the gate by another Allocation",
        "a pod that was granted a part of it",
        "a pod that could not have started on all that it was granted",
    ],
)
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
