"""May a device be released by hand, and which processes a person's word is enough to end."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, INIT, KUBELET, SHIM, X, Y, device_lock, name
from fakes.ending import SATISFIED, otherwise
from holdfast.model.book.book import ClaimRecord, LockState, PodRecord
from holdfast.model.ids import ClaimRef, ClaimUid, ProcessId
from holdfast.model.reclaim.ending import (
    RUNTIMES,
    SHIMS,
    Grounds,
    Member,
    Parent,
    RuntimeState,
    why_spare,
)
from holdfast.model.reclaim.handrelease import HandFacts, judge_by_hand
from holdfast.model.use.holders import Sandbox

_ENDING = (LockState.RELEASING, LockState.RECLAIMING, LockState.QUARANTINED)
_POD = PodRecord(uid=X, boot=BOOT, inode=7, namespace="default", name="train")
_LOCK = device_lock(name("d0"), "a", state=LockState.RELEASING, fence=5, pod=X, evidence="over")
_OVER = HandFacts(device=name("d0"), lock=_LOCK, pod=_POD, shown=5)


@pytest.mark.parametrize("state", _ENDING)
def test_what_is_left_of_a_pod_that_is_over_may_be_ended_on_a_persons_word(
    state: LockState,
) -> None:
    verdict = judge_by_hand(replace(_OVER, lock=replace(_LOCK, state=state)))
    assert verdict.grounds is Grounds.RELEASE
    assert verdict.refusal == ""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"lock": None}, "is free"),
        ({"lock": replace(_LOCK, state=LockState.FOREIGN, pod=None)}, "end that yourself"),
        (
            {"lock": replace(_LOCK, state=LockState.HELD, pod=None)},
            "it becomes free by itself when kubelet's checkpoint names its pod",
        ),
        (
            {"lock": replace(_LOCK, pod=None)},
            "it becomes free by itself when every process of the node can be seen",
        ),
        ({"pod": None}, "it is not known whose"),
        ({"shown": 4}, "has changed since it was shown"),
    ],
)
@pytest.mark.parametrize("typed", [None, "train"])
def test_some_things_no_word_is_enough_for(
    changed: dict[str, Any], reason: str, typed: str | None
) -> None:
    verdict = judge_by_hand(replace(_OVER, typed=typed, **changed))
    assert verdict.grounds is None
    assert reason in verdict.refusal
    assert not verdict.forced


_CLAIM = ClaimRecord(
    ref=ClaimRef("team", ClaimUid("claim-1"), "one"), pods=frozenset({X}), boot=BOOT
)


@pytest.mark.parametrize("state", [LockState.HELD, *_ENDING])
@pytest.mark.parametrize("typed", [None, "train"])
def test_what_a_claim_has_that_kubelet_has_not_unprepared_is_released_by_no_word(
    state: LockState, typed: str | None
) -> None:
    lock = replace(_LOCK, state=state, claim=_CLAIM.ref.uid)
    facts = replace(_OVER, lock=lock, claim=_CLAIM, holder="pod train by claim one", typed=typed)
    verdict = judge_by_hand(facts)
    assert verdict.grounds is None
    assert not verdict.forced
    assert verdict.refusal == (
        f"{_OVER.device} is held by pod train by claim one: delete the pods that use the claim, "
        "and kubelet unprepares it; where kubelet has lost the claim, delete the claim too"
    )


@pytest.mark.parametrize(
    ("typed", "ends", "refusal"),
    [
        (None, False, "is held by pod train by claim one, and kubelet has no record of the claim"),
        ("other", False, "belongs to pod default/train (pod-x), not to other"),
        ("train", True, ""),
    ],
)
def test_a_claim_that_kubelet_has_forgotten_is_ended_for_who_names_its_pod(
    typed: str | None, ends: bool, refusal: str
) -> None:
    lock = replace(_LOCK, state=LockState.HELD, claim=_CLAIM.ref.uid)
    claim = replace(_CLAIM, forgotten=True)
    facts = replace(_OVER, lock=lock, claim=claim, holder="pod train by claim one", typed=typed)
    verdict = judge_by_hand(facts)
    assert (verdict.ends_claim, verdict.forced) == (ends, not ends)
    assert (verdict.grounds is Grounds.FORCE) is ends
    assert refusal in verdict.refusal


def test_what_is_left_of_an_earlier_allocation_of_a_claim_is_released_as_of_one_that_is_over() -> (
    None
):
    lock = replace(_LOCK, claim=_CLAIM.ref.uid)
    claim = replace(_CLAIM, pods=frozenset({Y}), former=frozenset({X}))
    verdict = judge_by_hand(replace(_OVER, lock=lock, claim=claim))
    assert (verdict.grounds, verdict.ends_claim) == (Grounds.RELEASE, False)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, ""),
        ({"at_work": "its shim lives"}, "is still running: its shim lives"),
        ({"counted": True}, "kubelet counts pod default/train"),
        ({"counted": None}, "kubelet gave no answer"),
    ],
)
def test_what_is_left_of_a_claim_that_is_over_may_be_ended_by_the_guards_of_any_pod(
    changed: dict[str, Any], refusal: str
) -> None:
    lock = replace(_LOCK, claim=_CLAIM.ref.uid)
    for forgotten in (False, True):  # kubelet has no record of it any more in any case
        over = replace(_CLAIM, over_at=1.0, forgotten=forgotten)
        verdict = judge_by_hand(replace(_OVER, lock=lock, claim=over, **changed))
        assert verdict.grounds is (None if refusal else Grounds.RELEASE)
        assert refusal in verdict.refusal


def test_where_nothing_was_shown_the_lock_counts_as_it_is() -> None:
    """So a person is told what a release would do."""
    assert judge_by_hand(replace(_OVER, shown=None)).grounds is Grounds.RELEASE


def test_of_a_pod_whose_record_is_lost_it_is_not_known_whose_the_device_is() -> None:
    told = judge_by_hand(replace(_OVER, pod=None)).refusal
    assert "it becomes free by itself when kubelet's checkpoint names its pod" in told


def test_a_release_by_hand_says_in_plain_words_why_it_frees_nothing() -> None:
    foreign = replace(_LOCK, state=LockState.FOREIGN, pod=None, evidence="held by pid 7 (python)")
    assert judge_by_hand(replace(_OVER, lock=foreign)).refusal == (
        f"{_OVER.device} is in use by something that holdfast did not grant it to: "
        "held by pid 7 (python); end that yourself"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"counted": True}, "kubelet counts pod default/train"),
        ({"counted": None}, "kubelet gave no answer"),
        ({"lock": replace(_LOCK, state=LockState.HELD)}, "pod default/train (pod-x) has"),
        (
            {"at_work": "the runtime still runs a container"},
            "is still running: the runtime still runs",
        ),
    ],
)
def test_a_pod_that_lives_or_may_is_ended_only_where_its_own_name_is_typed(
    changed: dict[str, Any], reason: str
) -> None:
    alive = replace(_OVER, **changed)
    verdict = judge_by_hand(alive)
    assert (verdict.grounds, verdict.forced) == (None, True)
    assert reason in verdict.refusal
    for typed in ("", "trai", "train ", "Train", "default", "other/train", X, "default/train/"):
        verdict = judge_by_hand(replace(alive, typed=typed))
        assert (verdict.grounds, verdict.forced) == (None, True), typed
    for typed in ("train", "default/train"):
        assert judge_by_hand(replace(alive, typed=typed)).grounds is Grounds.FORCE


def test_a_pod_whose_name_was_never_learned_is_named_by_its_uid() -> None:
    nameless = replace(_OVER, counted=True, pod=replace(_POD, namespace="", name=""))
    for typed in ("", "/"):
        assert judge_by_hand(replace(nameless, typed=typed)).grounds is None
    assert judge_by_hand(replace(nameless, typed=X)).grounds is Grounds.FORCE


_LEFT = Member(process=ProcessId(4242, 99), command="python", parent=INIT, in_pod=X, inode=7)
_NOTHING_ELSE = otherwise(
    SATISFIED,
    terminate=False,
    pod=_POD,
    members=(_LEFT,),
    let_go_at=None,
    gone_at=None,
)
"""Neither the mode, nor the evidence that kubelet let go, nor any waiting speaks for it."""


def test_a_persons_word_stands_in_for_the_mode_and_the_waiting() -> None:
    assert why_spare(_NOTHING_ELSE) is not None
    for word in (Grounds.RELEASE, Grounds.FORCE):
        assert why_spare(otherwise(_NOTHING_ELSE, grounds=word)) is None


@pytest.mark.parametrize("word", [Grounds.RELEASE, Grounds.FORCE])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"scan_complete": False}, "the scan was incomplete"),
        ({"process": ProcessId(1, 1)}, "pid 1 is never signalled"),
        ({"process": ProcessId(999, 1)}, "pid 999 is never signalled"),
        ({"process": ProcessId(KUBELET.pid, 1)}, "it is kubelet"),
        *(({"command": each}, "container runtime") for each in sorted(RUNTIMES | SHIMS)),
        ({"in_pod": None}, "in no pod's cgroup"),
        ({"in_pod": Y}, "to which this device was not granted"),
        ({"inode": 8}, "not the one the granted pod had"),
        ({"pod": None}, "not the one the granted pod had"),
        ({"pod": replace(_POD, inode=None)}, "not the one the granted pod had"),
    ],
)
def test_no_word_makes_a_process_the_pods(
    changed: dict[str, Any], reason: str, word: Grounds
) -> None:
    said = why_spare(otherwise(_NOTHING_ELSE, grounds=word, **changed))
    assert said is not None
    assert reason in said


_SENTRY = replace(_LEFT, command="exe", parent=SHIM, sandbox=Sandbox.SENTRY)


@pytest.mark.parametrize(
    ("members", "runtime"),
    [
        ((_LEFT, replace(_LEFT, command="pause")), None),
        ((_LEFT, replace(_LEFT, command="conmon")), None),
        ((replace(_LEFT, parent=SHIM),), None),
        ((replace(_LEFT, parent=None),), None),
        ((_SENTRY,), RuntimeState(containers=("c1",))),
        ((replace(_SENTRY, parent=INIT),), RuntimeState(containers=("c1",))),
        ((_SENTRY,), RuntimeState(problem="not found")),
        ((_SENTRY,), None),
    ],
)
def test_without_force_nothing_is_ended_of_a_pod_at_work_or_that_may_be(
    members: tuple[Member, ...], runtime: RuntimeState | None
) -> None:
    facts = otherwise(_NOTHING_ELSE, members=members, state=runtime)
    assert why_spare(replace(facts, grounds=Grounds.RELEASE)) is not None
    assert why_spare(replace(facts, grounds=Grounds.FORCE)) is None


@pytest.mark.parametrize(
    ("parent", "runtime"),
    [
        (SHIM, RuntimeState()),
        (INIT, RuntimeState(problem="not found")),
        (INIT, None),
    ],
    ids=["only pause runs in it", "it has lost its shim", "and nobody knows of it"],
)
def test_a_sandbox_with_nobody_at_work_is_ended_without_force(
    parent: Parent, runtime: RuntimeState | None
) -> None:
    sentry = replace(_SENTRY, parent=parent)
    facts = otherwise(_NOTHING_ELSE, command="exe", members=(sentry,), state=runtime)
    assert why_spare(replace(facts, grounds=Grounds.RELEASE)) is None
