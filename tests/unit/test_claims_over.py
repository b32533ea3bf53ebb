"""The end of a claim: what is freed, what is still waited for, and what is told of its pods."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    KUBELET,
    NOW,
    UPTIME,
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
    REMEMBERED,
    adopt,
    claims_left,
    drop_old_claims,
    end_claim,
    enlist,
    following,
    forget,
    has_claim,
    joined_after_end,
    part,
    pods_of_claims,
    release,
    share,
)
from holdfast.model.book.draft import Draft
from holdfast.model.dra.passage import enter
from holdfast.model.ids import BootId, ClaimUid, PodUid, ProcessId


def test_the_end_of_a_claim_that_is_not_known_changes_nothing() -> None:
    """Kubelet asks again until it is answered, also of a daemon that lost its ledger."""
    draft = drafted(prepared_book())
    before = draft.book
    end_claim(draft, ClaimUid("another"), "kubelet unprepared it", kubelet=KUBELET)
    assert draft.book is before


def test_the_next_in_the_queue_gets_what_a_claim_never_had_prepared() -> None:
    draft = drafted()
    enlist(draft, wish_of())
    draft.allocate(WHOLE, silicon(d0="ab"), pod=Y)
    end_claim(draft, CLAIM, "kubelet unprepared it")
    lock = lock_of(draft.book, "d0")
    assert (lock.pod, lock.claim, lock.state) == (Y, None, LockState.HELD)


def test_the_history_tells_the_end_of_a_claim_of_one_pod_once() -> None:
    draft = drafted(prepared_book())
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert [(each.after, each.pod) for each in draft.moves] == [(LockState.RELEASING, X)]


def test_the_pods_of_a_claim_are_gone_through_from_the_first_whoever_asked_for_it() -> None:
    draft = drafted(prepared_book(Y))
    share(draft, CLAIM, [X])
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert lock_of(draft.book, "d0").pod == X


def test_the_end_of_a_lost_claim_is_no_evidence_that_kubelet_let_its_pods_go() -> None:
    """Kubelet said nothing, so what is left of them is nobody's to end."""
    draft = drafted(prepared_book(X))
    end_claim(draft, CLAIM, "the API server has no such claim")
    assert draft.book.pods[X].let_go_at is None


def test_a_claim_that_was_over_and_free_has_none_of_its_former_pods() -> None:
    draft = drafted(unprepared_book(prepared_book(X)))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    assert enter(draft, wish_of(Y), "free") is None
    assert draft.book.claims[CLAIM].pods == {Y}
    assert draft.book.claims[CLAIM].over_at is None


def test_a_device_that_grew_and_was_never_prepared_is_free_at_once() -> None:
    draft = drafted()
    enlist(draft, wish_of())
    enlist(draft, wish_of(devices={WHOLE: silicon(d0="abc")}))
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert not draft.locks
    assert not draft.holdings.allocations


def test_a_lock_goes_from_pod_to_pod_and_leaves_none_of_them_out() -> None:
    draft = drafted(unprepared_book(prepared_book(X, Y, Z)))
    waited_for = []
    while draft.locks:
        lock = lock_of(draft.book, "d0")
        waited_for.append(lock.pod)
        release(draft, lock, "nobody uses it")
    assert waited_for == [X, Y, Z]


def test_what_was_quarantined_is_free_once_its_last_pod_has_let_go_of_it() -> None:
    """The history has no arrow from quarantined to free: it was reclaimed in the end."""
    draft = drafted(unprepared_book(prepared_book()))
    device = lock_of(draft.book, "d0").device
    draft.move(device, LockState.RECLAIMING, "still held")
    draft.move(device, LockState.QUARANTINED, "it does not end")
    before = len(draft.moves)
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    assert [each.after for each in draft.moves[before:]] == [LockState.RECLAIMING, LockState.FREE]


def test_what_is_only_releasing_is_free_in_one_step() -> None:
    draft = drafted(unprepared_book(prepared_book()))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    assert [each.after for each in draft.moves] == [LockState.FREE]


@pytest.mark.parametrize("pod", [X, Y])
def test_a_pod_has_a_claim_until_that_is_over_whatever_other_claims_there_are(pod: PodUid) -> None:
    """What is left of such a pod is its work."""
    other = replace(REF, uid=ClaimUid("claim-2"))
    draft = drafted(prepared_book(X))
    enlist(draft, wish_of(Y, ref=other, devices={WHOLE: silicon(d1="c")}))
    assert has_claim(draft.book, pod)
    assert not has_claim(draft.book, Z)
    end_claim(draft, CLAIM if pod == X else other.uid, "kubelet unprepared it")
    assert not has_claim(draft.book, pod)
    assert has_claim(draft.book, Y if pod == X else X)


def test_a_pod_that_left_a_claim_has_it_no_more_though_its_device_is_not_free_before_its_end() -> (
    None
):
    draft = drafted(prepared_book(X, Y))
    share(draft, CLAIM, [Y], left=[X, Z])
    assert not has_claim(draft.book, X)
    assert lock_of(draft.book, "d0").pod == Y
    assert pods_of_claims(draft.book, over=False) == {Y}
    assert pods_of_claims(draft.book, over=True) == {X, Y}
    enlist(draft, wish_of(Y))
    assert not has_claim(draft.book, X), "kubelet asks again when it was started anew"
    enlist(draft, wish_of(X, Y))
    assert has_claim(draft.book, X)
    share(draft, CLAIM, [Y], left=[X])
    share(draft, CLAIM, [X, Y])
    assert has_claim(draft.book, X)
    share(draft, CLAIM, [Y], left=[X])
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert lock_of(draft.book, "d0").pod == X


def test_a_claim_that_waits_without_a_device_is_not_forgotten_however_long_it_waits() -> None:
    waiting = replace(REF, uid=ClaimUid("claim-2"))
    draft = drafted(prepared_book(X))
    enlist(draft, wish_of(Y, ref=waiting))
    later = Draft(draft.book, now=NOW, uptime=UPTIME + 9 * REMEMBERED, boot=BOOT)
    drop_old_claims(later)
    assert {CLAIM, waiting.uid} == {*later.book.claims}


def _let_go(kubelet: ProcessId, *, seconds: float = 0.0, boot: BootId = BOOT) -> PodRecord:
    """Return what is known of the pod after a first Unprepare, and one of *kubelet* later on."""
    before = unprepared_book(prepared_book(X))
    draft = Draft(before, now=NOW, uptime=UPTIME + seconds, boot=boot)
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=kubelet)
    return draft.book.pods[X]


def test_kubelets_word_does_not_grow_younger_when_it_asks_again() -> None:
    assert _let_go(KUBELET, seconds=40.0).let_go_at == UPTIME


def test_the_word_of_another_kubelet_is_its_own() -> None:
    another = ProcessId(701, 71)
    record = _let_go(another, seconds=40.0)
    assert (record.counted_by, record.let_go_at) == (another, UPTIME + 40.0)


def test_a_word_of_a_former_boot_is_given_anew() -> None:
    record = _let_go(KUBELET, seconds=-90.0, boot=BootId("the next boot"))
    assert (record.counted_boot, record.let_go_at) == ("the next boot", UPTIME - 90.0)


def test_an_unprepare_that_comes_again_says_nothing_of_pods_that_are_forgotten() -> None:
    draft = drafted(unprepared_book(prepared_book(X)))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    draft.forget_pod(X)
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET)
    assert X not in draft.book.pods


def test_the_name_of_a_pod_is_kept_where_a_later_call_has_none() -> None:
    draft = drafted(prepared_book(X))
    enlist(draft, replace(wish_of(), pods={X: ""}))
    assert draft.book.pods[X].name == "name-of-pod-x"


def test_a_pod_without_a_name_is_known_by_its_uid_alone_until_it_has_one() -> None:
    draft = drafted(prepared_book(X))
    share(draft, CLAIM, [Y])
    assert draft.book.pods[Y] == PodRecord(uid=Y, boot=BOOT)
    enlist(draft, wish_of(X, Y))
    assert str(draft.book.pods[Y]) == "team/name-of-pod-y (pod-y)"


# What stays in the book of claims that are over, shared, forgotten or were never prepared.

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
