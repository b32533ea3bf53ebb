"""When an Allocation is over that no container was started on, or whose pod kubelet let go of."""

from msgspec import Struct

from holdfast.model.book.book import Allocation, Phase
from holdfast.model.ids import BootId, PodUid
from holdfast.model.kubelet import KubeletView

LONGEST_START = 600.0
"""No container is still starting so many seconds after its gate: kubelet gives its runtime two
minutes by default, and what it asked for has then begun, or never will."""


class AllocationFacts(Struct, frozen=True, kw_only=True):
    """What decides whether an Allocation is over.

    `newer` is what `is_newer` says. `allocated_again`: a younger Allocation names one of its ids,
    and the checkpoint is newer than that one, or cannot be read. `cgroup` tells whether its pod has
    a cgroup, and `cgroup_gone` that it had one in this boot and has none. `let_go`: the kubelet
    that had its pod in its books answers without it now.
    `started`: a container of its pod passed the gate on the same hardware by another Allocation.
    `age` is for how many seconds its Allocate has been answered, `rebooted` that this was before
    the machine started. `asked_after_start` are the seconds from its last start to the question
    that `view` answers, None where it answers none. `timeout` is in seconds.
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
    """Tell whether *view* shows what kubelet wrote after *allocation*: another file, read later.

    No time of day is compared, which may be set back. *boot* is the present one.
    """
    later = allocation.boot != boot or view.read_at > allocation.answered_at
    return later and view.file != allocation.checkpoint


def over(facts: AllocationFacts) -> str | None:
    """Return why the Allocation is over, or None while it lives.

    Without a checkpoint newer than its Allocate nothing is over: a kubelet that is down proves
    nothing. One that cannot be read, as that of a later version, must not keep the device for ever.
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
        # A sandbox that stands may be one whose image is still pulled, unless kubelet itself gave
        # the pod up. What is left in it is waited for like any former pod's.
        if facts.cgroup and not facts.let_go:
            return None
        return f"kubelet no longer counts pod {pod}, which never started"
    return f"kubelet no longer counts pod {pod}"


def _started_by_nobody(facts: AllocationFacts) -> str | None:
    """Return why it is over though a container started on it, whose pod kubelet never named.

    Nothing shows which pod's it is, and whether that pod lives. So it must be certain that the
    container is not about to open the device; whether it has it open is for the kernel to show.
    """
    if facts.rebooted:
        return "no entry in kubelet's checkpoint names it after a reboot"
    asked = facts.asked_after_start
    if asked is None or asked < LONGEST_START:
        return None
    return f"kubelet was asked {asked:.0f} s after its start, and has no pod with its devices"


def _unread(allocation: Allocation, facts: AllocationFacts) -> str | None:
    """Return why it is over while kubelet's checkpoint cannot be read.

    Kubelet allocates nothing twice unless it thinks that the first pod is over, and a pod that has
    lost its cgroup is. One that is empty proves nothing: CRI-O runs no pause in it, and the gate is
    passed before the container is made. Whether the device is free is then for the kernel to show.
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
