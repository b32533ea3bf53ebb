"""May this process be ended, and which step comes next? What its sandbox runs, and the guards."""

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from holdfast.model.book.book import DeviceLock, PodRecord
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.use.holders import SANDBOXES, Holder, Sandbox

# Names as /proc/PID/comm shows them, cut to 15 characters by the kernel.
SHIMS = frozenset({"containerd-shim", "conmon", "conmonrs"})
RUNTIMES = frozenset({"containerd", "crio", "dockerd", "kubelet"})

_MOST_DOUBLINGS = 30  # far beyond any pause; a float would overflow after days of retries


class RuntimeTask(Struct, frozen=True, kw_only=True):
    """One container as a file of the runtime's has it.

    `sandbox` is the id of its sandbox, and `pod` its pod, each None where the file does not tell.
    `unreadable` says why the file tells nothing.
    """

    id: str
    sandbox: str | None = None
    pod: PodUid | None = None
    pause: bool = False
    """It is the container that does nothing but keep the sandbox."""
    ended: bool = False
    unreadable: str = ""


class RuntimeState(Struct, frozen=True, kw_only=True):
    """What the runtime's files say of one pod; `problem` is why they say nothing, or is empty."""

    containers: tuple[str, ...] = ()
    """The ids of the containers that run in its sandbox, or are about to; pause is left out."""
    problem: str = ""

    @property
    def only_pause(self) -> bool:
        """Tell whether it is certain that no container but pause runs."""
        return not self.problem and not self.containers


def state_of(pod: PodUid, tasks: Iterable[RuntimeTask]) -> RuntimeState:
    """Return what *tasks*, all that the runtime has, say of *pod*.

    That nothing is found proves something only where the pod's own sandbox is found: the runtime
    may keep its files elsewhere. What runs is believed even where another file cannot be read.
    """
    every = tuple(tasks)
    sandboxes = {task.sandbox for task in every if task.pod == pod and task.sandbox is not None}
    mine = [task for task in every if task.pod == pod or task.sandbox in sandboxes]
    known = [task for task in mine if not task.unreadable]
    running = {task.id for task in known if not task.pause and not task.ended}
    unclear = [
        task.unreadable
        for task in every
        if task.unreadable and (task.sandbox is None or task.sandbox in sandboxes)
    ]
    problem = ""
    if unclear:
        problem = unclear[0]
    elif not any(task.pause for task in known):
        problem = "its files do not have the pod's sandbox"
    return RuntimeState(containers=tuple(sorted(running)), problem=problem)


class Parent(Struct, frozen=True, kw_only=True):
    """The nearest ancestor of a process that is outside its pod's cgroup.

    `is_init`: it is the first process of the node, which becomes the parent of every orphan.
    """

    pid: int
    command: str
    is_init: bool = False


class Member(Struct, frozen=True, kw_only=True):
    """A live process in a pod's cgroup, and who started it.

    `parent` is None where it could not be read, all the way out of the pod's cgroup.
    """

    process: ProcessId
    command: str
    parent: Parent | None = None
    contains: bool = False
    """A child of it runs in a mount namespace of its own, as a shim's container does."""
    started_at: float = 0.0
    """Seconds since the machine booted."""
    in_pod: PodUid | None = None
    inode: int | None = None
    """The inode of that pod's cgroup."""
    sandbox: Sandbox | None = None
    uninterruptible: bool = False
    """It sleeps in the kernel, where no signal reaches it."""

    @property
    def is_shim(self) -> bool:
        """Tell whether it belongs to the container runtime, by its name or by what it does."""
        return self.command in SHIMS or (self.contains and self.sandbox is None)

    @property
    def is_orphan(self) -> bool:
        """Tell whether its nearest ancestor outside the pod is the node's init."""
        return self.parent is not None and self.parent.is_init

    @property
    def shows_a_container(self) -> bool:
        """Tell whether the runtime may still run a container: it is no orphan, or a pause or shim.

        A shim can have any name, so whoever lives and is parent from outside the pod counts as one.
        A sandbox is the child of its shim whatever runs in it, which only the runtime knows.
        """
        of_another = self.sandbox is None and not self.is_orphan
        return self.command == "pause" or self.is_shim or of_another

    @property
    def lost_its_shim(self) -> bool:
        """Tell whether the shim of the sandbox that it is of is certainly gone.

        A virtual machine's monitor detaches itself from its shim, so its parent tells nothing.
        """
        return self.sandbox is not Sandbox.MACHINE and self.is_orphan


class RuntimeEvidence(Struct, frozen=True, kw_only=True):
    """What has been seen of the runtime's letting go of one pod; times in monotonic seconds.

    `gone_at` is since when no process of it has shown a container. `state` is what the runtime's
    files said last, None where the pod has no sandbox; `only_pause_at` is since when it has been
    certain that only pause runs there.
    """

    gone_at: float | None = None
    state: RuntimeState | None = None
    only_pause_at: float | None = None


def runtime_seen(
    before: RuntimeEvidence, members: Iterable[Member], state: RuntimeState | None, now: float
) -> RuntimeEvidence:
    """Return what has been seen of a pod after one more look, which showed *members* and *state*.

    Files that cannot be read for a moment are no sign of work, and none of its end.
    """
    shows = any(each.shows_a_container for each in members)
    at_work = shows or (state is not None and bool(state.containers))
    sure = state is not None and state.only_pause
    since = before.only_pause_at or (now if sure else None)
    return RuntimeEvidence(
        gone_at=None if shows else before.gone_at or now,
        state=state,
        only_pause_at=None if at_work else since,
    )


class Grounds(Enum):
    """Why processes of a pod may be ended; it decides which guards protect them."""

    OVER = "over"
    """Kubelet and the runtime have let go of the pod: every guard of `why_spare` has to agree."""

    RELEASE = "release"
    """A person released it, which replaces the mode and the waiting: it must not be at work."""

    FORCE = "force"
    """A person released it and typed the pod's name, which replaces the evidence of its end too."""

    LEAK = "leak"
    """Its own idle sandbox holds up its start: `leak.why_keep` has to agree on all of the pod."""


class Warrant(Struct, frozen=True, kw_only=True):
    """On which grounds, and on which evidence, processes of `pod` may be ended.

    `lock` is that of the device they are in the way of. `gap` is what the scan that found them
    could not see, empty where it saw everything. `only` are the processes that are meant, None for
    whatever is left of the pod.
    """

    grounds: Grounds
    lock: DeviceLock
    pod: PodUid
    gap: str
    only: frozenset[ProcessId] | None = None


class EndFacts(Struct, frozen=True, kw_only=True):
    """Everything that has to be so before a process is ended.

    Times are monotonic seconds: a grace must not end because somebody set the clock forward.

    `member` is the process as it is now; `granted_to` is the pod of the device's lock, and
    `members` are the processes of that pod's cgroup, or those of `telling_of`.
    """

    terminate: bool
    scan_complete: bool
    member: Member
    granted_to: PodUid
    pod: PodRecord | None
    let_go_at: float | None
    """Since when this daemon has seen the evidence in `pod` that kubelet let go of it."""
    kubelet: ProcessId | None
    members: tuple[Member, ...]
    runtime: RuntimeEvidence
    now: float
    own_pid: int
    let_go_grace: float
    orphan_grace: float
    sandbox_grace: float
    grounds: Grounds = Grounds.OVER


def why_spare(facts: EndFacts) -> str | None:
    """Return why the process must not be ended, or None when every guard agrees.

    Absence is not proof: an API server that is down, a kubelet that restarts or a lost checkpoint
    makes a living pod vanish from kubelet's list. So kubelet must have let go of the pod, in
    its checkpoint and in its answer, and the runtime too. A release by hand replaces the mode and
    the waiting, and with force what kubelet and the runtime say; it never changes whose a process
    is.
    """
    sight = why_unproven(scan_complete=facts.scan_complete)
    if facts.grounds is Grounds.FORCE:
        return sight or _identity(facts)
    if facts.grounds is Grounds.RELEASE:
        return sight or _identity(facts) or may_be_at_work(facts.members, facts.runtime.state)
    return (
        why_observe(terminate=facts.terminate)
        or sight
        or _identity(facts)
        or _kubelet_let_go(facts)
        or _runtime_let_go(facts)
        or _grace(facts)
    )


def why_observe(*, terminate: bool) -> str | None:
    """Return why nothing is ended by itself, or None where the operator allows it."""
    if not terminate:
        return "reclaim.mode is observe"
    return None


def why_unproven(*, scan_complete: bool) -> str | None:
    """Return why what a scan found proves nothing, or None where it saw everything."""
    if not scan_complete:
        return "the scan was incomplete, which proves nothing"
    return None


def _identity(facts: EndFacts) -> str | None:
    if facts.member.process.pid in {1, facts.own_pid}:
        return f"pid {facts.member.process} is never signalled"
    if facts.kubelet is not None and facts.member.process.pid == facts.kubelet.pid:
        return "it is kubelet"
    if facts.member.command in RUNTIMES | SHIMS:
        return f"it is part of the node's container runtime ({facts.member.command})"
    if facts.member.in_pod is None:
        return "it is in no pod's cgroup"
    if facts.member.in_pod != facts.granted_to:
        return f"it is in pod {facts.member.in_pod}, to which this device was not granted"
    if facts.pod is None or facts.pod.inode is None or facts.pod.inode != facts.member.inode:
        return "its cgroup is not the one the granted pod had"
    return None


def _kubelet_let_go(facts: EndFacts) -> str | None:
    pod = facts.pod
    if pod is None or pod.counted_by is None:
        return "its pod was never in a checkpoint that kubelet wrote while holdfast ran"
    if facts.kubelet is None:
        return "kubelet cannot be asked"
    if pod.counted_by != facts.kubelet:
        return "another kubelet runs now than the one that had the pod"
    if pod.let_go_at is None or facts.let_go_at is None:
        return "kubelet counts its pod, or has not been asked since"
    if facts.now - facts.let_go_at < facts.let_go_grace:
        return f"kubelet dropped its pod less than {facts.let_go_grace:g} s ago"
    return None


def telling_of(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return those few of *members* that tell as much as all do of whether the pod is at work.

    A pod may leave thousands behind, and each of them is judged by all.
    """
    signs = (
        next((each for each in members if each.shows_a_container), None),
        next((each for each in members if not each.lost_its_shim), None),
    )
    return tuple(each for each in signs if each is not None) or tuple(members[:1])


def at_work(members: Sequence[Member], runtime: RuntimeState | None) -> str | None:
    """Return how a container of the pod is known to run, None where nothing shows one."""
    for member in members:
        if member.shows_a_container:
            return _sign(member)
    if runtime is not None and runtime.containers:
        return f"its runtime still runs container {runtime.containers[0]} in its sandbox"
    return None


def _sign(member: Member) -> str:
    """Return what of *member* shows that the runtime may still run a container."""
    if member.command == "pause" or member.is_shim:
        return f"the runtime still runs a container of its pod (pid {member.process})"
    if member.parent is None:
        return f"the parent of pid {member.process} of its pod cannot be read"
    return (
        f"pid {member.process} of its pod has a parent that lives outside the pod "
        f"(pid {member.parent.pid}, {member.parent.command})"
    )


def may_be_at_work(members: Sequence[Member], runtime: RuntimeState | None) -> str | None:
    """Return how a container of the pod runs, or why one may; None where that is out of question.

    A release by hand does not overrule this, unless the person names the pod.
    """
    working = at_work(members, runtime)
    if working is not None:
        return working
    if all(member.lost_its_shim for member in members):
        return None
    if runtime is None or runtime.problem:
        why = f" ({runtime.problem})" if runtime is not None else ""
        return f"what runs in its sandbox cannot be read{why}"
    return None


def _runtime_let_go(facts: EndFacts) -> str | None:
    working = at_work(facts.members, facts.runtime.state)
    if working is not None:
        return working
    if facts.member.command in SANDBOXES and facts.member.sandbox is None:
        return f"it is named as a sandbox is ({facts.member.command}), and nothing else shows which"
    reason = _sandbox_let_go(facts)
    if reason is not None:
        return reason
    if facts.runtime.gone_at is None:
        return "the runtime was not seen to drop its pod"
    return None


def _sandbox_let_go(facts: EndFacts) -> str | None:
    """Return why the sandbox may be at work: what runs in it is no process of this node."""
    state, since = facts.runtime.state, facts.runtime.only_pause_at
    if facts.members and all(member.lost_its_shim for member in facts.members):
        return None
    if state is None or not state.only_pause:
        why = f" ({state.problem})" if state is not None else ""
        return f"it is in a sandbox whose runtime's state cannot be read{why}"
    if since is None or facts.now - since < facts.sandbox_grace:
        return (
            f"its runtime has shown for less than {facts.sandbox_grace:g} s that nothing but "
            "pause runs in its sandbox"
        )
    return None


def _grace(facts: EndFacts) -> str | None:
    let_go, gone = facts.let_go_at, facts.runtime.gone_at
    if let_go is None or gone is None:
        return "kubelet and the runtime have not both dropped its pod"
    since = max(gone, let_go + facts.let_go_grace)
    if facts.now - since < facts.orphan_grace:
        return f"it has been an orphan for less than {facts.orphan_grace:g} s"
    return None


def whole_cgroup(members: tuple[Member, ...], let_go_at: float) -> bool:
    """Tell whether the pod's cgroup may be ended as one.

    Kata and CRI-O may keep their shim or conmon inside, and a process that started after kubelet
    let go of the pod may be a new start of it. *let_go_at* and the starts are seconds since the
    machine booted.
    """
    return bool(members) and not any(
        member.is_shim or member.command in RUNTIMES or member.started_at > let_go_at
        for member in members
    )


def why_stale(*, asked: float, now: float, limit: float) -> str | None:
    """Return why kubelet's answer is too old to act on, or None when it is not; all in seconds.

    *asked* is a moment after which kubelet wrote the checkpoint without the pod, and *now* the
    present one, both in seconds since the machine booted.
    """
    age = now - asked
    if age >= limit:
        return f"what kubelet said is {age:.1f} s old"
    return None


def in_the_way(
    holders: Iterable[Holder], pod: PodUid, members: Iterable[Member]
) -> tuple[Member, ...]:
    """Return what keeps a device from being free: its holders, and what still runs of its pod."""
    known: dict[ProcessId, Member] = {each.process: each for each in members}
    for holder in holders:
        known.setdefault(
            holder.process,
            Member(
                process=holder.process,
                command=holder.command,
                in_pod=holder.pod,
                sandbox=holder.sandbox,
            ),
        )
    return tuple(each for each in known.values() if each.in_pod == pod)


class ReclaimStep(Enum):
    """What to do next for a device that is being reclaimed."""

    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"
    QUARANTINE = "quarantine"
    RETRY = "retry"


class Attempt(Struct, frozen=True, kw_only=True):
    """One try to end what holds a device; times are monotonic seconds, None: not done.

    It lives in memory only. After a restart a new attempt begins: to ask a process twice to end
    does no harm.
    """

    number: int = 1
    terminated_at: float | None = None
    killed_at: float | None = None
    quarantined_at: float | None = None


def next_step(
    attempt: Attempt, now: float, *, term_grace: float, kill_grace: float, pause: float
) -> ReclaimStep:
    """Return the step that is due at *now* while something still holds the device.

    In seconds: *term_grace* is from SIGTERM to SIGKILL, *kill_grace* from SIGKILL to quarantine,
    and *pause* from quarantine to the next attempt.
    """
    if attempt.quarantined_at is not None:
        due = now - attempt.quarantined_at >= pause
        return ReclaimStep.RETRY if due else ReclaimStep.WAIT
    if attempt.terminated_at is None:
        return ReclaimStep.TERMINATE
    if attempt.killed_at is None:
        late = now - attempt.terminated_at >= term_grace
        return ReclaimStep.KILL if late else ReclaimStep.WAIT
    late = now - attempt.killed_at >= kill_grace
    return ReclaimStep.QUARANTINE if late else ReclaimStep.WAIT


def retry_pause(number: int, *, first: float, last: float) -> float:
    """Return how many seconds to wait after the failure of attempt *number*, the first being 1.

    The pause begins at *first* and doubles with each attempt, up to *last*.
    """
    doublings = min(number - 1, _MOST_DOUBLINGS)
    return min(first * float(2**doublings), last)
