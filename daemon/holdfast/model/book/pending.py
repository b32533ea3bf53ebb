"""When an Allocation ends without a start, or because kubelet dropped its pod."""

from msgspec import Struct

from holdfast.model.book.book import Allocation, Phase
from holdfast.model.ids import BootId, PodUid
from holdfast.model.kubelet import KubeletView

LONGEST_START = 600.0
"""Seconds after the gate in which a container can still start: kubelet gives its runtime two
minutes by default, so after this time it has started or never will."""


class AllocationFacts(Struct, frozen=True, kw_only=True):
    """What decides whether an Allocation has ended.

    `newer` is the result of `is_newer`. `allocated_again`: a younger Allocation names one of its
    ids, and the checkpoint is newer than that one, or cannot be read. `cgroup`: its pod has a
    cgroup; `cgroup_gone`: it had one in this boot and has none now. `let_go`: the kubelet that had
    its pod now answers without it. `started`: a container of its pod passed the gate on the same
    hardware by another Allocation. `age` are the seconds since Allocate was answered; `rebooted`:
    that was before this boot. `asked_after_start` are the seconds from its last start to the
    question that `view` answers, None if it answers none. `timeout` is in seconds.
    """

    allocation: Allocation
    view: KubeletView
    newer: bool
    allocated_again: bool
    cgroup: bool
    cgroup_gone: bool = False
    let_go: bool = False
    started: bool = False
    rebooted: bool = False
    asked_after_start: float | None = None
    age: float
    timeout: float


def is_newer(view: KubeletView, allocation: Allocation, boot: BootId) -> bool:
    """Return whether *view* has what kubelet wrote after *allocation*: another file, read later.

    The time of day is not compared, because it can be set back. *boot* is the present one.
    """
    later = allocation.boot != boot or view.read_at > allocation.answered_at
    return later and view.file != allocation.checkpoint


def over(facts: AllocationFacts) -> str | None:
    """Return why the Allocation has ended, or None if it has not.

    Without a checkpoint newer than its Allocate call nothing has ended: a kubelet that is down
    proves nothing. A checkpoint that cannot be read must not keep the device without limit.
    """
    allocation, view = facts.allocation, facts.view
    if view.unreadable:
        return _unread(allocation, facts)
    if not view.readable or not facts.newer:
        return None
    if allocation.pod is not None:
        return _identified(allocation, allocation.pod, facts)
    if view.entries_of(allocation.resource, allocation.ids):
        return None
    others = _pods_naming(allocation, view)
    if others and facts.allocated_again:
        return f"its devices were allocated again, to pod {', '.join(sorted(others))}"
    if allocation.phase is Phase.ACTIVE:
        return _started_by_nobody(facts)
    if facts.age >= facts.timeout:
        return (
            f"no entry in kubelet's checkpoint names it {facts.timeout:g} s after it was allocated"
        )
    return None


def _identified(allocation: Allocation, pod: PodUid, facts: AllocationFacts) -> str | None:
    if facts.view.counts(pod):
        return None
    if allocation.phase is Phase.PENDING and not facts.started:
        # The image may still be pulled while the sandbox exists, unless kubelet itself gave
        # the pod up. What is left in it is waited for like any former pod's.
        if facts.cgroup and not facts.let_go:
            return None
        return f"kubelet no longer counts pod {pod}, which never started"
    return f"kubelet no longer counts pod {pod}"


def _started_by_nobody(facts: AllocationFacts) -> str | None:
    """Return why it has ended although a container of an unknown pod started on it.

    Nothing shows which pod it was, and whether that pod lives. So it must be certain that the
    container is not about to open the device; the kernel shows whether it has it open.
    """
    if facts.rebooted:
        return "no entry in kubelet's checkpoint names it after a reboot"
    asked = facts.asked_after_start
    if asked is None or asked < LONGEST_START:
        return None
    return f"kubelet was asked {asked:.0f} s after its start, and has no pod with its devices"


def _unread(allocation: Allocation, facts: AllocationFacts) -> str | None:
    """Return why it has ended while kubelet's checkpoint cannot be read.

    Kubelet allocates a device twice only when it considers the first pod ended, and a pod whose
    cgroup is gone has ended. An empty cgroup proves nothing: CRI-O runs no pause process in it, and
    the gate is passed before the container is created. The kernel shows if the device is free.
    """
    why = None
    if facts.allocated_again:
        why = "its devices were allocated again"
    elif allocation.pod is not None and facts.cgroup_gone:
        why = f"the cgroup of pod {allocation.pod} is gone"
    return None if why is None else f"{why} (unverified: kubelet's checkpoint cannot be read)"


def _pods_naming(allocation: Allocation, view: KubeletView) -> frozenset[PodUid]:
    naming = view.entries_naming(allocation.resource, allocation.ids)
    return frozenset(entry.pod for entry in naming)
