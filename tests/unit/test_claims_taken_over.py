"""Claims that kubelet has recorded and the ledger has not: their pods run, so they have the devices."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    KUBELET,
    WHOLE,
    Silicon,
    X,
    Y,
    Z,
    allocated,
    book_of,
    drafted,
    inventory,
    lock_of,
    name,
    seen,
    silicon,
)
from fakes.claimbooks import CLAIM, prepared_book, wish_of
from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Book, LockState, Phase
from holdfast.model.book.claims import (
    ClaimPhase,
    Wish,
    adopt,
    end_claim,
    enlist,
    joined_after_end,
    phase_of,
    release,
    share,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import Observation, reconcile
from holdfast.model.book.queue import settle
from holdfast.model.ids import (
    BootId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    PodUid,
    ProcessId,
    ResourceName,
)

_REF = ClaimRef("team", ClaimUid("claim-1"), "recorded")
_OTHER = ClaimRef("team", ClaimUid("claim-2"), "another")


def _wish(
    *pods: PodUid, ref: ClaimRef = _REF, devices: Mapping[ResourceName, Silicon] | None = None
) -> Wish:
    """Return what kubelet's record says; it has no names of pods."""
    return Wish(
        ref=ref, pods=dict.fromkeys(pods or (X,), ""), devices=devices or {WHOLE: silicon(d0="a")}
    )


def _adopted(wish: Wish, book: Book | None = None) -> Draft:
    draft = drafted(book)
    adopt(draft, wish)
    return draft


def test_a_claim_is_not_taken_over_on_what_a_pod_has_started_on() -> None:
    """Only one of the two can be true, and the pod's gate saw the device free."""
    draft = _adopted(
        _wish(X), book_of(allocated(silicon(h0="a"), resource=HALF, pod=Y, active=True))
    )

    assert [each.phase for each in draft.holdings.of_claim(_REF.uid)] == [Phase.PENDING]
    assert [(lock.pod, lock.claim) for lock in draft.locks.values()] == [(Y, None)]


def test_what_an_older_pod_has_not_started_on_is_the_claims_that_is_taken_over() -> None:
    """All of it, and at once: once that pod is over, its lock would wait for the claim's pods."""
    devices = {WHOLE: silicon(d0="a", d1="b")}
    draft = _adopted(
        _wish(X, devices=devices), book_of(allocated(silicon(h0="b"), resource=HALF, pod=Y))
    )

    found = {(lock.device, lock.claim, lock.started) for lock in draft.locks.values()}
    assert found == {(name("d0"), _REF.uid, True), (name("d1"), _REF.uid, True)}


@pytest.mark.parametrize(
    ("started", "locks"),
    [
        (True, [(LockState.HELD, X, _REF.uid, True, "kubelet has prepared its claim")]),
        (False, [(LockState.FOREIGN, None, None, True, "held by pid 7 (train)")]),
    ],
)
def test_what_was_called_foreign_before_a_claim_was_taken_over_is_the_claims(
    started: bool, locks: list[object]
) -> None:
    """Its processes are seen at once; what kubelet's record says may take a call to the server."""
    draft = drafted()
    draft.call_foreign(
        name("d0"), frozenset(silicon(d0="a")[DeviceId("d0")]), "held by pid 7 (train)"
    )
    if started:
        adopt(draft, _wish(X))
    else:  # it waits for its devices, as any claim that is yet to be prepared
        enlist(draft, _wish(X))

    observed = Observation(view=seen(), inventory=inventory({}), boot=BOOT, pending_timeout=60)
    reconcile(draft, observed)

    found = [
        (each.state, each.pod, each.claim, each.started, each.evidence)
        for each in draft.locks.values()
    ]
    assert found == locks


def test_what_a_pod_has_to_give_back_is_not_the_claims_that_is_prepared() -> None:
    """Its processes may live: what it had goes on when the kernel shows nobody on it."""
    draft = drafted(book_of(allocated(silicon(d0="a"), pod=Y, active=True)))
    for allocation in list(draft.book.allocations.values()):
        draft.end(allocation, "its pod is over")
    adopt(draft, _wish(X))
    for each in draft.holdings.of_claim(_REF.uid):
        draft.activate(each)

    observed = Observation(view=seen(), inventory=inventory({}), boot=BOOT, pending_timeout=60)
    reconcile(draft, observed)

    assert [(lock.state, lock.pod) for lock in draft.locks.values()] == [(LockState.RELEASING, Y)]


def test_a_claim_that_is_taken_over_keeps_what_cannot_be_seen_now() -> None:
    """Its pods run with it, whether or not the claim has begun here to have it."""
    draft = drafted(book_of(allocated(silicon(d0="a"), pod=Y, active=True)))
    adopt(draft, _wish(devices={WHOLE: silicon(d0="a", d1="b")}))

    adopt(draft, _wish(devices={WHOLE: silicon(d0="a", d2="c")}))

    assert {each.device: each.claim for each in draft.locks.values()} == {
        name("d0"): None,
        name("d1"): _REF.uid,
        name("d2"): _REF.uid,
    }


def test_of_a_claim_that_has_to_give_something_back_nothing_is_taken_over() -> None:
    """A person released one of its devices by hand, so its pods are not known to have the rest."""
    devices = {WHOLE: silicon(d0="a"), HALF: silicon(h0="b")}
    draft = drafted()
    assert enlist(draft, _wish(devices=devices)) is None
    draft.move(name("d0"), LockState.RELEASING, "released by hand")

    adopt(draft, _wish(devices=devices))

    assert {each.phase for each in draft.holdings.of_claim(_REF.uid)} == {Phase.PENDING}


def test_what_the_record_has_of_another_drivers_claim_is_left_alone() -> None:
    """Its record has the claims of every driver."""
    draft = _adopted(_wish(X))
    before = draft.book

    share(draft, _OTHER.uid, [Y])

    assert draft.book is before


def test_a_record_that_says_nothing_new_changes_nothing() -> None:
    draft = _adopted(_wish(X, Y))
    before = draft.book

    share(draft, _REF.uid, [X, Y])

    assert draft.book is before


def _over_while_it_waits(*recorded: PodUid) -> Draft:
    """Return a book in which kubelet has unprepared the claim, and a process is left of it."""
    draft = drafted(prepared_book(X, Y))
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET, recorded=recorded)
    return drafted(draft.book)


@pytest.mark.parametrize("pod", [Y, Z])
def test_a_claim_that_a_pod_joins_before_its_end_is_done_goes_on(pod: PodUid) -> None:
    """Kubelet makes no call for it: it has the claim prepared. Y was reserved, and never there."""
    draft = _over_while_it_waits(X)
    adopt(draft, wish_of(X, pod), KUBELET)
    lock = lock_of(draft.book, "d0")
    assert (lock.state, lock.claim, lock.started) == (LockState.HELD, CLAIM, True)
    record = draft.book.claims[CLAIM]
    assert record.over_at is None
    assert record.pods == {X, Y, pod}
    assert not record.let_go
    assert phase_of(draft.book, record) is ClaimPhase.PREPARED


@pytest.mark.parametrize(
    ("kubelet", "boot", "goes_on"),
    [
        (KUBELET, BOOT, True),
        (None, BOOT, True),
        (ProcessId(99, 99), BOOT, False),
        (KUBELET, BootId("another"), False),
    ],
)
def test_a_kubelet_that_was_started_since_prepares_anew_what_it_has_recorded(
    kubelet: ProcessId | None, boot: BootId, goes_on: bool
) -> None:
    book = _over_while_it_waits(X).book
    joined = joined_after_end(book, CLAIM, [X, Z], kubelet, boot, running=[])
    assert joined == ({Z} if goes_on else set())


def test_a_device_that_went_on_meanwhile_is_not_taken_from_who_has_it() -> None:
    draft = _over_while_it_waits(X)
    release(draft, lock_of(draft.book, "d0"), "nobody uses it", over=[X, Y])
    other = draft.allocate(WHOLE, silicon(d0="ab"), pod=Z)
    settle(draft)
    draft.activate(other)
    adopt(draft, wish_of(X, Y), KUBELET)
    assert lock_of(draft.book, "d0").allocation == other.id
    assert draft.book.claims[CLAIM].over_at is None


def test_a_pod_that_kubelet_asks_for_after_its_sibling_ended_is_not_late() -> None:
    draft = _over_while_it_waits(X)
    release(draft, lock_of(draft.book, "d0"), "nobody uses it", over=[X, Y])
    late = replace(wish_of(X, Y), recorded=frozenset({X}))
    with pytest.raises(ClaimRefusedError):
        enlist(draft, late)
    assert enlist(draft, replace(late, recorded=frozenset({Y}))) is None
    assert lock_of(draft.book, "d0").claim == CLAIM
