"""What stays in the book of claims that are over, shared, forgotten or were never prepared."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    KUBELET,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    drafted,
    lock_of,
    silicon,
)
from fakes.claimbooks import CLAIM, REF, prepared_book, unprepared_book, wish_of
from holdfast.model.book.book import Book, ClaimRecord, LockState, PodRecord
from holdfast.model.book.claims import (
    adopt,
    claims_left,
    end_claim,
    enlist,
    following,
    forget,
    joined_after_end,
    part,
    pods_of_claims,
    release,
)
from holdfast.model.ids import BootId, ClaimUid, PodUid, ProcessId

_NEXT_KUBELET = ProcessId(KUBELET.pid + 1, KUBELET.start_ticks + 1)
_NOBODY = ClaimUid("nobody's")


def _over(**changes: object) -> Book:
    record = ClaimRecord(ref=REF, pods=frozenset({X}), boot=BOOT, over_at=1.0)
    return Book(claims={CLAIM: replace(record, **changes)})


@pytest.mark.parametrize(
    ("book", "left"),
    [
        (Book(), False),
        (prepared_book(), True),
        (unprepared_book(prepared_book()), True),
        (_over(), False),
        (_over(over_at=None), True),
        (book_of(allocated(silicon(d0="a"), pod=X, active=True)), False),
    ],
    ids=["none", "prepared", "not free yet", "over", "without a lock", "a pod's device alone"],
)
def test_a_claim_is_left_while_it_is_not_over_or_has_something_to_give_back(
    book: Book, *, left: bool
) -> None:
    assert claims_left(book) is left


def test_beside_a_claim_that_is_over_another_is_left() -> None:
    other = replace(REF, uid=ClaimUid("claim-2"))
    records = dict(_over().claims)
    records[other.uid] = ClaimRecord(ref=other, pods=frozenset({Y}), boot=BOOT)
    assert claims_left(Book(claims=records))
    both = drafted(prepared_book())
    both.allocate(WHOLE, silicon(d1="c"), pod=Y)
    end_claim(both, CLAIM, "kubelet unprepared it")
    assert claims_left(both.book)


def test_kubelet_forgets_only_a_claim_that_it_has_prepared() -> None:
    draft = drafted(prepared_book())
    forget(draft, CLAIM)
    assert draft.book.claims[CLAIM].forgotten
    waits, over = drafted(), drafted(unprepared_book(prepared_book()))
    assert enlist(waits, wish_of()) is None
    for each in (waits, over):
        forget(each, CLAIM)
        assert not each.book.claims[CLAIM].forgotten
    forget(draft, _NOBODY)
    part(draft, _NOBODY, (X,))
    assert _NOBODY not in draft.book.claims


def test_a_pod_that_a_claim_waits_for_stays_one_of_its_pods() -> None:
    draft = drafted(book_of(allocated(silicon(d0="ab"), pod=Z, active=True)))
    assert enlist(draft, wish_of(X, Y)) is None
    (waits,) = draft.holdings.of_claim(CLAIM)
    part(draft, CLAIM, (X, Y))
    assert draft.book.claims[CLAIM].pods == {waits.pod}


@pytest.mark.parametrize(
    ("counted_by", "kubelet", "joined"),
    [
        (KUBELET, KUBELET, {Y, Z}),
        (KUBELET, _NEXT_KUBELET, {Z}),
        (KUBELET, None, {Y, Z}),
        (None, _NEXT_KUBELET, {Y, Z}),
    ],
    ids=["the same kubelet", "a later one", "nobody says who", "nobody said who ended it"],
)
def test_after_a_later_kubelet_began_only_who_runs_has_joined_what_is_over(
    counted_by: ProcessId | None, kubelet: ProcessId | None, joined: set[PodUid]
) -> None:
    gone = PodUid("without a record")
    book = replace(
        _over(pods=frozenset({X, Y}), let_go=frozenset({X, gone})),
        pods={X: PodRecord(uid=X, boot=BOOT, counted_by=counted_by)},
    )
    found = joined_after_end(book, CLAIM, (X, Y, Z), kubelet, BOOT, running=(Z,))
    assert found == joined


def test_what_is_being_released_of_a_claim_is_not_taken_over_for_its_next_pod() -> None:
    draft = drafted(unprepared_book(prepared_book()))
    draft.note_claim(replace(draft.book.claims[CLAIM], boot=BootId("boot-0")))
    assert adopt(draft, wish_of(Y)) is False
    assert lock_of(draft.book, "d0").state is LockState.RELEASING


def test_nobody_follows_the_pod_of_a_lock_that_is_no_claims() -> None:
    book = book_of(allocated(silicon(d0="a"), pod=X, active=True))
    assert following(book, lock_of(book, "d0")) == []


def test_the_pods_of_an_earlier_allocation_count_for_what_is_left_alone() -> None:
    alive = _over(over_at=None, former=frozenset({Y}))
    assert pods_of_claims(alive, over=False) == {X}
    assert pods_of_claims(alive, over=True) == {X}
    left = prepared_book()
    record = replace(left.claims[CLAIM], former=frozenset({Y}))
    left = replace(left, claims={CLAIM: record})
    assert pods_of_claims(left, over=True) == {X, Y}
    assert pods_of_claims(left, over=False) == {X}


def test_a_claim_ends_once() -> None:
    draft = drafted(unprepared_book(prepared_book()))
    first = draft.book.claims[CLAIM]
    draft.uptime += 60.0
    end_claim(draft, CLAIM, "it is not allocated any more", recorded=(Z,))
    assert draft.book.claims[CLAIM] == first


@pytest.mark.parametrize(("over", "told"), [((), "free"), ((Y,), "with 1 other pods of its claim")])
def test_how_many_pods_of_a_claim_were_over_with_one_is_in_the_history(
    over: tuple[PodUid, ...], told: str
) -> None:
    draft = drafted(unprepared_book(prepared_book(X, Y) if over else prepared_book()))
    lock = lock_of(draft.book, "d0")
    assert lock.state is LockState.RELEASING
    release(draft, lock, "free", over=over)
    assert draft.moves[-1].evidence.startswith(told)
