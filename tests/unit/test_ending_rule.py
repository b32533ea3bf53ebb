"""May this process be ended? Each guard is shown by the one case that it alone decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import KUBELET, NOW, X, Y
from fakes.ending import LET_GO, ORPHAN, SATISFIED
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.ending import (
    RUNTIMES,
    SHIMS,
    Member,
    Parent,
    in_the_way,
    may_be_at_work,
    whole_cgroup,
    why_spare,
    why_stale,
)
from holdfast.model.use.holders import SANDBOXES, Holder, Sandbox


def test_an_orphan_is_ended_when_every_guard_agrees() -> None:
    assert why_spare(SATISFIED) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"terminate": False}, "reclaim.mode is observe"),
        ({"scan_complete": False}, "the scan was incomplete"),
        ({"process": ProcessId(1, 1)}, "pid 1 is never signalled"),
        ({"process": ProcessId(999, 1)}, "pid 999 is never signalled"),
        ({"process": ProcessId(KUBELET.pid, 1)}, "it is kubelet"),
        *(({"command": each}, "container runtime") for each in sorted(RUNTIMES | SHIMS)),
        ({"granted_to": None}, "never identified"),
        ({"in_pod": None}, "in no pod's cgroup"),
        ({"in_pod": Y}, "pod pod-y, to which this device was not granted"),
        ({"granted_to": Y}, "to which this device was not granted"),
        ({"inode": 8}, "not the one the granted pod had"),
        ({"inode": None}, "not the one the granted pod had"),
        ({"pod": None}, "not the one the granted pod had"),
        ({"pod": replace(LET_GO, inode=None)}, "not the one the granted pod had"),
        ({"pod": replace(LET_GO, inode=None), "inode": None}, "not the one the granted pod had"),
        ({"pod": replace(LET_GO, counted_by=None)}, "never in a checkpoint"),
        ({"kubelet": None}, "kubelet cannot be asked"),
        ({"kubelet": ProcessId(701, 70)}, "another kubelet runs now"),
        ({"kubelet": ProcessId(KUBELET.pid, 71)}, "another kubelet runs now"),
        ({"pod": replace(LET_GO, let_go_at=None)}, "kubelet counts its pod"),
        ({"let_go_at": None}, "kubelet counts its pod"),
        ({"let_go_at": NOW - 29}, "less than 30 s ago"),
        ({"let_go_grace": 61.0}, "less than 61 s ago"),
        *(
            ({"command": each}, "named as a sandbox is")
            for each in sorted(SANDBOXES - RUNTIMES - SHIMS)
        ),
        ({"runtime_gone_at": None}, "not seen to drop its pod"),
        ({"runtime_gone_at": NOW - 29}, "an orphan for less than 30 s"),
        ({"let_go_at": NOW - 59}, "an orphan for less than 30 s"),
        ({"orphan_grace": 61.0}, "an orphan for less than 61 s"),
    ],
)
def test_one_fact_that_is_otherwise_spares_the_process(
    changed: dict[str, Any], reason: str
) -> None:
    said = why_spare(replace(SATISFIED, **changed))
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    "member",
    [
        replace(ORPHAN, command="pause"),
        *(replace(ORPHAN, command=shim) for shim in sorted(SHIMS)),
        replace(ORPHAN, contains=True),
    ],
    ids=str,
)
def test_while_the_runtime_runs_a_container_of_the_pod_nothing_of_it_is_ended(
    member: Member,
) -> None:
    """Absence from kubelet's list is no proof: kubelet may be confused, the runtime is not."""
    said = why_spare(replace(SATISFIED, members=(ORPHAN, member)))
    assert said is not None
    assert "still runs a container of its pod" in said


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        (None, "the parent of pid 4243 of its pod cannot be read"),
        (Parent(pid=812, command="acme-shim"), "lives outside the pod (pid 812, acme-shim)"),
        (Parent(pid=812, command="systemd"), "lives outside the pod (pid 812, systemd)"),
    ],
)
@pytest.mark.parametrize("command", ["python", "pod", "bash"])
def test_one_process_of_a_pod_that_is_no_orphan_spares_all_of_it_whatever_anything_is_called(
    parent: Parent | None, reason: str, command: str
) -> None:
    other = replace(ORPHAN, process=ProcessId(4243, 99), command=command, parent=parent)
    said = why_spare(replace(SATISFIED, members=(ORPHAN, other)))
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    ("pod", "gone", "spared"),
    [
        (60, 60, False),
        (60, 30, False),
        (60, 29.9, True),
        (59.9, 60, True),
        (90, 30, False),
        (3600, 1, True),
        (30, 3600, True),
    ],
)
def test_the_grace_counts_from_when_both_kubelet_and_the_runtime_had_let_go(
    pod: float, gone: float, spared: bool
) -> None:
    facts = replace(SATISFIED, let_go_at=NOW - pod, runtime_gone_at=NOW - gone)
    assert (why_spare(facts) is not None) is spared


def test_a_grace_is_over_when_all_of_it_has_passed() -> None:
    facts = replace(SATISFIED, let_go_at=NOW - 30, orphan_grace=0.0)
    assert why_spare(facts) is None


@pytest.mark.parametrize("command", sorted(SHIMS | RUNTIMES | SANDBOXES))
def test_the_names_of_programs_are_as_the_kernel_cuts_them(command: str) -> None:
    assert len(command) <= 15


_LET_GO = NOW - 60


@pytest.mark.parametrize(
    ("members", "whole"),
    [
        ((), False),
        ((ORPHAN,), True),
        ((ORPHAN, replace(ORPHAN, started_at=_LET_GO)), True),
        ((ORPHAN, replace(ORPHAN, started_at=_LET_GO + 1)), False),
        ((ORPHAN, replace(ORPHAN, command="conmon")), False),
        ((ORPHAN, replace(ORPHAN, command="containerd-shim")), False),
        ((ORPHAN, replace(ORPHAN, command="crio")), False),
        ((ORPHAN, replace(ORPHAN, contains=True)), False),
    ],
    ids=["empty", "one", "old", "newer than the end", "conmon", "shim", "runtime", "contains"],
)
def test_a_cgroup_is_killed_whole_only_where_all_of_it_is_old_and_nothing_of_it_the_runtimes(
    members: tuple[Member, ...], whole: bool
) -> None:
    assert whole_cgroup(members, _LET_GO) is whole


@pytest.mark.parametrize(
    ("asked", "now", "reason"),
    [
        (100.0, 100.0, None),
        (100.0, 100.99, None),
        (100.0, 101.0, "what kubelet said is 1.0 s old"),
        (100.0, 107.5, "what kubelet said is 7.5 s old"),
        (0.0, 100.0, "what kubelet said is 100.0 s old"),
    ],
)
def test_kubelets_word_is_good_for_less_than_a_second(
    asked: float, now: float, reason: str | None
) -> None:
    assert why_stale(asked=asked, now=now, limit=1.0) == reason


def test_what_is_in_the_way_is_what_holds_the_device_or_lives_on_of_this_pod() -> None:
    def holder(pid: int, pod: PodUid | None) -> Holder:
        return Holder(process=ProcessId(pid, 1), command="hold", grips=frozenset(), pod=pod)

    found = in_the_way([holder(5, X), holder(6, Y), holder(7, None)], X, [ORPHAN])
    assert [each.process.pid for each in found] == [ORPHAN.process.pid, 5]


def test_one_orphan_beside_a_virtual_machine_does_not_tell_that_the_machine_is_idle() -> None:
    machine = replace(ORPHAN, process=ProcessId(4243, 99), sandbox=Sandbox.MACHINE)
    assert may_be_at_work([ORPHAN], None) is None
    told = may_be_at_work([ORPHAN, machine], None)
    assert told == "what runs in its sandbox cannot be read"
