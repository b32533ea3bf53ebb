"""The answers to the command line about claims, as plain dictionaries."""

from typing import Any

from holdfast.model.book.book import Book, ClaimRecord
from holdfast.model.book.claims import ClaimPhase, locks_of, phase_of
from holdfast.model.book.locks import LockState
from holdfast.model.gate.gate import belongs_to
from holdfast.model.gate.waiting import missing, why_queued
from holdfast.model.ids import ClaimUid, DeviceName
from holdfast.model.use.holders import Holder


def claim_reports(book: Book) -> list[dict[str, Any]]:
    """Return one report for each claim that has or waits for a device: its pods, what it waits for.

    `adminDevices` are those that it uses beside whoever has them (adminAccess). `waits` says what
    it waits for, or why its devices are not free yet.
    """
    return [
        {
            "claim": str(record.ref),
            "claimUid": record.ref.uid,
            "phase": phase.value,
            "pods": _pods(record, book),
            "devices": [str(name) for name in _devices_of(record, book)],
            "adminDevices": [str(name) for name in sorted(record.admin)],
            "waits": _what_for(record, book),
        }
        for record in sorted(book.claims.values(), key=lambda each: each.ref)
        if (phase := phase_of(book, record)) is not ClaimPhase.OVER
    ]


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
            "keys": sorted(keys),
        }
        for record in sorted(book.claims.values(), key=lambda each: each.ref)
        for name, keys in sorted(record.admin.items())
    ]


def _devices_of(record: ClaimRecord, book: Book) -> list[DeviceName]:
    """Return what the claim has or waits for."""
    asked = {name for each in book.holdings.of_claim(record.ref.uid) for name, _ in each.names()}
    return sorted(asked | {lock.device for lock in locks_of(book, record.ref.uid)})


def _what_for(record: ClaimRecord, book: Book) -> str | None:
    queued = (
        why_queued(book, allocation, lacks)
        for allocation in book.holdings.of_claim(record.ref.uid)
        for _, keys in allocation.names()
        if (lacks := missing(book, allocation, keys))
    )
    ending = (
        belongs_to(lock, book)
        for lock in locks_of(book, record.ref.uid)
        if lock.state is not LockState.HELD
    )
    return next(iter((*queued, *ending)), None)


def _pods(record: ClaimRecord, book: Book) -> list[str]:
    return [str(book.pods.get(pod, pod)) for pod in sorted(record.pods)]
