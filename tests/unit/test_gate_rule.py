"""Whose container is about to start, and whether its pod may pass."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    NOW,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    breaches,
    drafted,
    entry,
    ids,
    keys,
    lock_of,
    name,
    seen,
    silicon,
    unlocked,
    unreadable,
)
from fakes.doors import why_wait
from holdfast.model.book.book import Book, LockState, Phase
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.queue import missing, settle
from holdfast.model.gate.gate import (
    Caller,
    Passage,
    arrive,
    enter,
    is_held_from,
    locked_devices,
    told_queued,
    who_calls,
    why_queued,
)
from holdfast.model.kubelet import CheckpointEntry, KubeletView

_D0 = silicon(d0="a")
_BOTH = silicon(d0="a", d1="b")
_PASSAGE = Passage(resource=WHOLE, asked=ids("d0"), devices=_D0)
_KNOWN = Caller(pods=(X,))
_UNREADABLE = unreadable()


def test_who_waits_lacks_what_no_lock_of_its_pod_has_and_is_told_who_has_it() -> None:
    draft = drafted()
    first = allocated(_D0, pod=X, active=True)(draft)
    allocated(silicon(d1="b"), pod=Y, active=True)(draft)
    unknown = allocated(silicon(d2="c"), pod=None)(draft)
    settle(draft)
    waits = allocated(_BOTH, pod=Y)(draft)
    settle(draft)
    book = draft.book
    assert missing(book.holdings, waits, waits.keys) == keys("a")
    assert missing(book.holdings, waits, keys("b", "c")) == keys("c")
    assert told_queued(book, waits, {}) == (
        "waiting for 1 of 2 google.com/tpu: d0 is held by pod pod-x; kubelet asks again until that "
        "has ended (holdfast locks)"
    )
    for done in (first, unknown):
        assert missing(book.holdings, done, done.keys) == keys()
        assert told_queued(book, done, {}) == ""
        assert why_queued(book, done, keys()) == ""


def test_who_waits_is_told_of_the_device_by_its_own_name_for_it() -> None:
    draft = drafted()
    allocated(_D0, pod=X, active=True)(draft)
    waits = allocated(silicon(h0="a"), resource=HALF, pod=Y)(draft)
    settle(draft)
    assert told_queued(draft.book, waits, {}).startswith(
        "waiting for example.com/half: h0 is held by pod pod-x as google.com/tpu/d0; "
    )


def test_who_waits_for_what_a_person_withholds_is_told_which_device_that_is() -> None:
    draft = drafted()
    waits = allocated(_BOTH, pod=Y)(draft)
    mark = Mark(asker=Asker(uid=0, pid=1), at=NOW, reason="its fan fails")
    quarantine = Quarantine(device=name("d1"), keys=keys("b"), mark=mark)
    book = replace(draft.book, marks=Marks().with_quarantine(quarantine))
    assert " google.com/tpu: d1 is quarantined by hand: " in told_queued(book, waits, {})


def test_hardware_is_held_from_every_pod_but_the_one_that_has_all_of_it() -> None:
    held = book_of(
        allocated(_D0, pod=X, active=True), allocated(silicon(d1="b"), pod=Y, active=True), settle
    )
    assert locked_devices(held, keys("a", "b")) == (name("d0"), name("d1"))
    assert is_held_from(None, held, keys("a"))
    assert is_held_from(Y, held, keys("a"))
    assert is_held_from(X, held, keys("a", "b"))
    assert not is_held_from(X, held, keys("a"))
    assert not is_held_from(Z, held, keys("z"))
    assert is_held_from(None, held, keys("z")), "who is not known may be anybody"
    assert not is_held_from(Y, _ended(held), keys("a"))


def _ended(book: Book, state: LockState = LockState.RELEASING) -> Book:
    draft = drafted(book)
    for allocation in list(book.allocations.values()):
        draft.end(allocation, "its pod is over")
    for step in (LockState.RECLAIMING, LockState.QUARANTINED):
        if state is not LockState.RELEASING and lock_of(draft.book, "d0").state is not state:
            draft.move(name("d0"), step, "pid 7 has it open")
    return draft.book


def _foreign() -> Book:
    draft = drafted()
    draft.call_foreign(name("d0"), keys("a"), "held by pid 7 (dd) outside any pod [node open]")
    return draft.book


@pytest.mark.parametrize(
    ("entries", "pods"),
    [
        pytest.param((), (), id="none"),
        pytest.param((entry(X, "d0"),), (X,), id="one"),
        pytest.param(
            (entry(X, "d0", container="init"), entry(X, "d0")), (X,), id="one pod, two containers"
        ),
        pytest.param((entry(X, "d0"), entry(Y, "d1")), (X,), id="others do not count"),
        pytest.param((entry(X, "d0", "d1"),), (), id="more devices"),
        pytest.param((entry(X, "d0", resource=HALF),), (), id="another resource"),
        pytest.param((entry(Y, "d0"), entry(X, "d0")), (X, Y), id="several"),
    ],
)
def test_the_caller_is_whose_entry_names_exactly_these_ids(
    entries: tuple[CheckpointEntry, ...], pods: tuple[str, ...]
) -> None:
    assert who_calls(_PASSAGE, seen(*entries), Book()).pods == pods


@pytest.mark.parametrize(
    ("book", "caller"),
    [
        (Book(), Caller()),
        (book_of(allocated(_D0)), Caller(allocation=1)),
        (book_of(allocated(_D0, pod=X)), Caller(pods=(X,), allocation=1)),
        (book_of(allocated(_D0), allocated(_D0)), Caller()),
        (book_of(allocated(_D0, pod=X), allocated(_D0, pod=Y)), Caller()),
        (book_of(allocated(_BOTH, pod=X)), Caller()),
    ],
    ids=["none", "one unknown", "one known", "two unknown", "two known", "other ids"],
)
def test_without_a_checkpoint_the_caller_is_the_single_live_allocation_of_these_ids(
    book: Book, caller: Caller
) -> None:
    assert who_calls(_PASSAGE, _UNREADABLE, book) == caller


_STARTS = {
    "kubelet has it no more": ((entry(Y, "d1"),), Caller(gone=X)),
    "kubelet has it with other devices": ((entry(X, "d1"),), Caller(gone=X)),
    "kubelet gave the devices to another pod": ((entry(Y, "d0"),), Caller(gone=X)),
    "the same, and has it with other devices": ((entry(Y, "d0"), entry(X, "d1")), Caller(gone=X)),
    "kubelet gave the devices to two others": ((entry(Y, "d0"), entry(Z, "d0")), Caller(gone=X)),
    "it is its start still": ((entry(X, "d0"),), Caller(pods=(X,))),
    "kubelet gave the devices to another pod as well": (
        (entry(X, "d0"), entry(Y, "d0")),
        Caller(pods=(X, Y)),
    ),
}


@pytest.mark.parametrize(("entries", "caller"), _STARTS.values(), ids=_STARTS.keys())
def test_a_start_that_was_one_pods_is_never_anothers(
    entries: tuple[CheckpointEntry, ...], caller: Caller
) -> None:
    assert who_calls(_PASSAGE, seen(*entries), Book(), known=X) == caller


@pytest.mark.parametrize(
    "book", [Book(), book_of(allocated(_D0)), book_of(allocated(_D0, pod=Y))], ids=repr
)
def test_a_start_that_was_one_pods_stays_its_when_the_books_cannot_be_read_any_more(
    book: Book,
) -> None:
    caller = Caller(pods=(X,), remembered=True)
    assert who_calls(_PASSAGE, _UNREADABLE, book, known=X) == caller


def test_a_start_that_is_only_remembered_takes_no_allocation_that_may_be_anothers() -> None:
    """Kubelet may have given the devices on since, and that Allocate names no pod."""
    book = book_of(allocated(_D0))
    caller = Caller(pods=(X,), remembered=True)
    assert why_wait(_PASSAGE, caller, book) == "google.com/tpu/d0 is held by a pod not yet known"
    draft = drafted(book)
    assert enter(draft, _PASSAGE, caller, "free") is not None
    assert draft.book.allocations[1].pod is None
    assert draft.book.allocations[1].phase is Phase.PENDING


def test_a_start_that_nobody_allocated_is_written_down_once_and_waits_its_turn() -> None:
    """An init container has more than the main one: with reader, both would be one pod's."""
    book = book_of(allocated(_BOTH, active=True))
    draft = drafted(book)
    arrive(draft, _PASSAGE, Caller())
    arrive(draft, _PASSAGE, Caller())
    assert [each.ids for each in draft.book.queue()] == [_BOTH.keys(), _D0.keys()]
    assert lock_of(draft.book, "d0").allocation == 1
    assert draft.book.allocations[2].phase is Phase.PENDING


@pytest.mark.parametrize(
    ("book", "caller", "reason"),
    [
        (Book(), _KNOWN, None),
        (Book(), Caller(), None),
        (book_of(allocated(_D0, pod=X)), _KNOWN, None),
        (book_of(allocated(_D0, pod=X, active=True)), _KNOWN, None),
        (book_of(allocated(_D0)), _KNOWN, None),
        (book_of(allocated(_D0)), Caller(), None),
        (book_of(allocated(_D0, pod=Y)), _KNOWN, "held by pod pod-y"),
        (book_of(allocated(_D0, pod=Y)), Caller(), "held by pod pod-y"),
        (book_of(allocated(_D0), allocated(_D0)), Caller(), "held by a pod not yet known"),
        (book_of(allocated(_BOTH)), _KNOWN, "held by a pod not yet known"),
        (
            book_of(allocated(silicon(h0="a"), resource=HALF, pod=Y)),
            _KNOWN,
            "example.com/half/h0 is held by pod pod-y",
        ),
        (_ended(book_of(allocated(_D0, pod=Y))), _KNOWN, "not free of pod pod-y yet"),
        (
            _ended(book_of(allocated(_D0, pod=Y)), LockState.RECLAIMING),
            _KNOWN,
            "(reclaiming): pid 7 has it open",
        ),
        (
            _ended(book_of(allocated(_D0, pod=Y)), LockState.QUARANTINED),
            _KNOWN,
            "(quarantined): pid 7 has it open",
        ),
        (_ended(book_of(allocated(_D0, pod=X))), _KNOWN, "not free of pod pod-x yet"),
        (_foreign(), _KNOWN, "something holdfast did not grant it to: held by pid 7 (dd)"),
        (_foreign(), Caller(), "something holdfast did not grant it to"),
    ],
)
def test_a_start_waits_by_the_book_for_whoever_else_has_the_hardware(
    book: Book, caller: Caller, reason: str | None
) -> None:
    said = why_wait(_PASSAGE, caller, book)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_a_start_that_passes_is_written_down_with_what_the_kernel_showed() -> None:
    draft = drafted(book_of(allocated(_D0)))
    assert enter(draft, _PASSAGE, _KNOWN, "gate passed: not enabled") is None
    allocation = draft.book.allocations[1]
    assert (allocation.pod, allocation.phase) == (X, Phase.ACTIVE)
    assert lock_of(draft.book, "d0").pod == X
    assert draft.moves[-1].evidence == "gate passed: not enabled"


def test_a_start_that_the_book_never_heard_of_is_written_down_anew() -> None:
    """After a reboot kubelet replays its old answer, and a ledger may have been lost."""
    draft = drafted()
    assert enter(draft, _PASSAGE, _KNOWN, "passed") is None
    allocation = draft.book.allocations[1]
    assert (allocation.pod, allocation.phase, allocation.created_at) == (X, Phase.ACTIVE, NOW)
    assert lock_of(draft.book, "d0").pod == X


@pytest.mark.parametrize("other", [Y, None])
def test_a_start_that_must_wait_activates_nothing(other: str | None) -> None:
    book = book_of(allocated(_BOTH, pod=Y if other else None, active=True))
    draft = drafted(book)
    assert enter(draft, _PASSAGE, _KNOWN, "passed") is not None
    assert [each.phase for each in draft.book.allocations.values() if each.pod == X] == [
        Phase.PENDING
    ]
    assert lock_of(draft.book, "d0") == lock_of(book, "d0")


def test_who_a_start_waits_for_by_what_is_owed_is_in_the_book_that_people_see() -> None:
    """Where the disk has no room for that, the start is told so instead."""

    def owed(draft: Draft) -> None:
        allocated(silicon(h0="a"), resource=HALF, pod=Y, active=True)(draft)
        settle(draft)

    book = book_of(allocated(_D0, pod=X))
    draft = Draft(book, now=NOW, uptime=NOW, boot=BOOT, owed={owed: "catch up"})
    obstacle = enter(draft, _PASSAGE, _KNOWN, "passed")
    assert obstacle is not None
    assert [each.pod for each in obstacle.locks] == [Y]
    assert obstacle.locks == (lock_of(draft.book, "h0", HALF),)


def test_a_refused_start_keeps_its_place_in_the_queue_however_often_it_is_tried() -> None:
    draft = drafted(book_of(allocated(_D0, pod=Y, active=True)))
    for _ in range(3):
        assert enter(draft, _PASSAGE, _KNOWN, "passed") is not None
    assert [each.pod for each in draft.book.queue()] == [Y, X]


def test_init_and_main_container_share_the_lock_and_start_one_after_the_other() -> None:
    draft = drafted(book_of(allocated(_D0), allocated(_D0)))
    for _ in range(2):
        assert enter(draft, _PASSAGE, _KNOWN, "passed") is None
    assert {each.phase for each in draft.book.allocations.values()} == {Phase.ACTIVE}
    assert len(draft.book.locks) == 1


def test_after_an_unknown_caller_passed_no_second_pod_passes() -> None:
    draft = drafted()
    enter(draft, _PASSAGE, Caller(), "passed")
    draft.allocate(WHOLE, _D0)
    settle(draft)
    assert why_wait(_PASSAGE, Caller(), draft.book) is not None
    assert enter(draft, _PASSAGE, Caller(), "passed") is not None
    assert not breaches(draft.book)


@pytest.mark.parametrize("state", [Phase.PENDING, Phase.ACTIVE])
def test_an_unknown_caller_never_takes_a_lock_from_anybody(state: Phase) -> None:
    book = book_of(allocated(_D0, pod=Y, active=state is Phase.ACTIVE))
    draft = drafted(book)
    assert enter(draft, _PASSAGE, Caller(), "passed") is not None
    assert lock_of(draft.book, "d0") == lock_of(book, "d0")


def test_a_device_that_grew_since_its_allocate_is_locked_as_it_is_now() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X)))
    grown = Passage(resource=WHOLE, asked=ids("d0"), devices=silicon(d0="ab"))
    assert enter(draft, grown, _KNOWN, "passed") is None
    assert lock_of(draft.book, "d0").keys == keys("a", "b")
    assert not unlocked(draft.book)


# What a start may and may not do while it is not known, or not certain, whose it is.

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
