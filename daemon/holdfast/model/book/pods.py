"""What the book has of pods, and how it is reconciled with kubelet: whose is what, who ended."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.book.book import (
    ENDING,
    Allocation,
    Book,
    DeviceLock,
    LockState,
    Phase,
    PodRecord,
    same_holder,
)
from holdfast.model.book.claims import drop_old_claims, pods_of_claims
from holdfast.model.book.draft import Draft
from holdfast.model.book.places import place
from holdfast.model.book.proof import could_have_started
from holdfast.model.book.queue import settle
from holdfast.model.devices import Inventory
from holdfast.model.groups import grouped
from holdfast.model.ids import BootId, DeviceId, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.kubelet import CheckpointEntry, KubeletView

LONGEST_START = 600.0
"""Seconds after the gate in which a container can still start: kubelet gives its runtime two
minutes by default, so after this time it has started or never will."""


class PodSighting(Struct, frozen=True, kw_only=True):
    """A pod's cgroup as just seen. `cgroup` is its path, absolute in the host's tree.

    `populated` tells whether a process is in it or below, None where that is unknown; `processes`
    are the pids that could be listed. Such a list proves nothing: processes come and go while it is
    read. `unlisted` says which part could not be read, so that there may be more pids; empty if all
    could. It is never empty where `populated` is None.
    """

    cgroup: str
    inode: int
    populated: bool | None
    processes: tuple[int, ...] = ()
    unlisted: str = ""


def note_pods(
    draft: Draft, view: KubeletView, sightings: Mapping[PodUid, PodSighting], boot: BootId
) -> None:
    """Write down what *view* and *sightings* show of the pods in the book; forget all others."""
    book = draft.book
    needed = {each.pod for each in book.allocations.values()}
    needed |= {lock.pod for lock in book.locks.values()}
    needed |= pods_of_claims(book, over=True)
    claimed = pods_of_claims(book, over=False)
    for record in book.pods.values():
        if record.uid not in needed:
            draft.forget_pod(record.uid)
            continue
        has_live = record.uid in claimed or bool(book.holdings.of_pod(record.uid))
        seen = _with_sighting(record, sightings.get(record.uid), boot, has_live=has_live)
        noted = _with_name(seen, view)
        draft.note_pod(_with_count(noted, view, boot, has_claim=record.uid in claimed))


def _with_sighting(
    record: PodRecord, sighting: PodSighting | None, boot: BootId, *, has_live: bool
) -> PodRecord:
    """Return the record with the pod's present cgroup.

    Once its Allocations have ended, the recorded cgroup stays: one with the same UID and another
    inode belongs to a later pod, and the remaining locks do not concern its processes.
    """
    if sighting is None or not (has_live or record.inode is None):
        return record
    return replace(record, cgroup=sighting.cgroup, inode=sighting.inode, boot=boot)


def _with_name(record: PodRecord, view: KubeletView) -> PodRecord:
    """Return the record with the pod's name, if its devices identify it.

    PodResources names pods and no UIDs, the checkpoint UIDs and no names; List leaves out what
    plain init containers have.
    """
    if record.name or not view.answered:
        return record
    devices = {
        DeviceName(entry.resource, id_)
        for entry in view.entries_of_pod(record.uid)
        for id_ in entry.devices
    }
    fitting = view.listed_within(devices)
    if len(fitting) != 1:
        return record
    return replace(record, namespace=fitting[0].namespace, name=fitting[0].name)


def _with_count(
    record: PodRecord, view: KubeletView, boot: BootId, *, has_claim: bool
) -> PodRecord:
    """Return the record with the evidence that kubelet dropped the pod, or that it did not.

    A pod with a claim that kubelet has not unprepared is counted, whatever the checkpoint says.

    Only a complete question proves that, and only if the kubelet that answers now is the one that
    had the pod in a checkpoint that it wrote itself. Evidence from another boot does not count.
    """
    if record.counted_boot not in {None, boot}:
        record = replace(record, counted_by=None, let_go_at=None, counted_boot=None)
    counted = has_claim or (view.readable and view.counts(record.uid))
    if counted:  # seen at any time, it starts the evidence over
        record = replace(record, let_go_at=None)
    if not (view.readable and view.answered) or view.kubelet is None:
        return record
    if counted:
        return replace(record, counted_by=view.kubelet, counted_boot=boot)
    if record.counted_by != view.kubelet:
        return replace(record, let_go_at=None)
    if record.let_go_at is None:
        return replace(record, let_go_at=view.asked_at)
    return record


class Observation(Struct, frozen=True, kw_only=True):
    """What the book is compared with."""

    view: KubeletView
    inventory: Inventory
    boot: BootId
    sightings: Mapping[PodUid, PodSighting] = field(default_factory=dict)
    pending_timeout: float
    adopts: bool = True
    """Whether the pods that only kubelet's checkpoint names get an Allocation."""


def changes_with_time(book: Book) -> bool:
    """Tell whether time alone may make `reconcile` change *book*.

    A pod may be named by nobody in time, and a claim that is over is forgotten. Otherwise the same
    observations of the same book have the same result at any time.
    """
    unnamed = (
        each.pod is None and each.phase is Phase.PENDING for each in book.allocations.values()
    )
    return any(unnamed) or any(each.over_at is not None for each in book.claims.values())


def without_retired(
    view: KubeletView,
    book: Book,
    sightings: Mapping[PodUid, PodSighting],
    boot: BootId,
    *,
    is_retired: Callable[[ResourceName], bool],
) -> KubeletView:
    """Return *view* without the entries of retired resources whose pods have no cgroup any more.

    A resource is retired when its hardware came by the device plugin and comes by claims now. Then
    nothing makes kubelet write its checkpoint, which names a pod that is over until it does; and it
    admits no pod that would begin to use the resource. A pod that was seen in this boot, and has
    had no cgroup yet, may be about to get one.
    """
    without = {entry.pod for entry in view.entries if is_retired(entry.resource)} - sightings.keys()
    gone = frozenset(pod for pod in without if not _may_begin(book.pods.get(pod), boot))
    if not gone:
        return view
    left = (each for each in view.entries if each.pod not in gone or not is_retired(each.resource))
    return replace(view, entries=tuple(left), retired=gone)


def _may_begin(record: PodRecord | None, boot: BootId) -> bool:
    return record is not None and record.boot == boot and record.cgroup is None


def reconcile(draft: Draft, observed: Observation) -> None:
    """Identify, end and adopt Allocations as *observed* shows, then hand out what became free."""
    place(draft, observed.inventory.cards)
    if observed.adopts:
        draft.pay()
    _identify(draft, observed)
    _end(draft, observed)
    _adopt(draft, observed)
    _hand_back(draft, observed)
    drop_old_claims(draft)
    note_pods(draft, observed.view, observed.sightings, observed.boot)
    settle(draft)


def lacking(book: Book, observed: Observation) -> Observation:
    """Return *observed* for `take_in`, without what *book* has: that can end before it is taken in.

    What is not all a pod's that is known stays.
    """

    def has(entry: CheckpointEntry) -> bool:
        naming = book.holdings.naming(entry.resource, entry.devices)
        own = [each.pod == entry.pod and each.ids >= entry.devices for each in naming]
        return bool(own) and all(own)

    entries = tuple(each for each in observed.view.entries if not has(each))
    return replace(observed, view=replace(observed.view, entries=entries))


def take_in(draft: Draft, observed: Observation) -> None:
    """Identify and adopt as *observed* shows; it may be old, and who ends by it may run again."""
    place(draft, observed.inventory.cards)
    _identify(draft, observed)
    _adopt(draft, observed)
    settle(draft)


def _identify(draft: Draft, observed: Observation) -> None:
    view = observed.view
    if not view.readable:
        return
    unnamed = grouped(
        ((each.resource, each.ids), each)
        for each in draft.book.queue()
        if each.pod is None and is_newer(view, each, observed.boot)
    )
    for (resource, ids), allocations in unnamed.items():
        entries = view.entries_of(resource, ids)
        pods = {entry.pod for entry in entries}
        if len(pods) == 1:
            owed = draft.owes((resource, ids))
            _name(draft, allocations, pods.pop(), containers=len(entries), owed=owed)


def _name(
    draft: Draft, allocations: Sequence[Allocation], pod: PodUid, *, containers: int, owed: bool
) -> None:
    """Write down that *allocations*, of the same devices and the oldest first, are those of *pod*.

    Kubelet allocates once for each of its *containers*. What is older was a pod's that kubelet did
    not admit: it has no right to a place in the queue, which *pod* would inherit. While some are
    *owed*, the others may all be older.
    """
    latest = allocations[-containers:]
    for allocation in allocations:
        if allocation.phase is Phase.PENDING and allocation not in latest:
            draft.withdraw(allocation, f"its devices were allocated again, to pod {pod}")
        elif not owed:
            draft.identify(allocation, pod)


def _end(draft: Draft, observed: Observation) -> None:
    book = draft.book
    for allocation in book.queue():
        if allocation.claim is not None:  # kubelet itself says when a claim is over
            continue
        rebooted = allocation.boot != observed.boot
        if rebooted and _leads_elsewhere(allocation, observed):
            draft.withdraw(allocation, "since a reboot kubelet's ids mean other devices")
            continue
        if _is_counted(allocation.pod, observed.view):
            continue  # as `over` would say; but on most nodes these are nearly all
        cgroup = allocation.pod in observed.sightings
        record = None if allocation.pod is None else book.pods.get(allocation.pod)
        had = record is not None and record.cgroup is not None and record.boot == observed.boot
        reason = over(
            AllocationFacts(
                allocation=allocation,
                view=observed.view,
                newer=is_newer(observed.view, allocation, observed.boot),
                allocated_again=_allocated_again(allocation, book, observed),
                cgroup=cgroup,
                cgroup_gone=had and not cgroup,
                let_go=record is not None and _let_go(record, observed),
                started=book.holdings.has_started(allocation, allocation.keys),
                rebooted=rebooted,
                asked_after_start=(
                    observed.view.asked_at - allocation.started_at
                    if observed.view.answered
                    else None
                ),
                # It is at least as old as this boot.
                age=draft.uptime - (0.0 if rebooted else allocation.answered_at),
                timeout=observed.pending_timeout,
            )
        )
        if reason is not None:
            draft.end(allocation, reason)


def _leads_elsewhere(allocation: Allocation, observed: Observation) -> bool:
    """Tell whether its pod, which has not started since a reboot, gets other devices at its start.

    What a former plugin called a device, such as its IOMMU group, may be another's name now.
    """
    if allocation.pod is None or not observed.view.readable:
        return False
    resource = allocation.resource
    entries = observed.view.entries_of_pod(allocation.pod)
    names = {id_ for each in entries if each.resource == resource for id_ in each.devices}
    found = {id_: observed.inventory.find(resource, id_) for id_ in names}
    here = {device.name.id for device in found.values() if device is not None}
    # One that is not here may not have been seen yet.
    return bool(here) and None not in found.values() and not allocation.ids <= here


def _let_go(record: PodRecord, observed: Observation) -> bool:
    if record.let_go_at is None or record.counted_boot != observed.boot:
        return False
    return record.counted_by is not None and record.counted_by == observed.view.kubelet


def _allocated_again(allocation: Allocation, book: Book, observed: Observation) -> bool:
    view = observed.view
    return any(
        other.id > allocation.id
        and other.claim is None
        # Its own containers ask for the same ids one after another, each with an Allocate.
        and not same_holder(other, allocation)
        and (view.unreadable or is_newer(view, other, observed.boot))
        for other in book.holdings.naming(allocation.resource, allocation.ids)
    )


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
    others = {each for name, _ in allocation.names() for each in view.pods_with(name)}
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
    if pod in facts.view.retired:
        return f"pod {pod} has no cgroup, and the hardware comes by claims now"
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


def _adopt(draft: Draft, observed: Observation) -> None:
    """Give every pod in kubelet's checkpoint an Allocation, also those from before our time."""
    if not (observed.view.readable and observed.adopts):
        return
    for entry in observed.view.entries:
        if entry.resource not in observed.inventory.resources:
            continue
        devices = _devices_of(entry, draft, observed.inventory)
        naming = draft.holdings.naming(entry.resource, devices)
        live = [each for each in naming if each.claim is None]
        if any(each.pod == entry.pod and each.ids >= devices.keys() for each in live):
            continue
        # An Allocation whose pod is unknown may be this one: the next view shows it.
        if not devices or any(each.pod is None for each in live):
            continue
        allocation = draft.allocate(
            entry.resource,
            devices,
            checkpoint=observed.view.file,
            answered_at=observed.view.read_at,
            pod=entry.pod,
        )
        # Its pod lives, so it may have started; but not on what another had at that time.
        if _lives(entry.pod, observed) and could_have_started(allocation, draft.holdings):
            draft.activate(allocation)


def _hand_back(draft: Draft, observed: Observation) -> None:
    """Give a pod that kubelet counts what it has, where the book said that it was over.

    Kubelet's absence of mind is no end, a static pod comes back under its UID, and what was called
    foreign may be a pod's whose entry could not be read before, or a claim's that was taken over
    only afterwards.
    """
    for lock in list(draft.locks.values()):
        if lock.state is LockState.HELD:
            continue
        heirs = [each for each in draft.holdings.on(lock.keys) if _is_back(each, lock, observed)]
        if not heirs:
            _lift(draft, lock, observed)
            continue
        heir = next((each for each in heirs if each.phase is Phase.ACTIVE), heirs[0])
        says = "counts the pod" if heir.claim is None else "has prepared its claim"
        draft.hand(lock, heir, f"kubelet {says}")
        # A process of its former start may have the device.
        if _lives(heir.pod, observed) and could_have_started(heir, draft.holdings):
            draft.activate(heir)


def _lift(draft: Draft, lock: DeviceLock, observed: Observation) -> None:
    """Free what was called foreign, where a pod that kubelet counts has the card in another way.

    Only where that pod gets its own lock by it: else its processes would be foreign again.
    """
    if lock.state is not LockState.FOREIGN:
        return
    back = (each for each in draft.holdings.contending(lock.keys) if _is_back(each, lock, observed))
    for each in back:
        others = draft.holdings.locks_on(each.keys)
        if all(one.state is LockState.FOREIGN or same_holder(one, each) for one in others):
            says = "counts a pod" if each.claim is None else "has prepared a claim"
            evidence = f"kubelet {says} that has it in another way"
            draft.move(lock.device, LockState.FREE, evidence)
            return


def _lives(pod: PodUid | None, observed: Observation) -> bool:
    sighting = None if pod is None else observed.sightings.get(pod)
    return sighting is not None and sighting.populated is not False


def _is_counted(pod: PodUid | None, view: KubeletView) -> bool:
    return pod is not None and view.readable and view.counts(pod)


def _is_back(each: Allocation, lock: DeviceLock, observed: Observation) -> bool:
    """Tell whether the pod of *each* has *lock*, which is ENDING or FOREIGN, again."""
    if each.claim is not None:  # what a claim has to give back, only kubelet's record gives back
        return lock.state is LockState.FOREIGN and each.phase is Phase.ACTIVE
    if lock.claim is not None:
        return False
    if not _is_counted(each.pod, observed.view):
        return False
    return each.pod == lock.pod if lock.state in ENDING else each.phase is Phase.ACTIVE


def _devices_of(
    entry: CheckpointEntry, draft: Draft, inventory: Inventory
) -> dict[DeviceId, frozenset[HardwareKey]]:
    found: dict[DeviceId, frozenset[HardwareKey]] = {}
    for id_ in sorted(entry.devices):
        device = inventory.find(entry.resource, id_)
        lock = draft.locks.get(DeviceName(entry.resource, id_))
        if device is not None:
            found[device.name.id] = device.keys
        elif lock is not None:  # its hardware is gone, its pod is not
            found[id_] = lock.keys
        elif keys := inventory.keys_of(id_):  # a rule moved it, or its card was divided
            found[id_] = keys
    return found
