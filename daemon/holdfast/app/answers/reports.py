"""What the daemon tells the command line about itself, as plain dictionaries."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.app.answers.claims import admin_reports, claim_by, claim_report
from holdfast.model.book.book import Book
from holdfast.model.book.drift import Disagreement
from holdfast.model.book.locks import DeviceLock, LockState, Move
from holdfast.model.book.marks import Marks
from holdfast.model.book.withheld import why_withheld
from holdfast.model.devices import Device, Inventory, LeftOut, told_of
from holdfast.model.gate.waiting import missing, why_queued
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.node.memory import HolderMemory, Memory
from holdfast.model.reclaim.handrelease import judge_by_hand
from holdfast.model.text import MOST_MOVES
from holdfast.model.use.free import judge_kernel
from holdfast.model.use.holders import Holder, cause
from holdfast.reclaim.handrelease import Shown

Report = dict[str, Any]


def device_reports(
    inventory: Inventory,
    book: Book,
    offered: Container[DeviceName],
    notes: Mapping[str, tuple[str, ...]],
) -> list[Report]:
    """Return one report for each device, with its lock's state and pod.

    *offered* are those that kubelet or the scheduler may give to a pod. *notes* are reasons by
    device id that make nothing Unhealthy, such as what cannot be seen.
    """
    reports = []
    for device in inventory.devices:
        lock = book.lock_on(device.keys)
        reports.append(
            {
                "resource": device.name.resource,
                "id": device.name.id,
                "model": device.model,
                "health": "Healthy" if device.healthy else "Unhealthy",
                "offered": device.name in offered,
                "reasons": [
                    *(fault.text for fault in device.faults),
                    *told_of(device.name.id, notes),
                    *filter(None, [device.leaving]),
                    *_withheld(book, device),
                ],
                "numa": device.numa_node,
                "nodes": [node.path for node in device.nodes],
                "lock": lock.state.value if lock is not None else "free",
                "pod": lock.pod if lock is not None else None,
                **claim_report(lock.claim if lock is not None else None, book),
            }
        )
    return reports + [_left_out_report(each) for each in inventory.left_out]


def lock_reports(book: Book, inventory: Inventory) -> list[Report]:
    """Return one report for each lock, for each Allocation that waits, and for administrators.

    The reason also says whether the settings take the device away when it is free.
    """
    locks = [_lock_report(book.locks[device], book, inventory) for device in sorted(book.locks)]
    queued = [
        {
            "device": str(name),
            "state": "queued",
            "fence": None,
            "pod": allocation.pod,
            "podName": _pod_name(allocation.pod, book),
            **claim_report(allocation.claim, book),
            "since": allocation.created_at,
            "reason": why_queued(book, allocation, lacks),
            "keys": sorted(keys),
        }
        for allocation in book.queue()
        for name, keys in allocation.names()
        if (lacks := missing(book, allocation, keys))
    ]
    return locks + queued + admin_reports(book)


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
            "grips": sorted(grip.value for grip in holder.grips),
            "pod": holder.pod,
            "container": holder.container,
            **claim_report(claim_by(holder, device, book), book),
            "cause": cause(holder, found),
            **_memory_report(memories.get(holder.process.pid)),
        }
        for device, found in sorted((name, tuple(each)) for name, each in holders.items())
        for holder in found
    ]


def moves_wanted(limit: object) -> int:
    """Return how many moves to tell when *limit* are asked for; SQLite takes -1 for all."""
    return min(max(int(str(limit)), 1), MOST_MOVES)


def history_reports(moves: Iterable[Move]) -> list[Report]:
    """Return one report for each move, oldest first."""
    return [
        {
            "at": move.at,
            "device": str(move.device),
            "fence": move.fence,
            "from": move.before.value,
            "to": move.after.value,
            "pod": move.pod,
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


def release_report(seen: Shown, *, patience: float) -> Report:
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
    inventory: Inventory, book: Book, offered: Container[DeviceName]
) -> list[Report]:
    """Return one report for each resource: how many devices, and how many of which kind."""
    return [
        {
            "name": resource,
            "devices": len(inventory.of(resource)),
            "healthy": sum(device.healthy for device in inventory.of(resource)),
            "offered": sum(device.name in offered for device in inventory.of(resource)),
            "locked": sum(book.lock_on(each.keys) is not None for each in inventory.of(resource)),
        }
        for resource in inventory.resources
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


def _memory_report(found: HolderMemory | None) -> Report:
    """Return what a holder may use; it is shown even where its cgroup is out of sight."""
    seen = found is not None and found.memory.cgroups
    memory = found.memory if found is not None and seen else Memory()
    memlock = found.memlock if found is not None else None
    bounded = memlock.bounded if memlock is not None else None
    return {
        "limit": memory.limit,
        "limitAt": memory.tightest.path if memory.tightest is not None else None,
        "usage": memory.usage,
        "headroom": memory.headroom,
        "memlock": "unlimited" if memlock is not None and bounded is None else bounded,
    }


def _withheld(book: Book, device: Device) -> list[str]:
    reason = why_withheld(book, device.keys)
    return [] if reason is None else [reason]


def _left_out_report(left: LeftOut) -> Report:
    """Return the report of a device that pods are not given: nobody looks who uses it."""
    device = left.device
    return {
        "resource": device.name.resource,
        "id": device.name.id,
        "model": device.model,
        "health": "LeftOut",
        "offered": False,
        "reasons": [left.reason],
        "numa": device.numa_node,
        "nodes": [node.path for node in device.nodes],
        "lock": None,
        "pod": None,
    }


def _lock_report(lock: DeviceLock, book: Book, inventory: Inventory) -> Report:
    device = inventory.get(lock.device)
    leaving = "" if device is None else device.leaving
    return {
        "device": str(lock.device),
        "state": lock.state.value,
        "fence": lock.fence,
        "pod": lock.pod,
        "podName": _pod_name(lock.pod, book),
        **claim_report(lock.claim, book),
        "since": lock.since,
        "reason": "; ".join(filter(None, (lock.evidence, leaving))),
        "keys": sorted(lock.keys),
    }


def _pod_name(pod: PodUid | None, book: Book) -> str | None:
    record = book.pods.get(pod) if pod is not None else None
    return f"{record.namespace}/{record.name}" if record is not None and record.name else None
