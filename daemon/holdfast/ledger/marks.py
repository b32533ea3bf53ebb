"""Between rows and values: what a person withholds by hand."""

import sqlite3
from collections import defaultdict

from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName

_SINCE_VERSION = 2


def read(db: sqlite3.Connection) -> Marks:
    """Return the marks; a file from before there were any, open for reading alone, has none."""
    if db.execute("PRAGMA user_version").fetchone()[0] < _SINCE_VERSION:
        return Marks()
    keys: dict[DeviceName, set[HardwareKey]] = defaultdict(set)
    for resource, device, key in db.execute("SELECT resource, device, key FROM quarantine_keys"):
        keys[_name(resource, device)].add(key)
    quarantines = {
        _name(resource, device): Quarantine(
            device=_name(resource, device),
            keys=frozenset(keys[_name(resource, device)]),
            mark=_mark(*mark),
        )
        for resource, device, *mark in db.execute(
            "SELECT resource, device, at, uid, pid, reason FROM quarantines"
        ).fetchall()
    }
    drain = db.execute("SELECT at, uid, pid, reason FROM drain").fetchone()
    return Marks(quarantines=quarantines, drain=None if drain is None else _mark(*drain))


def write(db: sqlite3.Connection, marks: Marks) -> None:
    """Write all of *marks* in place of what was there: they are few, and change seldom."""
    db.execute("DELETE FROM quarantines")
    db.execute("DELETE FROM drain")
    for name, each in marks.quarantines.items():
        db.execute(
            "INSERT INTO quarantines (resource, device, at, uid, pid, reason) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (name.resource, name.id, *_row(each.mark)),
        )
        db.executemany(
            "INSERT INTO quarantine_keys (resource, device, key) VALUES (?, ?, ?)",
            [(name.resource, name.id, key) for key in each.keys],
        )
    if marks.drain is not None:
        db.execute(
            "INSERT INTO drain (only, at, uid, pid, reason) VALUES (1, ?, ?, ?, ?)",
            _row(marks.drain),
        )


def _name(resource: str, device: str) -> DeviceName:
    return DeviceName(ResourceName(resource), DeviceId(device))


def _mark(at: float, uid: int, pid: int, reason: str) -> Mark:
    return Mark(asker=Asker(uid=uid, pid=pid), at=at, reason=reason)


def _row(mark: Mark) -> tuple[float, int, int, str]:
    return (mark.at, mark.asker.uid, mark.asker.pid, mark.reason)
