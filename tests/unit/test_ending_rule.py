"""May this process be ended, and when? Each guard is shown by the one case that it alone decides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.books import INIT, KUBELET, NOW, SHIM, X, Y
from fakes.ending import LET_GO, ORPHAN, SATISFIED, otherwise
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.ending import (
    RUNTIMES,
    SHIMS,
    Attempt,
    Member,
    Parent,
    ReclaimStep,
    RuntimeEvidence,
    RuntimeState,
    RuntimeTask,
    in_the_way,
    may_be_at_work,
    next_step,
    retry_pause,
    runtime_seen,
    state_of,
    telling_of,
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
        ({"gone_at": None}, "not seen to drop its pod"),
        ({"gone_at": NOW - 29}, "an orphan for less than 30 s"),
        ({"let_go_at": NOW - 59}, "an orphan for less than 30 s"),
        ({"orphan_grace": 61.0}, "an orphan for less than 61 s"),
    ],
)
def test_one_fact_that_is_otherwise_spares_the_process(
    changed: dict[str, Any], reason: str
) -> None:
    said = why_spare(otherwise(SATISFIED, **changed))
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
    said = why_spare(otherwise(SATISFIED, members=(ORPHAN, member)))
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
    said = why_spare(otherwise(SATISFIED, members=(ORPHAN, other)))
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
    facts = otherwise(SATISFIED, let_go_at=NOW - pod, gone_at=NOW - gone)
    assert (why_spare(facts) is not None) is spared


def test_a_grace_is_over_when_all_of_it_has_passed() -> None:
    facts = otherwise(SATISFIED, let_go_at=NOW - 30, orphan_grace=0.0)
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
        return Holder(process=ProcessId(pid, 1), command="hold", access=frozenset(), pod=pod)

    found = in_the_way([holder(5, X), holder(6, Y), holder(7, None)], X, [ORPHAN])
    assert [each.process.pid for each in found] == [ORPHAN.process.pid, 5]


def test_one_orphan_beside_a_virtual_machine_does_not_tell_that_the_machine_is_idle() -> None:
    machine = replace(ORPHAN, process=ProcessId(4243, 99), sandbox=Sandbox.MACHINE)
    assert may_be_at_work([ORPHAN], None) is None
    told = may_be_at_work([ORPHAN, machine], None)
    assert told == "what runs in its sandbox cannot be read"


# May a sandbox be ended? What runs in one is no process of the node: its runtime has to say.

_SENTRY = Member(
    process=ProcessId(4242, 99),
    command="exe",
    parent=SHIM,
    started_at=NOW - 9000,
    in_pod=X,
    inode=7,
    sandbox=Sandbox.SENTRY,
)
_STUB = replace(_SENTRY, process=ProcessId(4243, 99), sandbox=Sandbox.STUB)
_GOFER = replace(_SENTRY, process=ProcessId(4240, 99), sandbox=Sandbox.GOFER)
_MACHINE = replace(
    _SENTRY,
    process=ProcessId(4241, 99),
    command="qemu-system-x86",
    parent=INIT,
    sandbox=Sandbox.MACHINE,
)
_SANDBOX = (_SENTRY, _STUB, _GOFER)
_IDLE = RuntimeState()
_BUSY = RuntimeState(containers=("c1",))
_UNREADABLE = RuntimeState(problem="cannot read /run/containerd: Permission denied")

_FACTS = otherwise(
    SATISFIED,
    process=_SENTRY.process,
    command="exe",
    pod=replace(LET_GO, let_go_at=NOW - 9000),
    let_go_at=NOW - 9000,
    members=_SANDBOX,
    gone_at=NOW - 9000,
    sandbox=Sandbox.SENTRY,
    state=_IDLE,
    only_pause_at=NOW - 900,
)


def _orphan(member: Member) -> Member:
    return replace(member, parent=INIT)


_ORPHANS = tuple(map(_orphan, _SANDBOX))


@pytest.mark.parametrize(
    ("members", "runtime", "since", "spared"),
    [
        # Under a living shim, only the runtime's own word over the whole grace ends it.
        (_SANDBOX, _IDLE, 900, None),
        (_SANDBOX, _IDLE, 899, "less than 900 s that nothing but pause runs"),
        (_SANDBOX, _IDLE, None, "less than 900 s that nothing but pause runs"),
        (_SANDBOX, _UNREADABLE, 9000, "whose runtime's state cannot be read (cannot read /run"),
        (_SANDBOX, None, 9000, "whose runtime's state cannot be read"),
        (_SANDBOX, _BUSY, 9000, "its runtime still runs container c1"),
        # Without its shim the runtime has let go, whatever its files fail to say.
        (_ORPHANS, _IDLE, None, None),
        (_ORPHANS, _UNREADABLE, None, None),
        (_ORPHANS, None, None, None),
        (_ORPHANS, _BUSY, 9000, "its runtime still runs container c1"),
        # Whose parent cannot be read may have a shim yet; one process of it is enough.
        ((replace(_SENTRY, parent=None),), None, None, "state cannot be read"),
        ((*_ORPHANS, _SENTRY), None, None, "state cannot be read"),
        # A machine's monitor leaves its shim, so that its parent tells nothing.
        ((_MACHINE,), _IDLE, 900, None),
        ((_MACHINE,), _UNREADABLE, 9000, "state cannot be read"),
        # Other processes of the runtime's are no part of the sandbox.
        ((*_SANDBOX, replace(_SENTRY, sandbox=None)), _IDLE, 9000, "lives outside the pod"),
        ((*_ORPHANS, replace(_SENTRY, command="pause")), _IDLE, 9000, "still runs a container"),
        *(
            ((*_SANDBOX, replace(_ORPHANS[0], command=shim)), _IDLE, 9000, "still runs a container")
            for shim in sorted(SHIMS)
        ),
    ],
)
def test_a_sandbox_is_ended_only_when_its_shim_is_gone_or_its_runtime_says_that_it_is_idle(
    members: tuple[Member, ...],
    runtime: RuntimeState | None,
    since: float | None,
    spared: str | None,
) -> None:
    first = members[0]
    facts = otherwise(
        _FACTS,
        process=first.process,
        command=first.command,
        sandbox=first.sandbox,
        members=members,
        state=runtime,
        only_pause_at=None if since is None else NOW - since,
    )
    said = why_spare(facts)
    assert (said is None) is (spared is None)
    assert (spared or "") in (said or "")


def test_a_sandbox_has_children_in_other_mounts_and_is_no_shim() -> None:
    sentry = replace(_ORPHANS[0], contains=True)
    assert why_spare(otherwise(_FACTS, members=(sentry,))) is None
    assert whole_cgroup((sentry,), NOW - 60)
    assert not whole_cgroup((replace(sentry, sandbox=None),), NOW - 60)


def test_a_sandbox_whose_pod_shows_no_process_is_judged_by_its_runtime() -> None:
    unseen = otherwise(_FACTS, members=(), state=None)
    assert "state cannot be read" in (why_spare(unseen) or "")
    assert why_spare(otherwise(_FACTS, members=())) is None


def test_a_sandbox_without_its_shim_is_spared_until_the_runtime_was_seen_to_let_go() -> None:
    facts = otherwise(_FACTS, members=_ORPHANS, gone_at=None)
    assert why_spare(facts) == "the runtime was not seen to drop its pod"


def test_a_person_is_told_why_the_runtime_cannot_tell_what_runs() -> None:
    told = may_be_at_work(_SANDBOX, _UNREADABLE)
    assert told == f"what runs in its sandbox cannot be read ({_UNREADABLE.problem})"
    assert may_be_at_work(_SANDBOX, None) == "what runs in its sandbox cannot be read"


def test_what_only_looks_like_a_sandbox_is_spared() -> None:
    plain = replace(_orphan(_SENTRY), sandbox=None)
    facts = otherwise(_FACTS, sandbox=None, members=(plain,))
    assert "nothing else shows which" in (why_spare(facts) or "")


@pytest.mark.parametrize("shim", sorted(SHIMS))
def test_a_shim_in_the_cgroup_forbids_to_end_it_as_one(shim: str) -> None:
    assert whole_cgroup(_SANDBOX, NOW - 60)
    assert not whole_cgroup((*_SANDBOX, replace(_SENTRY, command=shim)), NOW - 60)


_ANY_MEMBER = st.builds(
    Member,
    process=st.builds(ProcessId, st.integers(2, 9), st.just(99)),
    command=st.sampled_from(("python", "pause", "exe", min(SHIMS))),
    parent=st.sampled_from((None, INIT, SHIM)),
    contains=st.booleans(),
    sandbox=st.sampled_from((None, *Sandbox)),
)


@given(st.lists(_ANY_MEMBER, max_size=5), st.sampled_from((None, _IDLE, _BUSY, _UNREADABLE)))
def test_a_few_processes_of_a_pod_tell_as_much_as_all_of_it(
    members: list[Member], state: RuntimeState | None
) -> None:
    few = telling_of(members)
    assert len(few) <= 2
    assert may_be_at_work(few, state) == may_be_at_work(members, state)
    facts = otherwise(_FACTS, state=state, members=tuple(members))
    assert why_spare(replace(facts, members=few)) == why_spare(facts)


# Since when the runtime has let go of a pod.

_ORPHAN = replace(_SENTRY, command="python", sandbox=None, parent=INIT)
_CHILD = replace(_ORPHAN, process=ProcessId(4245, 99), parent=SHIM)


def test_one_container_among_orphans_shows_that_the_runtime_has_not_let_go() -> None:
    before = RuntimeEvidence(gone_at=NOW - 50, only_pause_at=NOW - 40)
    seen = runtime_seen(before, [_ORPHAN, _CHILD], _IDLE, NOW)
    assert (seen.gone_at, seen.only_pause_at) == (None, None)


def test_a_sandbox_counts_from_the_first_look_at_files_that_told_of_pause_alone() -> None:
    first = runtime_seen(RuntimeEvidence(), [_SENTRY], _IDLE, NOW)
    assert first == RuntimeEvidence(gone_at=NOW, state=_IDLE, only_pause_at=NOW)
    again = runtime_seen(first, [_SENTRY], _IDLE, NOW + 10)
    assert again.only_pause_at == NOW


@pytest.mark.parametrize("state", [_UNREADABLE, None])
def test_files_that_cannot_be_read_for_a_moment_are_no_sign_of_work_and_none_of_its_end(
    state: RuntimeState | None,
) -> None:
    sure = RuntimeEvidence(gone_at=NOW - 50, state=_IDLE, only_pause_at=NOW - 40)
    seen = runtime_seen(sure, [_SENTRY], state, NOW)
    assert seen == RuntimeEvidence(gone_at=NOW - 50, state=state, only_pause_at=NOW - 40)
    assert runtime_seen(RuntimeEvidence(), [_SENTRY], state, NOW).only_pause_at is None


def test_a_container_in_the_sandbox_starts_it_over() -> None:
    sure = RuntimeEvidence(gone_at=NOW - 50, state=_IDLE, only_pause_at=NOW - 40)
    seen = runtime_seen(sure, [_SENTRY], _BUSY, NOW)
    assert (seen.gone_at, seen.only_pause_at) == (NOW - 50, None)


# What runs in a pod's sandbox, by the files of its runtime: silence is no proof of idleness.

_PAUSE = RuntimeTask(id="s1", sandbox="s1", pod=X, pause=True)
_OTHER_PAUSE = RuntimeTask(id="s2", sandbox="s2", pod=Y, pause=True)
_WORK = RuntimeTask(id="c1", sandbox="s1", pod=X)


@pytest.mark.parametrize(
    ("tasks", "running", "problem"),
    [
        ((_PAUSE,), (), ""),
        ((_PAUSE, _PAUSE), (), ""),
        ((_PAUSE, _OTHER_PAUSE, RuntimeTask(id="c2", sandbox="s2", pod=Y)), (), ""),
        ((_PAUSE, _WORK), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1")), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", pod=X)), ("c1",), ""),
        # Of a container whose sandbox is not told nobody knows that it is in the same.
        ((_PAUSE, RuntimeTask(id="c1", pod=X), RuntimeTask(id="c3")), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1", pod=X, ended=True)), (), ""),
        # One of two files knows that it runs.
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1", pod=X, ended=True), _WORK), ("c1",), ""),
        # The first container of a sandbox that kubelet did not ask for may be a program.
        ((RuntimeTask(id="s1", sandbox="s1", pod=X),), ("s1",), "do not have the pod's sandbox"),
        # Nothing found, where nothing of the pod is: the files are elsewhere.
        ((), (), "do not have the pod's sandbox"),
        ((_OTHER_PAUSE,), (), "do not have the pod's sandbox"),
        ((_WORK,), ("c1",), "do not have the pod's sandbox"),
        # Unreadable, and it could be of this pod.
        ((_PAUSE, RuntimeTask(id="c9", unreadable="bad json")), (), "bad json"),
        ((_PAUSE, RuntimeTask(id="c9", sandbox="s1", unreadable="bad json")), (), "bad json"),
        ((_PAUSE, RuntimeTask(id="c9", sandbox="s2", unreadable="bad json")), (), ""),
        ((_PAUSE, _WORK, RuntimeTask(id="c9", unreadable="bad json")), ("c1",), "bad json"),
    ],
)
def test_only_pause_runs_where_the_sandbox_is_found_and_no_other_container_of_it(
    tasks: tuple[RuntimeTask, ...], running: tuple[str, ...], problem: str
) -> None:
    state = state_of(X, tasks)
    assert state.containers == running
    assert problem in state.problem
    assert bool(problem) is bool(state.problem)
    assert state.only_pause is (not running and not problem)


# The plan of a reclaim: whatever prefix of it was done, it comes to the same end.

_SECOND = 1.0


def _next(attempt: Attempt, now: float) -> ReclaimStep:
    pause = retry_pause(attempt.number, first=5.0, last=300.0)
    return next_step(attempt, now, term_grace=10.0, kill_grace=10.0, pause=pause)


def _done(attempt: Attempt, step: ReclaimStep, now: float) -> Attempt:
    match step:
        case ReclaimStep.TERMINATE:
            return replace(attempt, terminated_at=now)
        case ReclaimStep.KILL:
            return replace(attempt, killed_at=now)
        case ReclaimStep.QUARANTINE:
            return replace(attempt, quarantined_at=now)
        case ReclaimStep.RETRY:
            return Attempt(number=attempt.number + 1)
        case ReclaimStep.WAIT:
            return attempt


def _walk(attempt: Attempt, *, now: float, steps: int) -> list[ReclaimStep]:
    """Return the next *steps* that are not waiting, doing each as it comes due."""
    found: list[ReclaimStep] = []
    while len(found) < steps:
        step = _next(attempt, now)
        if step is ReclaimStep.WAIT:
            now += _SECOND
            continue
        found.append(step)
        attempt = _done(attempt, step, now)
    return found


_PLAN = [ReclaimStep.TERMINATE, ReclaimStep.KILL, ReclaimStep.QUARANTINE, ReclaimStep.RETRY]


def test_what_holds_a_device_is_asked_then_ended_then_left_and_tried_again() -> None:
    assert _walk(Attempt(), now=0, steps=8) == _PLAN * 2


@pytest.mark.parametrize("done", range(5))
@pytest.mark.parametrize("remembered", [True, False])
def test_after_any_prefix_of_the_plan_the_rest_comes_to_the_same_end(
    done: int, remembered: bool
) -> None:
    """A daemon that starts anew has forgotten the attempt, and begins it again."""
    attempt, now = Attempt(), 0.0
    for step in _PLAN[:done]:
        while _next(attempt, now) is ReclaimStep.WAIT:
            now += _SECOND
        assert _next(attempt, now) is step
        attempt = _done(attempt, step, now)
    rest = _walk(attempt if remembered else Attempt(), now=now, steps=4)
    expected = _PLAN[done % 4 :] + _PLAN[: done % 4] if remembered else _PLAN
    assert rest == expected


@pytest.mark.parametrize(
    ("attempt", "now", "step"),
    [
        (Attempt(), 0, ReclaimStep.TERMINATE),
        (Attempt(terminated_at=0), 9.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=0), 10, ReclaimStep.KILL),
        (Attempt(terminated_at=0, killed_at=10), 19.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=0, killed_at=10), 20, ReclaimStep.QUARANTINE),
        (Attempt(terminated_at=100), 109.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=100), 110, ReclaimStep.KILL),
        (Attempt(killed_at=10), 11, ReclaimStep.TERMINATE),
        (Attempt(quarantined_at=0), 4.9, ReclaimStep.WAIT),
        (Attempt(quarantined_at=0), 5, ReclaimStep.RETRY),
        (Attempt(quarantined_at=100), 104.9, ReclaimStep.WAIT),
        (Attempt(quarantined_at=100), 105, ReclaimStep.RETRY),
        (Attempt(number=3, quarantined_at=0), 19.9, ReclaimStep.WAIT),
        (Attempt(number=3, quarantined_at=0), 20, ReclaimStep.RETRY),
        (Attempt(number=7, quarantined_at=0), 299.9, ReclaimStep.WAIT),
        (Attempt(number=7, quarantined_at=0), 300, ReclaimStep.RETRY),
    ],
)
def test_each_step_is_due_at_its_time(attempt: Attempt, now: float, step: ReclaimStep) -> None:
    assert _next(attempt, now) is step


@given(st.integers(1, 10**9))
def test_a_device_is_tried_again_at_the_latest_after_the_longest_pause_however_often_it_was(
    number: int,
) -> None:
    attempt = Attempt(number=number, quarantined_at=0)
    assert _next(attempt, 300) is ReclaimStep.RETRY
    assert _next(attempt, 4) is ReclaimStep.WAIT


def test_a_process_is_never_killed_that_was_not_asked_before() -> None:
    for now in (0.0, 1e9):
        assert _next(Attempt(), now) is ReclaimStep.TERMINATE
