"""Claims that kubelet has recorded and the ledger has not: their pods run, so they have the devices."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from fakes.books import (
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
    lock_of,
    name,
    silicon,
)
from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Book, Phase
from holdfast.model.book.claims import Wish, adopt, end_claim, enlist, share
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import LockState
from holdfast.model.dra.passage import enter, is_prepared
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ResourceName

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


def test_a_claim_that_is_taken_over_is_prepared_and_its_end_is_waited_for() -> None:
    wish = _wish(X, Y)
    draft = _adopted(wish)

    assert is_prepared(draft.book, _REF.uid, wish.keys)
    assert draft.book.claims[_REF.uid].pods == {X, Y}
    lock = lock_of(draft.book, "d0")
    assert (lock.state, lock.claim, lock.started) == (LockState.HELD, _REF.uid, True)

    end_claim(draft, _REF.uid, "kubelet unprepared it")

    assert lock_of(draft.book, "d0").state is LockState.RELEASING


def test_a_claim_is_not_taken_over_on_what_a_pod_has_started_on() -> None:
    """Only one of the two can be true, and the pod's gate saw the device free."""
    draft = _adopted(
        _wish(X), book_of(allocated(silicon(h0="a"), resource=HALF, pod=Y, active=True))
    )

    assert [each.phase for each in draft.holdings.of_claim(_REF.uid)] == [Phase.PENDING]
    assert [(lock.pod, lock.claim) for lock in draft.locks.values()] == [(Y, None)]


def test_a_claim_is_not_taken_over_on_what_another_has_to_give_back() -> None:
    draft = drafted()
    assert enter(draft, _wish(Y, ref=_OTHER), "free") is None
    end_claim(draft, _OTHER.uid, "kubelet unprepared it")

    adopt(draft, _wish(X))

    assert [each.phase for each in draft.holdings.of_claim(_REF.uid)] == [Phase.PENDING]
    assert lock_of(draft.book, "d0").claim == _OTHER.uid


def test_of_a_claim_that_has_to_give_something_back_nothing_is_taken_over() -> None:
    """A person released one of its devices by hand, so its pods are not known to have the rest."""
    devices = {WHOLE: silicon(d0="a"), HALF: silicon(h0="b")}
    draft = drafted()
    assert enlist(draft, _wish(devices=devices)) is None
    draft.move(name("d0"), LockState.RELEASING, "released by hand")

    adopt(draft, _wish(devices=devices))

    assert {each.phase for each in draft.holdings.of_claim(_REF.uid)} == {Phase.PENDING}


def test_an_old_record_revives_no_claim_that_kubelet_has_unprepared() -> None:
    draft = _adopted(_wish(X))
    end_claim(draft, _REF.uid, "kubelet unprepared it", kubelet=KUBELET)

    with pytest.raises(ClaimRefusedError):
        adopt(draft, _wish(X))

    assert not draft.holdings.allocations


def test_what_the_record_has_of_another_drivers_claim_is_left_alone() -> None:
    """Its record has the claims of every driver."""
    draft = _adopted(_wish(X))
    before = draft.book

    share(draft, _OTHER.uid, [Y])

    assert draft.book is before


def test_a_pod_that_joins_a_claim_is_known_so_that_its_cgroup_can_be() -> None:
    draft = _adopted(_wish(X))

    share(draft, _REF.uid, [Z])

    assert draft.book.claims[_REF.uid].pods == {X, Z}
    assert {X, Z} <= draft.book.pods.keys()


def test_a_record_that_says_nothing_new_changes_nothing() -> None:
    draft = _adopted(_wish(X, Y))
    before = draft.book

    share(draft, _REF.uid, [X, Y])

    assert draft.book is before


def test_a_claim_with_a_device_that_is_only_waited_for_is_not_prepared_yet() -> None:
    draft = _adopted(
        _wish(X), book_of(allocated(silicon(h0="b"), resource=HALF, pod=Y, active=True))
    )
    more = replace(_wish(X), devices={WHOLE: silicon(d0="a"), HALF: silicon(h0="b")})
    adopt(draft, more)

    assert not is_prepared(draft.book, _REF.uid, more.keys)
    assert is_prepared(draft.book, _REF.uid, _wish().keys)
