"""Answers while the daemon is down, from its ledger file, in the same form as the daemon's.

What only the running daemon can know is null. Imported only when it is needed: it loads SQLite.
"""

from collections import Counter
from functools import partial
from pathlib import Path

from holdfast.app.answers.reports import (
    claim_reports,
    history_reports,
    lock_reports,
    mark_reports,
    owner_report,
    waiting,
)
from holdfast.cli.tables import Row, Rows
from holdfast.ledger import rows
from holdfast.ledger.readonly import read_only
from holdfast.model.book.byhand import device_meant
from holdfast.model.book.standing import Standings
from holdfast.model.ids import ResourceName


def locks(folder: Path) -> Rows:
    """Return which pod had which device, and which pods waited."""
    return lock_reports(read_only(folder, rows.read_book), Standings())


def history(folder: Path, device: str | None, limit: int) -> Rows:
    """Return the last *limit* lock changes of *device*, named in full or by id; None: of all.

    Raises RequestRefusedError for a device that is not in the history.
    """
    name = device_meant(device, read_only(folder, rows.read_moved_devices)) if device else None
    moves = read_only(folder, partial(rows.read_history, device=name, limit=limit))
    return history_reports(moves, read_only(folder, rows.read_book))


def devices(folder: Path) -> Rows:
    """Return the devices that have a lock; the ledger does not have the others."""
    book = read_only(folder, rows.read_book)
    return [
        {
            "resource": lock.device.resource,
            "id": lock.device.id,
            "health": "unknown",
            **dict.fromkeys(("model", "offered", "numa", "nodes")),
            "lock": lock.state.value,
            "lockDevice": str(lock.device),
            **owner_report(lock, book),
            **dict.fromkeys(("freeFor", "until", "reasons", "faults", "obstacle")),
        }
        for _, lock in sorted(book.locks.items())
    ]


def status(folder: Path, problem: str) -> Row:
    """Return the status of a daemon that cannot be reached because of *problem*."""
    book = read_only(folder, rows.read_book)
    counts: Counter[ResourceName] = Counter(name.resource for name in book.locks)
    waited_for = waiting(book)
    return {
        **dict.fromkeys(("version", "pid", "bootId")),
        "claims": claim_reports(book),
        "drift": [],
        "noDevices": None,
        "checks": [{"name": "daemon", "passes": False, "reason": problem}],
        "resources": [
            {
                "name": name,
                **dict.fromkeys(("devices", "healthy", "offered")),
                "locked": counts[name],
                "waiting": waited_for[name],
            }
            for name in sorted(counts | waited_for)
        ],
        "byHand": mark_reports(book.marks),
        "rules": [],
    }
