"""The elementary moves of a book, and who comes first when several want the same hardware."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    breaches,
    drafted,
    keys,
    lock_of,
    name,
    silicon,
)
from holdfast.errors import LedgerError
from holdfast.model.book.book import NEXT, Allocation, Book, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import sentence
from holdfast.model.book.queue import first_before, settle
from holdfast.model.cards import card_key, part_key, replica_key
from holdfast.model.gate.gate import Rights, said_of, why_not_yet
from holdfast.model.ids import BootId, DeviceId, HardwareKey, PodUid, ResourceName

_GPU, _MIG = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/mig-1g.5gb")
_D0 = silicon(d0="a")
_D1 = silicon(d1="b")
_BOTH = silicon(d0="a", d1="b")
_LATER = BootId("boot-2")
_WAY = {
    LockState.HELD: (),
    LockState.RELEASING: (LockState.RELEASING,),
    LockState.RECLAIMING: (LockState.RELEASING, LockState.RECLAIMING),
    LockState.QUARANTINED: (LockState.RELEASING, LockState.RECLAIMING, LockState.QUARANTINED),
}


def _at(state: LockState) -> Draft:
    """Return a draft in which d0 has come to *state*."""
    draft = drafted()
    if state is LockState.FOREIGN:
        draft.call_foreign(name("d0"), keys("a"), "pid 1")
        return draft
    draft.allocate(WHOLE, _D0, pod=X)
    settle(draft)
    for step in _WAY[state]:
        draft.move(name("d0"), step, "on the way")
    return draft


def test_a_draft_without_moves_is_the_very_book_it_started_from() -> None:
    book = book_of(allocated(_D0))
    draft = drafted(book)
    settle(draft)
    assert draft.book is book
    assert draft.moves == ()


@pytest.mark.parametrize("state", [*_WAY, LockState.FOREIGN])
@pytest.mark.parametrize("target", list(LockState))
def test_only_the_arrows_of_the_table_can_be_walked(state: LockState, target: LockState) -> None:
    draft = _at(state)
    if target in NEXT[state]:
        draft.move(name("d0"), target, "seen")
        assert draft.moves[-1].after is target
        assert (name("d0") in draft.book.locks) is (target is not LockState.FREE)
    else:
        with pytest.raises(LedgerError, match=f"cannot move {name('d0')} from"):
            draft.move(name("d0"), target, "seen")


def test_a_device_whose_lock_has_other_hardware_is_not_locked_over_it() -> None:
    draft = _at(LockState.HELD)
    other = draft.allocate(WHOLE, silicon(d0="z"), pod=Y)
    with pytest.raises(LedgerError, match="cannot lock"):
        draft.lock(name("d0"), keys("z"), other, "the same name, other keys")
    with pytest.raises(LedgerError, match="cannot lock"):
        draft.call_foreign(name("d0"), keys("z"), "the same name, other keys")


def test_each_move_has_a_fence_of_its_own_that_grows_and_never_repeats() -> None:
    draft = _at(LockState.QUARANTINED)
    draft.allocate(WHOLE, _D1, pod=Y)
    settle(draft)
    draft.note(lock_of(draft.book, "d1"), "passed")
    fences = [move.fence for move in draft.moves]
    assert all(one < other for one, other in pairwise(fences))
    assert draft.book.fence == fences[-1]


def test_a_fence_does_not_start_again_when_every_lock_is_gone() -> None:
    draft = _at(LockState.RELEASING)
    draft.move(name("d0"), LockState.FREE, "free")
    draft.end(next(iter(draft.book.allocations.values())), "over")
    book = draft.book
    assert book.locks == {}
    again = drafted(book)
    again.allocate(WHOLE, _D0)
    settle(again)
    assert again.moves[0].fence > draft.moves[-1].fence
    assert next(iter(again.book.allocations)) > book.last_allocation


def test_a_lock_goes_to_another_allocation_of_the_same_pod_when_one_ends() -> None:
    draft = drafted(book_of(allocated(_BOTH, pod=X), allocated(_D0, pod=X)))
    draft.end(draft.book.allocations[1], "merged")
    assert lock_of(draft.book, "d0").state is LockState.HELD
    assert lock_of(draft.book, "d0").allocation == 2
    assert lock_of(draft.book, "d1").state is LockState.RELEASING


def test_a_pod_once_known_is_written_on_its_locks() -> None:
    draft = drafted(book_of(allocated(_D0)))
    draft.identify(draft.book.allocations[1], X)
    assert lock_of(draft.book, "d0").pod == X
    assert X in draft.book.pods


@pytest.mark.parametrize(
    ("active", "boot", "told"),
    [
        (False, BOOT, ["moved", "no container has started on it"]),
        (False, _LATER, ["moved", "no container has started on it"]),
        (True, BOOT, ["moved"]),
        (True, _LATER, ["moved", "what had started on it ended with the reboot"]),
    ],
)
def test_a_withdrawn_allocation_frees_what_nothing_can_run_on_and_the_history_says_why(
    active: bool, boot: BootId, told: list[str]
) -> None:
    draft = drafted(book_of(allocated(_D0, pod=X, active=active)), boot=boot)
    draft.withdraw(draft.book.allocations[1], "moved")
    assert [move.evidence for move in draft.moves] == told
    assert (name("d0") in draft.book.locks) is (len(told) == 1)


# Who comes first.


def test_two_pods_that_ask_crosswise_for_the_same_hardware_do_not_deadlock() -> None:
    """Each has what the other needs, until it is known whose the Allocations are."""
    draft = drafted()
    ours = [(WHOLE, silicon(w0="a")), (HALF, silicon(h1="b"))]
    theirs = [(HALF, silicon(h0="a")), (WHOLE, silicon(w1="b"))]
    mine_first = draft.allocate(*ours[0])
    settle(draft)
    theirs_first = draft.allocate(*theirs[1])
    settle(draft)
    mine_second = draft.allocate(*ours[1])
    theirs_second = draft.allocate(*theirs[0])
    settle(draft)
    assert {lock.allocation for lock in draft.book.locks.values()} == {
        mine_first.id,
        theirs_first.id,
    }
    draft.identify(mine_first, X)
    draft.identify(theirs_first, Y)
    draft.identify(mine_second, X)
    draft.identify(theirs_second, Y)
    settle(draft)
    assert {lock.pod for lock in draft.book.locks.values()} == {X}
    assert not breaches(draft.book)


def test_an_older_allocation_takes_the_lock_of_a_younger_one_whose_gate_has_not_passed() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X), allocated(_D1, pod=Y)))
    draft.allocate(WHOLE, _D1, pod=X)
    settle(draft)
    assert lock_of(draft.book, "d1").pod == X
    assert draft.moves[-1].evidence == "the older Allocation goes first"


def test_an_older_allocation_never_takes_a_lock_whose_gate_has_passed() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X), allocated(_D1, pod=Y, active=True)))
    draft.allocate(WHOLE, _D1, pod=X)
    settle(draft)
    assert lock_of(draft.book, "d1").pod == Y


def test_a_lock_is_not_taken_for_one_half_while_the_other_half_has_been_started_on() -> None:
    """A pod waits to start on the whole device, and has started on a half by another name."""
    draft = drafted(
        book_of(
            allocated(_D0, pod=X),
            allocated(silicon(w="bc"), pod=Y),
            allocated(silicon(h1="b"), resource=HALF, pod=Y, active=True),
        )
    )
    assert lock_of(draft.book, "h1", HALF).keys == keys("b")
    other = drafted(book_of(allocated(_D0, pod=X), allocated(silicon(w="bc"), pod=Y)))
    other.activate(other.allocate(HALF, silicon(h1="b"), pod=Y))
    settle(other)
    other.allocate(HALF, silicon(h2="c"), pod=X)
    settle(other)
    assert lock_of(other.book, "w").pod == Y
    assert lock_of(other.book, "w").keys == keys("b", "c")


def test_a_whole_device_takes_neither_half_while_one_has_started() -> None:
    draft = drafted(
        book_of(
            allocated(_D0, pod=X),
            allocated(silicon(h1="b"), resource=HALF, pod=Y),
            allocated(silicon(h2="c"), resource=HALF, pod=Z, active=True),
        )
    )
    draft.allocate(WHOLE, silicon(w="bc"), pod=X)
    settle(draft)
    assert name("w") not in draft.book.locks
    assert lock_of(draft.book, "h1", HALF).pod == Y


def test_a_lock_taken_from_a_younger_one_has_the_keys_that_the_older_one_asks_for() -> None:
    draft = drafted(book_of(allocated(_D1, pod=X), allocated(silicon(d0="a"), pod=Y)))
    draft.allocate(WHOLE, silicon(d0="ac"), pod=X)
    settle(draft)
    assert (lock_of(draft.book, "d0").pod, lock_of(draft.book, "d0").keys) == (X, keys("a", "c"))


def test_a_device_that_grew_while_a_former_pod_has_a_part_of_it_waits_as_a_whole() -> None:
    """The new part would come into a lock that is another pod's, or of a former start."""
    former = drafted(book_of(allocated(silicon(d0="z"), pod=Y, active=True)))
    ended = drafted(book_of(allocated(silicon(d0="z"), pod=X)))
    ended.end(ended.book.allocations[1], "its pod is over")
    for draft, new in ((former, silicon(d0="a")), (ended, silicon(d0="az"))):
        waiting = draft.allocate(WHOLE, new, pod=X)
        settle(draft)
        assert draft.locks.keys() == {name("d0")}
        assert lock_of(draft.book, "d0").keys == keys("z")
        assert first_before(draft.book, waiting, keys("a")) is None
        rights = Rights(keys=keys("a"), own=frozenset(), started=frozenset(), queued=(waiting,))
        told = why_not_yet(rights, draft.book)
        assert told is not None
        assert told.text == "a waits behind an older Allocation"
        (device,) = waiting.names()
        said, kept = said_of(told, [device], lambda _: None, draft.book)
        assert sentence(said).startswith(f"{device[0]} is for an older Allocation, which came ")
        assert kept == 1


def test_a_lock_on_which_an_unknown_pod_has_started_is_not_taken_by_an_older_start() -> None:
    draft = drafted(book_of(allocated(_D0), allocated(_D0)))
    older, younger = draft.book.allocations.values()
    draft.hand(lock_of(draft.book, "d0"), younger, "the process scan shows that it is held by it")
    draft.activate(older)
    draft.activate(younger)
    settle(draft)
    assert lock_of(draft.book, "d0").allocation == younger.id


@pytest.mark.parametrize(
    "changes", [{"allocation": 99}, {"state": LockState.RECLAIMING}], ids=["unknown", "ending"]
)
def test_only_a_lock_of_a_known_allocation_that_has_not_ended_is_taken(
    changes: dict[str, Any],
) -> None:
    book = book_of(allocated(_D0, pod=X), allocated(_D1, pod=Y))
    lock = replace(lock_of(book, "d1"), **changes)
    draft = drafted(replace(book, locks={**book.locks, lock.device: lock}))
    draft.allocate(WHOLE, _D1, pod=X)
    settle(draft)
    assert lock_of(draft.book, "d1") == lock


_PODS = st.sampled_from([X, Y, Z, None])
_WISHES = st.lists(
    st.tuples(
        _PODS,
        st.sampled_from(
            [
                (WHOLE, silicon(w0="ab")),
                (WHOLE, silicon(w1="cd")),
                (WHOLE, silicon(w0="ab", w1="cd")),
                (HALF, silicon(h0="a")),
                (HALF, silicon(h1="b")),
                (HALF, silicon(h1="b", h2="c")),
                (HALF, silicon(h3="d")),
            ]
        ),
    ),
    max_size=8,
)


@given(_WISHES)
def test_settling_locks_no_key_twice_and_once_more_changes_nothing(
    wishes: list[tuple[PodUid | None, tuple[object, object]]],
) -> None:
    draft = drafted()
    for pod, (resource, devices) in wishes:
        draft.allocate(resource, devices, pod=pod)  # type: ignore[arg-type]
        settle(draft)
        assert not breaches(draft.book)
    again = drafted(draft.book)
    settle(again)
    assert again.moves == ()


@given(_WISHES)
def test_the_first_in_the_queue_always_has_all_it_asked_for(
    wishes: list[tuple[PodUid | None, tuple[object, object]]],
) -> None:
    """Somebody can always start, so the queue as a whole never stands still."""
    draft = drafted()
    for pod, (resource, devices) in wishes:
        draft.allocate(resource, devices, pod=pod)  # type: ignore[arg-type]
    settle(draft)
    book = draft.book
    if not book.allocations:
        return
    first = book.queue()[0]
    own = [
        each
        for each in book.queue()
        if each.id == first.id or (first.pod and each.pod == first.pod)
    ]
    for each in own:
        for key in each.keys:
            lock = book.lock_on(frozenset({key}))
            assert lock is not None
            assert lock.allocation in {mine.id for mine in own}


def test_a_pod_that_has_started_on_another_device_still_yields_one_that_it_has_not() -> None:
    draft = drafted()
    draft.allocate(HALF, silicon(h9="z"), pod=Y)
    draft.activate(draft.allocate(WHOLE, silicon(d1="b"), pod=X))
    draft.allocate(WHOLE, _D0, pod=X)
    settle(draft)
    assert lock_of(draft.book, "d0").pod == X
    draft.allocate(WHOLE, _D0, pod=Y)  # older, for its pod stands where its oldest Allocation does
    settle(draft)
    assert lock_of(draft.book, "d0").pod == Y
    assert lock_of(draft.book, "d1").pod == X


def test_a_lock_that_is_handed_on_after_a_reboot_is_of_the_new_boot() -> None:
    book = book_of(allocated(_D0, pod=X), allocated(_D0, pod=Y))
    draft = drafted(book, boot=BootId("boot-2"))
    draft.hand(
        lock_of(book, "d0"),
        book.allocations[2],
        "the process scan shows that it is held by another",
    )
    assert lock_of(draft.book, "d0").boot == BootId("boot-2")


def test_a_move_carries_the_boot_in_which_the_lock_was_last_given() -> None:
    book = book_of(allocated(_D0, pod=X))
    draft = drafted(book, boot=BootId("boot-2"))
    draft.note(lock_of(book, "d0"), "passed after the reboot")
    assert lock_of(draft.book, "d0").boot == BootId("boot-2")
    assert isinstance(draft.book, Book)


def test_a_lock_says_whether_a_container_may_have_started_on_its_device() -> None:
    draft = drafted()
    waiting = draft.allocate(WHOLE, _BOTH)
    settle(draft)
    assert not draft.locks[name("d0")].started
    draft.end(waiting, "no pod was ever named")
    assert not draft.locks[name("d0")].started
    running = drafted()
    running.activate(running.allocate(WHOLE, _D0))
    settle(running)
    assert running.locks[name("d0")].started, (
        "it was taken over from a checkpoint that had it running"
    )
    later = drafted()
    allocation = later.allocate(WHOLE, _D0)
    settle(later)
    later.activate(allocation)
    later.end(later.holdings.allocations[allocation.id], "its pod is over")
    assert later.locks[name("d0")].started


def test_a_lock_that_is_found_to_be_held_after_all_counts_as_started_on() -> None:
    draft = drafted()
    draft.end(_settled(draft), "no pod was ever named")
    draft.move(name("d0"), LockState.HELD, "kubelet counts the pod")
    assert draft.locks[name("d0")].started


def _settled(draft: Draft) -> Allocation:
    allocation = draft.allocate(WHOLE, _D0)
    settle(draft)
    return allocation


def test_the_queue_and_the_rank_of_each_of_it_agree() -> None:
    book = book_of(
        allocated(silicon(d0="a"), active=True),
        allocated(silicon(d1="b"), pod=X),
        allocated(silicon(d2="c")),
        allocated(silicon(d3="d"), pod=Y, active=True),
        allocated(silicon(d4="e"), pod=X),
        allocated(silicon(d5="f"), pod=Y),
    )
    queue = book.queue()
    assert queue == sorted(queue, key=book.holdings.rank)
    assert [each.id for each in queue] == [1, 2, 5, 3, 4, 6]


@pytest.mark.parametrize(
    ("id_", "resource", "key"),
    [("H", _GPU, card_key("H")), ("MIG-1", _MIG, part_key("H", "1/MIG-1"))],
    ids=["all of it", "a slice"],
)
def test_what_a_younger_pod_has_of_a_card_in_two_ways_yields_as_one(
    id_: str, resource: ResourceName, key: HardwareKey
) -> None:
    """The settings began to share the card while the pod was admitted."""
    share = {DeviceId("H::0"): frozenset({replica_key("H", 0)})}
    book = book_of(
        allocated(silicon(d0="a"), pod=Y),
        allocated({DeviceId(id_): frozenset({key})}, resource=resource, pod=X),
        allocated(share, resource=_GPU, pod=X),
    )
    assert not breaches(book)
    draft = drafted(book)
    draft.allocate(_GPU, share, pod=Y)
    settle(draft)
    assert not breaches(draft.book)
    assert {lock.pod for lock in draft.book.locks.values()} == {Y}
