"""What a person may ask for by hand, what they are told, and what the history keeps of it."""

from collections.abc import Callable
from typing import Any

import pytest

from fakes.books import (
    HALF,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    drafted,
    inventory,
    keys,
    lock_of,
    name,
    silicon,
)
from holdfast.errors import RequestRefusedError
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.byhand import (
    RemovalFacts,
    Target,
    drain,
    quarantine,
    target,
    undrain,
    unquarantine,
    why_not_removable,
)
from holdfast.model.book.claims import Wish, end_claim, enlist
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark
from holdfast.model.book.queue import settle
from holdfast.model.dra.claims import LeavingFacts, why_driver_stays
from holdfast.model.gate.gate import Caller, Passage, rights_of_start, why_not_yet
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceId
from holdfast.model.kubelet import ClaimEntry

_D0 = silicon(d0="a")
_NODE = inventory({WHOLE: silicon(d0="a", d1="b"), HALF: silicon(h0="a", d1="b")})
_MARK = Mark(asker=Asker(uid=1000, pid=77), at=0.0, reason="ECC errors")
_WHO = "asked by uid 1000, pid 77 at 1970-01-01 00:00:00 UTC"
_TOLD = f"ECC errors ({_WHO})"
_WHAT = Target(device=name("d0"), keys=keys("a"))
_ENTRY = ClaimEntry(
    claim=ClaimRef("team", ClaimUid("claim-1"), "one"),
    pods=frozenset({X}),
    devices={"holdfast.dev": ()},
)
_TWIN = Target(device=name("h0", HALF), keys=keys("a"))


_Step = Callable[[Draft], object]


def _quarantined(draft: Draft) -> None:
    quarantine(draft, _WHAT, _MARK)


def _drained(draft: Draft) -> None:
    drain(draft, [_WHAT], _MARK)


def _stuck(draft: Draft) -> None:
    """Leave d0 QUARANTINED by a reclaim of X's that did not help."""
    allocation = allocated(_D0, pod=X)(draft)
    settle(draft)
    draft.end(allocation, "over")
    draft.move(name("d0"), LockState.RECLAIMING, "ending pid 7")
    draft.move(name("d0"), LockState.QUARANTINED, "pid 7 has it open")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("d1", "which device d1 is: example.com/half/d1 and google.com/tpu/d1; name it in full"),
        ("d7", "cannot find device d7: this node has .*google.com/tpu/d0"),
        ("tpu/d0", "cannot find device tpu/d0"),
        ("", "cannot find device"),
    ],
)
def test_a_name_of_several_devices_or_of_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(RequestRefusedError, match=complaint):
        target(text, _NODE, Book())


def test_of_a_node_without_devices_none_is_named() -> None:
    with pytest.raises(RequestRefusedError, match="cannot find device d0: this node has none$"):
        target("d0", inventory({}), Book())


def test_a_quarantine_withholds_moves_no_lock_and_is_in_the_history() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X, active=True)))
    before = lock_of(draft.book, "d0")
    text = quarantine(draft, _WHAT, _MARK)
    assert (
        text
        == "google.com/tpu/d0 is quarantined: no new pod gets it; pod pod-x has it and keeps it"
    )
    assert lock_of(draft.book, "d0") == before
    (move,) = draft.moves
    assert (move.before, move.after, move.pod) == (LockState.HELD, LockState.HELD, X)
    assert move.evidence == f"quarantined by hand: {_TOLD}"
    assert draft.book.fence == move.fence > before.fence


def test_lifting_a_quarantine_hands_the_device_to_who_waited() -> None:
    draft = drafted(book_of(_quarantined, allocated(_D0, pod=X)))
    assert draft.book.locks == {}
    lifted = unquarantine(draft, _WHAT, _MARK)
    assert lifted.text == "google.com/tpu/d0 is not quarantined by hand any more"
    assert lifted.retry is None
    assert lock_of(draft.book, "d0").pod == X
    assert draft.moves[0].evidence == (f"unquarantine, {_TOLD}: not quarantined by hand any more")


def test_where_a_pod_has_the_device_there_is_nothing_to_try_again() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X, active=True), _quarantined))
    assert lock_of(draft.book, "d0").state is LockState.HELD
    assert unquarantine(draft, _WHAT, _MARK).retry is None


def test_an_automatic_quarantine_is_not_lifted_but_tried_again() -> None:
    draft = drafted(book_of(_stuck))
    lifted = unquarantine(draft, _WHAT, _MARK)
    assert lifted.retry == X
    assert "reclaimed again now, and withheld until it is free" in lifted.text
    assert lock_of(draft.book, "d0").state is LockState.QUARANTINED, "what holds it is still there"
    (move,) = draft.moves
    assert move.evidence.startswith(f"unquarantine, {_TOLD}: reclaimed again now")


def test_of_several_locks_on_a_device_a_person_means_the_one_that_is_shown() -> None:
    """A pod has one half of it, and the other half could not be freed of another pod."""
    draft = drafted(book_of(allocated(silicon(h1="A"), resource=HALF, pod=Y, active=True), _stuck))
    whole = Target(device=name("w"), keys=keys("A", "a"))
    assert unquarantine(draft, whole, _MARK).retry == X
    assert "keeps it" not in quarantine(draft, whole, _MARK)


def test_a_person_can_trust_a_device_again_that_was_unhealthy() -> None:
    draft = drafted()
    text = unquarantine(draft, _WHAT, _MARK, forgiven=("Xid 48", "Xid 64")).text
    assert text == "google.com/tpu/d0 is trusted again despite Xid 48, Xid 64"


def test_who_lets_go_of_what_is_quarantined_is_not_said_to_keep_it() -> None:
    draft = drafted(book_of(_stuck))
    assert quarantine(draft, _WHAT, _MARK) == "google.com/tpu/d0 is quarantined: no new pod gets it"


@pytest.mark.parametrize(
    ("steps", "what", "complaint"),
    [
        ((), _WHAT, r"it is not quarantined \(its lock is free\)"),
        ((allocated(_D0, pod=X),), _WHAT, r"it is not quarantined \(its lock is held\)"),
        ((_drained,), _WHAT, r"it is not quarantined \(its lock is free\)"),
        ((_quarantined,), _TWIN, "google.com/tpu/d0 is quarantined, which is the same hardware"),
    ],
    ids=["free", "held", "draining", "under another name"],
)
def test_what_is_not_quarantined_cannot_be_unquarantined_and_nothing_is_written(
    steps: tuple[_Step, ...], what: Target, complaint: str
) -> None:
    draft = drafted(book_of(*steps))
    before = draft.book
    with pytest.raises(RequestRefusedError, match=complaint):
        unquarantine(draft, what, _MARK)
    assert draft.book == before
    assert draft.moves == ()


def test_who_lifts_one_of_two_marks_is_told_of_the_other() -> None:
    draft = drafted(book_of(_quarantined, _drained))
    assert "still withheld: holdfast is draining" in unquarantine(draft, _WHAT, _MARK).text
    draft = drafted(book_of(_quarantined, lambda draft: quarantine(draft, _TWIN, _MARK)))
    text = unquarantine(draft, _WHAT, _MARK).text
    assert "still withheld: example.com/half/h0 is the same hardware" in text
    draft = drafted(book_of(_quarantined, _drained))
    assert undrain(draft, [_WHAT], _MARK) == (
        "holdfast is not draining any more; still quarantined by hand: google.com/tpu/d0"
    )


def test_a_drain_is_in_the_history_of_each_device_and_so_is_its_end() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X, active=True)))
    both = [_WHAT, Target(device=name("d1"), keys=keys("b"))]
    drain(draft, both, _MARK)
    assert [(move.device, move.after) for move in draft.moves] == [
        (name("d0"), LockState.HELD),
        (name("d1"), LockState.FREE),
    ]
    assert {move.evidence for move in draft.moves} == {f"draining: {_TOLD}"}
    assert undrain(draft, both, _MARK) == "holdfast is not draining any more"
    assert {move.evidence for move in draft.moves[2:]} == {f"draining ended: {_TOLD}"}
    assert not draft.book.marks


def test_a_drain_of_a_drained_node_keeps_the_name_of_who_asked_first() -> None:
    draft = drafted(book_of(_drained))
    later = Mark(asker=Asker(uid=0, pid=5), at=1.0)
    assert drain(draft, [_WHAT], later) == f"holdfast is draining already: {_TOLD}"
    assert draft.book.marks.drain == _MARK
    assert draft.moves == ()


def test_what_is_not_drained_cannot_be_undrained() -> None:
    with pytest.raises(RequestRefusedError, match="holdfast is not draining"):
        undrain(drafted(), [_WHAT], _MARK)


def test_a_mark_without_a_reason_says_who_and_when() -> None:
    assert str(Mark(asker=Asker(uid=1000, pid=77), at=0.0)) == _WHO


def _foreign(draft: Draft) -> None:
    draft.call_foreign(name("d0"), keys("a"), "pid 9 (dd)")


def _released(draft: Draft) -> None:
    draft.end(next(iter(draft.book.allocations.values())), "over")


@pytest.mark.parametrize(
    ("steps", "others", "expected"),
    [
        ((), {}, []),
        ((_foreign,), {}, []),
        ((_quarantined,), {}, []),
        (
            (allocated(_D0, pod=X, active=True),),
            {},
            ["google.com/tpu/d0 is held by pod pod-x"],
        ),
        (
            (allocated(_D0, pod=X), settle, _released),
            {},
            ["google.com/tpu/d0 is not free of pod pod-x yet (releasing): over"],
        ),
        (
            (_stuck,),
            {},
            ["google.com/tpu/d0 is not free of pod pod-x yet (quarantined): pid 7 has it open"],
        ),
        (
            (_drained, allocated(_D0, pod=Y)),
            {},
            ["google.com/tpu/d0 is waited for by pod pod-y: delete the pod"],
        ),
        (
            (),
            {"offered": (name("d0"),)},
            ["kubelet is still told that google.com/tpu/d0 is Healthy"],
        ),
        ((), {"claims": ("kubelet has claim x",)}, ["kubelet has claim x"]),
        ((), {"problem": "no such file"}, ["kubelet's checkpoint cannot be read: no such file"]),
        ((), {"looked": False}, ["holdfast has just started and has not scanned the node yet"]),
    ],
    ids=[
        "nothing",
        "foreign",
        "quarantined by hand",
        "held",
        "releasing",
        "quarantined",
        "awaited",
        "offered",
        "needed by kubelet for a claim",
        "unreadable",
        "starting",
    ],
)
def test_the_plugin_can_be_removed_when_no_pod_needs_it(
    steps: tuple[_Step, ...], others: dict[str, Any], expected: list[str]
) -> None:
    book = book_of(*steps, _drained)
    facts = RemovalFacts(book=book, **others)
    assert list(why_not_removable(facts)) == expected


def test_a_node_that_is_not_drained_is_never_ready_for_the_removal() -> None:
    assert why_not_removable(RemovalFacts(book=Book())) == ("holdfast is not draining",)


def test_a_claim_that_has_or_waits_for_a_device_is_named_before_the_removal() -> None:
    wish = Wish(
        ref=ClaimRef("team", ClaimUid("claim-1"), "one"),
        pods={X: "train"},
        devices={name("d0").resource: _D0},
    )
    draft = drafted(book_of(_drained))
    assert enlist(draft, wish) is None
    facts = RemovalFacts(book=draft.book)
    whose = "pod team/train (pod-x) by claim team/one"
    assert why_not_removable(facts) == (f"{name('d0')} is waited for by {whose}: delete the pod",)
    undrain(draft, [_WHAT], _MARK)
    drain(draft, [_WHAT], _MARK)
    assert why_not_removable(RemovalFacts(book=draft.book)) == (f"{name('d0')} is held by {whose}",)
    assert quarantine(draft, _WHAT, _MARK).endswith(f"{whose} has not started on it, and waits")
    end_claim(draft, wish.ref.uid, "kubelet unprepared it")
    assert why_not_removable(RemovalFacts(book=draft.book)) == ()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (LeavingFacts(driver="holdfast.dev"), ()),
        (LeavingFacts(driver="other.dev", entries=(_ENTRY,)), ()),
        (
            LeavingFacts(driver="holdfast.dev", entries=(_ENTRY,)),
            ("kubelet has claim team/one (claim-1) prepared by holdfast.dev: delete its pods",),
        ),
        (
            LeavingFacts(driver="holdfast.dev", unread="permission denied"),
            ("it is unknown which claims kubelet has prepared: permission denied",),
        ),
        (
            LeavingFacts(driver="holdfast.dev", offered=("tpu-0",)),
            ("the scheduler may still give tpu-0 to a claim",),
        ),
        (
            LeavingFacts(driver="holdfast.dev", offered=None),
            ("it is unknown which devices the scheduler may still give to claims",),
        ),
    ],
)
def test_a_dra_driver_leaves_once_kubelet_and_the_scheduler_can_do_without_it(
    facts: LeavingFacts, expected: tuple[str, ...]
) -> None:
    assert why_driver_stays(facts) == expected


def test_who_has_not_started_on_what_is_quarantined_is_not_said_to_keep_it() -> None:
    draft = drafted(book_of(allocated(silicon(d0="a"), pod=X)))
    told = quarantine(draft, _WHAT, _MARK)
    asked = {DeviceId("d0"): keys("a")}
    passage = Passage(resource=WHOLE, asked=frozenset(asked), devices=asked)
    waits = why_not_yet(rights_of_start(passage, Caller(pods=(X,)), draft.book), draft.book)
    assert waits is not None
    assert waits.withheld
    assert told.endswith("has not started on it, and waits")
