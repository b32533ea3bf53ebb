"""When an Allocation is over that no container was started on, or whose pod kubelet let go of."""

from msgspec import Struct

from holdfast.model.book import Allocation, Phase
from holdfast.model.ids import PodUid
from holdfast.model.kubelet import KubeletView


class AllocationFacts(Struct, frozen=True, kw_only=True):
    """What decides whether an Allocation is over.

    `allocated_again`: a younger Allocation names one of its ids, and the checkpoint is newer than
    that one. `cgroup` tells whether its pod has a cgroup. `let_go`: the kubelet that had its pod in
    its books answers without it now. `started`: a container of its pod passed the gate on the
    same hardware by another Allocation. `timeout` is in seconds.
    """

    allocation: Allocation
    view: KubeletView
    allocated_again: bool
    cgroup: bool
    let_go: bool = False
    started: bool = False
    now: float
    timeout: float


def over(facts: AllocationFacts) -> str | None:
    """Return why the Allocation is over, or None while it lives.

    Without a readable checkpoint newer than its Allocate nothing is over: a kubelet that is down,
    or that has lost its books, proves nothing.
    """
    allocation, view = facts.allocation, facts.view
    if not view.readable or view.written_at <= allocation.checkpoint_at:
        return None
    if allocation.pod is not None:
        return _identified(allocation, allocation.pod, facts)
    if view.entries_of(allocation.resource, allocation.ids):
        return None
    others = _pods_naming(allocation, view)
    if others and facts.allocated_again:
        return f"its devices were allocated again, to pod {', '.join(sorted(others))}"
    if facts.now - allocation.created_at >= facts.timeout:
        return f"no entry of kubelet's names it {facts.timeout:g} s after it was allocated"
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


def _pods_naming(allocation: Allocation, view: KubeletView) -> frozenset[PodUid]:
    return frozenset(
        entry.pod
        for entry in view.entries
        if entry.resource == allocation.resource and entry.devices & allocation.ids
    )
