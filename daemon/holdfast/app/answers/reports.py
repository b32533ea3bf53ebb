"""What the daemon tells the command line about itself and its claims, as plain dictionaries."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.model.book.book import Allocation, Book, ClaimRecord, DeviceLock, LockState, Move
from holdfast.model.book.claims import ClaimPhase, first_left, locks_of, phase_of
from holdfast.model.book.drift import Disagreement
from holdfast.model.book.marks import Marks
from holdfast.model.book.messages import BlockReason, of_lock, sentence
from holdfast.model.book.queue import missing
from holdfast.model.book.standing import FreeFor, Standing, Standings
from holdfast.model.devices import Device, ExcludedDevice, Inventory, told_of
from holdfast.model.gate.gate import told_queued, why_queued
from holdfast.model.ids import ClaimUid, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.node.memory import HolderMemory, Memory
from holdfast.model.reclaim.handrelease import judge_by_hand
from holdfast.model.text import MOST_MOVES
from holdfast.model.use.free import judge_kernel
from holdfast.model.use.holders import Holder, cause
from holdfast.reclaim.handrelease import HandReleaseView

Report = dict[str, Any]


def claim_reports(
    book: Book, seen: Mapping[DeviceName, BlockReason] | None = None
) -> list[dict[str, Any]]:
    """Return one report for each claim that has or waits for a device: its pods, what it waits for.

    `adminDevices` are those that it uses beside whoever has them (adminAccess). `waits` says what
    it waits for, or why its devices are not free yet; *seen* is what keeps devices from being free.
    """
    blocked = dict(seen or {})
    return [
        {
            "claim": str(record.ref),
            "claimUid": record.ref.uid,
            "phase": phase.value,
            "pods": _pods(record, book),
            "devices": [str(name) for name in _devices_of(record, book)],
            "adminDevices": [str(name) for name in sorted(record.admin)],
            "waits": _what_for(record, book, blocked),
        }
        for record in sorted(book.claims.values(), key=lambda each: each.ref)
        if (phase := phase_of(book, record)) is not ClaimPhase.OVER
    ]


def owner_report(each: Allocation | DeviceLock | None, book: Book) -> Report:
    """Return whose *each* is: the pod and the claim, as far as there is one and it is known."""
    pod, claim = (None, None) if each is None else (each.pod, each.claim)
    return {"pod": pod, "podName": pod_name(pod, book), **claim_report(claim, book)}


def claim_report(uid: ClaimUid | None, book: Book) -> dict[str, Any]:
    """Return the fields of the claim that has or waits for a device; null without one."""
    record = None if uid is None else book.claims.get(uid)
    return {
        "claim": None if record is None else str(record.ref),
        "claimUid": uid,
        "claimPhase": None if record is None else phase_of(book, record).value,
        "claimPods": None if record is None else _pods(record, book),
    }


def claim_by(holder: Holder, device: DeviceName, book: Book) -> ClaimUid | None:
    """Return the claim by which the pod of *holder* has *device*, None for the device plugin's."""
    lock = book.locks.get(device)
    record = None if lock is None or lock.claim is None else book.claims.get(lock.claim)
    return record.ref.uid if record is not None and holder.pod in record.pods else None


def admin_reports(book: Book) -> list[dict[str, Any]]:
    """Return one report for each device that a claim uses beside whoever has it (adminAccess)."""
    return [
        {
            "device": str(name),
            "state": "admin",
            "fence": None,
            "pod": None,
            "podName": None,
            **claim_report(record.ref.uid, book),
            "since": None,
            "reason": "it has adminAccess: it has no lock, and keeps nobody from the device",
            "until": None,
            "keys": sorted(keys),
        }
        for record in sorted(book.claims.values(), key=lambda each: each.ref)
        for name, keys in sorted(record.admin.items())
    ]


def _devices_of(record: ClaimRecord, book: Book) -> list[DeviceName]:
    """Return what the claim has or waits for."""
    asked = {name for each in book.holdings.of_claim(record.ref.uid) for name, _ in each.names()}
    return sorted(asked | {lock.device for lock in locks_of(book, record.ref.uid)})


def _what_for(
    record: ClaimRecord, book: Book, seen: Mapping[DeviceName, BlockReason]
) -> str | None:
    mine = book.holdings.of_claim(record.ref.uid)
    if waits := next(filter(None, (told_queued(book, each, seen) for each in mine)), None):
        return waits
    left = first_left(book, record.ref.uid)
    if left is None:
        return None
    return sentence(of_lock(left.device, left, seen.get(left.device), book))


def _pods(record: ClaimRecord, book: Book) -> list[str]:
    return [str(book.pods.get(pod, pod)) for pod in sorted(record.pods)]


def device_reports(
    standings: Standings,
    left_out: Iterable[ExcludedDevice],
    book: Book,
    offered: Container[DeviceName],
    notes: Mapping[str, tuple[str, ...]],
) -> list[Report]:
    """Return one report for each device, with its lock's state and pod, and for what is *left_out*.

    *offered* are those that kubelet or the scheduler may give to a pod. *notes* are reasons by
    device id that make nothing Unhealthy, such as what cannot be seen.
    """
    reports = [
        _device_report(device, each, book, offered, notes)
        for each in standings.listed
        if (device := each.device) is not None
    ]
    return reports + [_left_out_report(each, book) for each in left_out]


def lock_reports(book: Book, standings: Standings) -> list[Report]:
    """Return one report for each lock, for each Allocation that waits, and for administrators.

    The reason also says whether the settings take the device away when it is free.
    """
    locks = [
        _lock_report(book.locks[device], book, standings.get(device))
        for device in sorted(book.locks)
    ]
    queued = [
        {
            "device": str(name),
            "state": "queued",
            "fence": None,
            **owner_report(allocation, book),
            "since": allocation.created_at,
            "reason": why_queued(book, allocation, lacks),
            "until": None,
            "keys": sorted(keys),
        }
        for allocation, name, keys, lacks in _queued(book)
    ]
    return locks + queued + admin_reports(book)


def waiting(book: Book) -> Counter[ResourceName]:
    """Return for how many devices of each resource a pod or claim waits that was granted them."""
    return Counter(name.resource for _, name, _, _ in _queued(book))


def _queued(
    book: Book,
) -> Iterator[tuple[Allocation, DeviceName, frozenset[HardwareKey], frozenset[HardwareKey]]]:
    """Yield each device that an Allocation waits for: its hardware, and what of it is missing."""
    for allocation in book.queue():
        for name, keys in allocation.names():
            if lacks := missing(book.holdings, allocation, keys):
                yield allocation, name, keys, lacks


def holder_reports(
    holders: Mapping[DeviceName, Iterable[Holder]],
    book: Book,
    memories: Mapping[int, HolderMemory] | None = None,
) -> list[Report]:
    """Return one report for each process that has a device in use.

    Its claim is the one by which its pod has the device. *memories* by pid: limit, usage, headroom
    and memlock are in bytes, None where not known.
    """
    memories = memories or {}
    return [
        {
            "device": str(device),
            "pid": holder.process.pid,
            "command": holder.command,
            "uid": holder.uid,
            "access": sorted(each.value for each in holder.access),
            "pod": holder.pod,
            "podName": pod_name(holder.pod, book),
            "container": holder.container,
            **claim_report(claim_by(holder, device, book), book),
            "cause": cause(holder, found),
            **_memory_report(memories.get(holder.process.pid, HolderMemory())),
        }
        for device, found in sorted((name, tuple(each)) for name, each in holders.items())
        for holder in found
    ]


def moves_wanted(limit: object) -> int:
    """Return how many moves to tell when *limit* are asked for; SQLite takes -1 for all."""
    return min(max(int(str(limit)), 1), MOST_MOVES)


def history_reports(moves: Iterable[Move], book: Book) -> list[Report]:
    """Return one report for each move, oldest first; *book* may know names that came later."""
    return [
        {
            "at": move.at,
            "device": str(move.device),
            "fence": move.fence,
            "from": move.before.value,
            "to": move.after.value,
            "pod": move.pod,
            "podName": move.pod_name or pod_name(move.pod, book),
            "claim": move.claim,
            "evidence": move.evidence,
        }
        for move in moves
    ]


def mark_reports(marks: Marks) -> list[Report]:
    """Return one report for each thing withheld by hand: the whole node first, as no device."""
    drain = [] if marks.drain is None else [(None, marks.drain)]
    quarantines = [(str(name), marks.quarantines[name].mark) for name in sorted(marks.quarantines)]
    return [
        {
            "device": device,
            "state": "quarantined" if device else "draining",
            "since": mark.at,
            "uid": mark.asker.uid,
            "pid": mark.asker.pid,
            "reason": mark.reason,
        }
        for device, mark in [*drain, *quarantines]
    ]


def release_report(seen: HandReleaseView, *, patience: float) -> Report:
    """Return what a person sees before they agree to a release; *patience* is in seconds."""
    verdict, lock, pod = judge_by_hand(seen), seen.lock, seen.pod
    holders = seen.kernel.holders or ()
    known = {each.process for each in holders}
    rest = [each for each in seen.blockers if each.process not in known]
    return {
        "device": str(seen.device),
        "state": lock.state.value if lock is not None else LockState.FREE.value,
        "fence": lock.fence if lock is not None else None,
        "since": lock.since if lock is not None else None,
        "reason": lock.evidence if lock is not None else "",
        "pod": str(pod) if pod is not None else None,
        "claim": str(seen.claim.ref) if seen.claim is not None else None,
        "kernel": judge_kernel(seen.kernel).reason,
        "holders": [str(each) for each in holders],
        "others": [f"pid {each.process} ({each.command})" for each in rest],
        "refusal": verdict.refusal,
        "forced": verdict.forced,
        "patience": patience,
    }


def resource_reports(
    resources: Iterable[ResourceName],
    standings: Standings,
    offered: Container[DeviceName],
    book: Book,
) -> list[Report]:
    """Return one report for each resource: how many devices, and how many of which kind."""
    waited_for = waiting(book)
    return [
        {
            "name": resource,
            "devices": len(devices),
            "healthy": sum(each.healthy for each in devices),
            "offered": sum(each.name in offered for each in devices),
            "locked": sum(each.lock is not None for each in devices),
            "waiting": waited_for[resource],
        }
        for resource in resources
        for devices in [standings.of(resource)]
    ]


def rule_reports(inventory: Inventory) -> list[Report]:
    """Return one report for each device that a rule of the settings leaves out or will, and why.

    A rule that does nothing has a report without a device.
    """
    told = [(str(each.device.name), each.reason) for each in inventory.left_out]
    told += [(str(each.name), each.leaving) for each in inventory.devices if each.leaving]
    rows: list[Report] = [{"device": name, "reason": reason} for name, reason in told]
    return rows + [{"device": None, "reason": reason} for reason in inventory.idle_rules]


def drift_reports(standing: Mapping[Disagreement, float]) -> list[Report]:
    """Return one report for each disagreement, with since when it has stood."""
    return [asdict(each) | {"since": since} for each, since in sorted(standing.items())]


def _memory_report(found: HolderMemory) -> Report:
    """Return what a holder may use; it is shown even where its cgroup is out of sight."""
    memory = found.memory if found.memory.cgroups else Memory()
    bounded = None if found.memlock is None else found.memlock.bounded
    return {
        "limit": memory.limit,
        "limitAt": memory.tightest.path if memory.tightest is not None else None,
        "usage": memory.usage,
        "headroom": memory.headroom,
        "memlock": "unlimited" if found.memlock is not None and bounded is None else bounded,
    }


def _device_report(
    device: Device,
    standing: Standing,
    book: Book,
    offered: Container[DeviceName],
    notes: Mapping[str, tuple[str, ...]],
) -> Report:
    lock = standing.lock
    return {
        "resource": device.name.resource,
        "id": device.name.id,
        "model": device.model,
        "health": "Healthy" if standing.healthy else "Unhealthy",
        "offered": device.name in offered,
        "numa": device.numa_node,
        "nodes": [node.path for node in device.nodes],
        "lock": standing.state.value,
        "lockDevice": str(lock.device) if lock is not None else None,
        **owner_report(lock, book),
        "freeFor": standing.free_for.value,
        "until": standing.until or None,
        "reasons": [
            *(fault.text for fault in device.faults),
            *told_of(device, notes),
            *filter(None, [standing.leaving, standing.withheld]),
        ],
        "faults": [fault.text for fault in device.faults],
        "obstacle": str(standing.obstacle) if standing.obstacle else None,
    }


def _left_out_report(left: ExcludedDevice, book: Book) -> Report:
    """Return the report of a device that pods are not given: nobody looks who uses it."""
    device = left.device
    return {
        "resource": device.name.resource,
        "id": device.name.id,
        "model": device.model,
        "health": "LeftOut",
        "offered": False,
        "numa": device.numa_node,
        "nodes": [node.path for node in device.nodes],
        "lock": None,
        "lockDevice": None,
        **owner_report(None, book),
        "freeFor": FreeFor.NONE.value,
        "until": "the settings no longer leave it out",
        "reasons": [left.reason],
        "faults": [],
        "obstacle": None,
    }


def _lock_report(lock: DeviceLock, book: Book, standing: Standing | None) -> Report:
    leaving = "" if standing is None else standing.leaving
    return {
        "device": str(lock.device),
        "state": lock.state.value,
        "fence": lock.fence,
        **owner_report(lock, book),
        "since": lock.since,
        "reason": "; ".join(filter(None, (lock.evidence, leaving))),
        "until": None if standing is None else standing.until or None,
        "keys": sorted(lock.keys),
    }


def pod_name(pod: PodUid | None, book: Book) -> str | None:
    """Return ``namespace/name`` of a pod, None where it is not known."""
    record = book.pods.get(pod) if pod is not None else None
    return None if record is None else record.full_name
