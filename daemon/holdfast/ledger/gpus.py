"""Between rows and values: what is remembered of GPUs."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping

from holdfast.model.ids import BootId, PciAddress
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.idle import IdleMemory
from holdfast.model.nvidia.xid_marks import XidMark

_SINCE_VERSION = 3
_IDLE_SINCE_VERSION = 5
_NONE = -1


def read(db: sqlite3.Connection) -> Mapping[str, GpuState]:
    """Return the GPUs; a file from before there were any, open for reading alone, has none."""
    if db.execute("PRAGMA user_version").fetchone()[0] < _SINCE_VERSION:
        return {}
    pci_column = "pci" if has_idle(db) else "NULL"
    marks: dict[str, list[XidMark]] = defaultdict(list)
    for uuid, xid, gi, ci, suspected, first, last, count in db.execute(
        "SELECT uuid, xid, gi, ci, suspected, first, last, count FROM gpu_xids ORDER BY last"
    ):
        marks[uuid].append(
            XidMark(
                xid=xid,
                gi=None if gi == _NONE else gi,
                ci=None if ci == _NONE else ci,
                suspected=bool(suspected),
                first=first,
                last=last,
                count=count,
            )
        )
    return {
        uuid: GpuState(
            uuid=uuid,
            boot=BootId(boot),
            pci=None if pci is None else PciAddress(pci),
            driver=driver,
            marks=tuple(marks[uuid]),
            awaits=frozenset(json.loads(awaits)),
        )
        for uuid, boot, driver, awaits, pci in db.execute(
            f"SELECT uuid, boot, driver, awaits, {pci_column} FROM gpus"  # noqa: S608 - constants
        ).fetchall()
    }


def has_idle(db: sqlite3.Connection) -> bool:
    """Tell whether the file is not from before idle memory, and who started, was written down."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version >= _IDLE_SINCE_VERSION


def read_idle(db: sqlite3.Connection) -> Mapping[str, IdleMemory]:
    """Return how much memory GPUs need while nobody uses them."""
    if not has_idle(db):
        return {}
    return {
        name: IdleMemory(load=load, least=least, now=now)
        for name, load, least, now in db.execute(
            "SELECT name, load, least, now FROM gpu_idle ORDER BY rowid"
        )
    }


def write_idle(
    db: sqlite3.Connection, before: Mapping[str, IdleMemory], after: Mapping[str, IdleMemory]
) -> None:
    """Write what differs."""
    for name in before.keys() | after.keys():
        idle = after.get(name)
        if idle == before.get(name):
            continue
        db.execute("DELETE FROM gpu_idle WHERE name = ?", (name,))
        if idle is not None:
            db.execute(
                "INSERT INTO gpu_idle (name, load, least, now) VALUES (?, ?, ?, ?)",
                (name, idle.load, idle.least, idle.now),
            )


def write(
    db: sqlite3.Connection, before: Mapping[str, GpuState], after: Mapping[str, GpuState]
) -> None:
    """Write each GPU that differs, whole."""
    for uuid in before.keys() | after.keys():
        state = after.get(uuid)
        if state == before.get(uuid):
            continue
        db.execute("DELETE FROM gpus WHERE uuid = ?", (uuid,))
        if state is not None:
            _write(db, state)


def _write(db: sqlite3.Connection, state: GpuState) -> None:
    db.execute(
        "INSERT INTO gpus (uuid, boot, pci, driver, awaits) VALUES (?, ?, ?, ?, ?)",
        (state.uuid, state.boot, state.pci, state.driver, json.dumps(sorted(state.awaits))),
    )
    db.executemany(
        "INSERT INTO gpu_xids (uuid, xid, gi, ci, suspected, first, last, count) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                state.uuid,
                mark.xid,
                _NONE if mark.gi is None else mark.gi,
                _NONE if mark.ci is None else mark.ci,
                int(mark.suspected),
                mark.first,
                mark.last,
                mark.count,
            )
            for mark in state.marks
        ],
    )
