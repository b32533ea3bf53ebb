"""Between rows and values: what is remembered of GPUs."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping

from holdfast.model.gpu_health import GpuState
from holdfast.model.ids import BootId
from holdfast.model.xid_marks import XidMark

_SINCE_VERSION = 3
_NONE = -1


def read(db: sqlite3.Connection) -> Mapping[str, GpuState]:
    """Return the GPUs; a file from before there were any, open for reading alone, has none."""
    if db.execute("PRAGMA user_version").fetchone()[0] < _SINCE_VERSION:
        return {}
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
            driver=driver,
            marks=tuple(marks[uuid]),
            resting=None if resting is None else frozenset(json.loads(resting)),
            awaits=frozenset(json.loads(awaits)),
        )
        for uuid, boot, driver, resting, awaits in db.execute(
            "SELECT uuid, boot, driver, resting, awaits FROM gpus"
        ).fetchall()
    }


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
        "INSERT INTO gpus (uuid, boot, driver, resting, awaits) VALUES (?, ?, ?, ?, ?)",
        (
            state.uuid,
            state.boot,
            state.driver,
            None if state.resting is None else json.dumps(sorted(state.resting)),
            json.dumps(sorted(state.awaits)),
        ),
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
