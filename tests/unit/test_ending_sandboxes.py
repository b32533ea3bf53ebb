"""May a sandbox be ended? What runs in one is no process of the node: its runtime has to say."""

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, INIT, KUBELET, NOW, SHIM, X
from holdfast.model.book.book import PodRecord
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import (
    SHIMS,
    EndFacts,
    Member,
    RuntimeEvidence,
    RuntimeState,
    may_be_at_work,
    runtime_seen,
    whole_cgroup,
    why_spare,
)
from holdfast.model.use.holders import Sandbox

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

_FACTS = EndFacts(
    terminate=True,
    scan_complete=True,
    process=_SENTRY.process,
    command="exe",
    in_pod=X,
    inode=7,
    granted_to=X,
    pod=PodRecord(
        uid=X, boot=BOOT, cgroup="/kubepods/podx", inode=7, counted_by=KUBELET, let_go_at=NOW - 9000
    ),
    let_go_at=NOW - 9000,
    kubelet=KUBELET,
    members=_SANDBOX,
    runtime_gone_at=NOW - 9000,
    sandbox=Sandbox.SENTRY,
    runtime=_IDLE,
    only_pause_at=NOW - 900,
    now=NOW,
    own_pid=999,
    let_go_grace=30.0,
    orphan_grace=30.0,
    sandbox_grace=900.0,
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
    facts = replace(
        _FACTS,
        process=first.process,
        command=first.command,
        sandbox=first.sandbox,
        members=members,
        runtime=runtime,
        only_pause_at=None if since is None else NOW - since,
    )
    said = why_spare(facts)
    assert (said is None) is (spared is None)
    assert (spared or "") in (said or "")


@pytest.mark.parametrize("member", _SANDBOX, ids=lambda each: each.sandbox.value)
def test_every_process_of_a_sandbox_is_judged_as_the_sandbox_is(member: Member) -> None:
    facts = replace(_FACTS, process=member.process, command="exe", sandbox=member.sandbox)
    assert why_spare(facts) is None
    assert "c1" in (why_spare(replace(facts, runtime=_BUSY)) or "")


def test_a_program_beside_a_sandbox_is_spared_while_the_sandbox_is() -> None:
    program = replace(_orphan(_SENTRY), command="python", sandbox=None)
    facts = replace(
        _FACTS,
        process=program.process,
        command="python",
        sandbox=None,
        members=(*_SANDBOX, program),
        runtime=_UNREADABLE,
    )
    assert "state cannot be read" in (why_spare(facts) or "")


def test_a_sandbox_has_children_in_other_mounts_and_is_no_shim() -> None:
    sentry = replace(_ORPHANS[0], contains=True)
    assert why_spare(replace(_FACTS, members=(sentry,))) is None
    assert whole_cgroup((sentry,), NOW - 60)
    assert not whole_cgroup((replace(sentry, sandbox=None),), NOW - 60)


def test_a_sandbox_whose_pod_shows_no_process_is_judged_by_its_runtime() -> None:
    unseen = replace(_FACTS, members=(), runtime=None)
    assert "state cannot be read" in (why_spare(unseen) or "")
    assert why_spare(replace(_FACTS, members=())) is None


def test_a_sandbox_without_its_shim_is_spared_until_the_runtime_was_seen_to_let_go() -> None:
    facts = replace(_FACTS, members=_ORPHANS, runtime_gone_at=None)
    assert why_spare(facts) == "the runtime was not seen to drop its pod"


def test_a_person_is_told_why_the_runtime_cannot_tell_what_runs() -> None:
    told = may_be_at_work(_SANDBOX, _UNREADABLE)
    assert told == f"what runs in its sandbox cannot be read ({_UNREADABLE.problem})"
    assert may_be_at_work(_SANDBOX, None) == "what runs in its sandbox cannot be read"


def test_what_only_looks_like_a_sandbox_is_spared() -> None:
    plain = replace(_orphan(_SENTRY), sandbox=None)
    facts = replace(_FACTS, sandbox=None, members=(plain,))
    assert "nothing else shows which" in (why_spare(facts) or "")


def test_the_graces_of_kubelet_and_the_orphan_hold_for_a_sandbox_too() -> None:
    young = replace(_FACTS, members=_ORPHANS, runtime_gone_at=NOW - 29)
    assert "an orphan for less than 30 s" in (why_spare(young) or "")
    counted = replace(_FACTS, pod=replace(_FACTS.pod, let_go_at=None))  # type: ignore[type-var]
    assert "kubelet counts its pod" in (why_spare(counted) or "")


@pytest.mark.parametrize("shim", sorted(SHIMS))
def test_a_shim_in_the_cgroup_forbids_to_end_it_as_one(shim: str) -> None:
    assert whole_cgroup(_SANDBOX, NOW - 60)
    assert not whole_cgroup((*_SANDBOX, replace(_SENTRY, command=shim)), NOW - 60)


# Since when the runtime has let go of a pod.

_ORPHAN = replace(_SENTRY, command="python", sandbox=None, parent=INIT)
_CHILD = replace(_ORPHAN, process=ProcessId(4245, 99), parent=SHIM)


def test_one_container_among_orphans_shows_that_the_runtime_has_not_let_go() -> None:
    before = RuntimeEvidence(gone_at=NOW - 50, only_pause_at=NOW - 40)
    seen = runtime_seen(before, [_ORPHAN, _CHILD], _IDLE, NOW)
    assert (seen.gone_at, seen.only_pause_at) == (None, None)


def test_it_counts_from_the_first_look_that_showed_no_container() -> None:
    first = runtime_seen(RuntimeEvidence(), [_ORPHAN], None, NOW)
    assert (first.gone_at, first.only_pause_at) == (NOW, None)
    assert runtime_seen(first, [_ORPHAN], None, NOW + 10) == first
    assert runtime_seen(first, [], None, NOW + 10) == first


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
