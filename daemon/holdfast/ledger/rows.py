"""Between rows and values: what of a book is in which table."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import asdict

from holdfast.model.book.book import Allocation, Book, ClaimRecord, Phase, PodRecord
from holdfast.model.book.locks import DeviceLock, LockState, Move
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)

K = TypeVar("K")
V = TypeVar("V")

_MARKS_SINCE_VERSION = 2
_MOMENTS_SINCE_VERSION = 4
"""Before, an Allocation had the time of its checkpoint, and a pod's end the time of day."""
_STARTED_SINCE_VERSION = 5
_KEPT_SINCE_VERSION = 6
_CLAIMS_SINCE_VERSION = 7
_ADMIN_SINCE_VERSION = 8


def read_book(db: sqlite3.Connection) -> Book:
    """Return everything but the history."""
    fence, last_allocation = db.execute("SELECT fence, last_allocation FROM counters").fetchone()
    return Book(
        fence=fence,
        last_allocation=last_allocation,
        allocations={each.id: each for each in _read_allocations(db)},
        locks={each.device: each for each in _read_locks(db)},
        pods={each.uid: each for each in _read_pods(db)},
        claims={each.ref.uid: each for each in _read_claims(db)},
        marks=_read_marks(db),
        kept=_read_kept(db),
    )


def read_history(db: sqlite3.Connection, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves, oldest first."""
    where = "WHERE resource = ? AND device = ?" if device else ""
    what = (device.resource, device.id) if device else ()
    found = _select(
        db,
        f"SELECT at, resource, device, fence, before, after, pod, evidence, {_claim(db)} "  # noqa: S608 - constants
        f"FROM history {where} ORDER BY seq DESC LIMIT ?",
        *what,
        limit,
    )
    return tuple(
        Move(**_named(row) | {"before": LockState(row["before"]), "after": LockState(row["after"])})
        for row in reversed(found)
    )


def read_moved_devices(db: sqlite3.Connection) -> frozenset[DeviceName]:
    """Return the devices of which there is any history."""
    found = db.execute("SELECT DISTINCT resource, device FROM history").fetchall()
    return frozenset(_name(resource, id_) for resource, id_ in found)


def write_difference(db: sqlite3.Connection, before: Book, after: Book) -> None:
    """Write what differs, deletions first so that a key can change hands in one commit."""
    db.execute(
        "UPDATE counters SET fence = ?, last_allocation = ?", (after.fence, after.last_allocation)
    )
    changed = _changed(before.locks, after.locks)
    for name in before.locks:
        if name not in after.locks or name in changed:
            db.execute(
                "DELETE FROM locks WHERE resource = ? AND device = ?", (name.resource, name.id)
            )
    for ended in before.allocations.keys() - after.allocations.keys():
        db.execute("DELETE FROM allocations WHERE id = ?", (ended,))
    for uid in before.pods.keys() - after.pods.keys():
        db.execute("DELETE FROM pods WHERE uid = ?", (uid,))
    for number, allocation in _changed(before.allocations, after.allocations).items():
        _write_allocation(db, allocation, is_new=number not in before.allocations)
    for lock in changed.values():
        _write_lock(db, lock)
    for pod in _changed(before.pods, after.pods).values():
        _write_pod(db, pod)
    _write_claims(db, before.claims, after.claims)
    if before.marks != after.marks:
        _write_marks(db, after.marks)
    _write_kept(db, before.kept, after.kept)


def write_moves(db: sqlite3.Connection, moves: Iterable[Move]) -> None:
    """Append to the history."""
    for move in moves:
        row = asdict(move) | _place(move.device)
        _insert(db, "history", row | {"before": move.before.value, "after": move.after.value})


def _changed(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V]:
    """Return what is new in *after* or differs from *before*."""
    # What a draft did not touch is the same object: a book of hundreds is gone through quickly.
    return {
        key: value
        for key, value in after.items()
        if (was := before.get(key)) is not value and was != value
    }


def _read_allocations(db: sqlite3.Connection) -> Iterable[Allocation]:
    keys: dict[int, dict[DeviceId, set[HardwareKey]]] = defaultdict(lambda: defaultdict(set))
    for allocation, device, key in db.execute(
        "SELECT allocation, device, key FROM allocation_keys"
    ):
        keys[allocation][device].add(key)
    moments = (
        "checkpoint, answered_at, started_at"
        if _has_moments(db)
        else "'' AS checkpoint, 0 AS answered_at, 0 AS started_at"
    )
    for row in _select(
        db,
        f"SELECT id, resource, created_at, boot, phase, pod, {moments}, "  # noqa: S608 - constants
        f"{_claim(db)} FROM allocations",
    ):
        own = keys[row["id"]]
        devices = {device: frozenset(own[device]) for device in sorted(own)}
        yield Allocation(**row | {"devices": devices, "phase": Phase(row["phase"])})


def _read_locks(db: sqlite3.Connection) -> Iterable[DeviceLock]:
    keys: dict[DeviceName, set[HardwareKey]] = defaultdict(set)
    for key, resource, device in db.execute("SELECT key, resource, device FROM lock_keys"):
        keys[_name(resource, device)].add(key)
    # A file from before it was written down, open for reading alone, does not tell who started.
    started = "started" if _version(db) >= _STARTED_SINCE_VERSION else "1 AS started"
    for each in _select(
        db,
        "SELECT resource, device, state, fence, since, boot, allocation, pod, evidence, "  # noqa: S608 - constants
        f"{started}, {_claim(db)} FROM locks",
    ):
        row = _named(each)
        state, own = LockState(row["state"]), frozenset(keys[row["device"]])
        yield DeviceLock(**row | {"state": state, "keys": own, "started": bool(row["started"])})


def _read_pods(db: sqlite3.Connection) -> Iterable[PodRecord]:
    moments = (
        "let_go_at, counted_boot" if _has_moments(db) else "NULL AS let_go_at, boot AS counted_boot"
    )
    for row in _select(
        db,
        "SELECT uid, boot, cgroup, inode, namespace, name, counted_pid, counted_start, "  # noqa: S608 - constants
        f"{moments} FROM pods",
    ):
        pid, start = row.pop("counted_pid"), row.pop("counted_start")
        yield PodRecord(**row, counted_by=None if pid is None else ProcessId(pid, start))


def _read_claims(db: sqlite3.Connection) -> Iterable[ClaimRecord]:
    """Yield the claims; an older file, open for reading alone, has none."""
    if _version(db) < _CLAIMS_SINCE_VERSION:
        return
    pods: dict[str, set[PodUid]] = defaultdict(set)
    for claim, pod in db.execute("SELECT claim, pod FROM claim_pods"):
        pods[claim].add(pod)
    admin = _read_admin(db)
    for row in _select(db, "SELECT uid, namespace, name, boot, over_at FROM claims"):
        ref = ClaimRef(row.pop("namespace"), row.pop("uid"), row.pop("name"))
        devices = {name: frozenset(keys) for name, keys in admin[ref.uid].items()}
        yield ClaimRecord(**row, ref=ref, pods=frozenset(pods[ref.uid]), admin=devices)


def _read_admin(db: sqlite3.Connection) -> Mapping[str, Mapping[DeviceName, set[HardwareKey]]]:
    """Return what claims have adminAccess to; an older file, open for reading alone, has none."""
    found: dict[str, dict[DeviceName, set[HardwareKey]]] = defaultdict(lambda: defaultdict(set))
    if _version(db) >= _ADMIN_SINCE_VERSION:
        for claim, resource, device, key in db.execute(
            "SELECT claim, resource, device, key FROM claim_admin"
        ):
            found[claim][_name(resource, device)].add(key)
    return found


def _write_claims(
    db: sqlite3.Connection,
    before: Mapping[ClaimUid, ClaimRecord],
    after: Mapping[ClaimUid, ClaimRecord],
) -> None:
    """Write what differs."""
    for uid, old in before.items():
        if after.get(uid) != old:
            db.execute("DELETE FROM claims WHERE uid = ?", (uid,))
    for uid, each in after.items():
        if before.get(uid) != each:
            row = asdict(each.ref) | {"boot": each.boot, "over_at": each.over_at}
            _insert(db, "claims", row)
            pods = [(uid, pod) for pod in sorted(each.pods)]
            db.executemany("INSERT INTO claim_pods VALUES (?, ?)", pods)
            admin = [
                (uid, name.resource, name.id, key)
                for name, keys in each.admin.items()
                for key in keys
            ]
            db.executemany("INSERT INTO claim_admin VALUES (?, ?, ?, ?)", admin)


def _claim(db: sqlite3.Connection) -> str:
    """Return the column of the claim, which older files, open for reading alone, do not have."""
    return "claim" if _version(db) >= _CLAIMS_SINCE_VERSION else "NULL AS claim"


def _read_kept(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """Return what vendors' adapters keep; an older file, open for reading alone, tells none."""
    kept: dict[str, dict[str, str]] = defaultdict(dict)
    if _version(db) >= _KEPT_SINCE_VERSION:
        for topic, name, text in db.execute("SELECT topic, name, text FROM kept ORDER BY rowid"):
            kept[topic][name] = text
    return dict(kept)


def _write_kept(
    db: sqlite3.Connection,
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
) -> None:
    """Write what differs."""
    for topic in before.keys() | after.keys():
        old, new = before.get(topic, {}), after.get(topic, {})
        for name in old:
            if new.get(name) != old[name]:
                db.execute("DELETE FROM kept WHERE topic = ? AND name = ?", (topic, name))
        db.executemany(
            "INSERT INTO kept (topic, name, text) VALUES (?, ?, ?)",
            [(topic, name, text) for name, text in new.items() if old.get(name) != text],
        )


def _has_moments(db: sqlite3.Connection) -> bool:
    return _version(db) >= _MOMENTS_SINCE_VERSION


def _version(db: sqlite3.Connection) -> int:
    """Return the version of the file, which may be an older one that is open for reading alone."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def _read_marks(db: sqlite3.Connection) -> Marks:
    """Return the marks; a file from before there were any, open for reading alone, has none."""
    if _version(db) < _MARKS_SINCE_VERSION:
        return Marks()
    keys: dict[DeviceName, set[HardwareKey]] = defaultdict(set)
    for resource, device, key in db.execute("SELECT resource, device, key FROM quarantine_keys"):
        keys[_name(resource, device)].add(key)
    found = db.execute("SELECT resource, device, at, uid, pid, reason FROM quarantines").fetchall()
    marks = {_name(resource, device): _mark(*mark) for resource, device, *mark in found}
    quarantines = {
        name: Quarantine(device=name, keys=frozenset(keys[name]), mark=mark)
        for name, mark in marks.items()
    }
    drain = db.execute("SELECT at, uid, pid, reason FROM drain").fetchone()
    return Marks(quarantines=quarantines, drain=None if drain is None else _mark(*drain))


def _write_allocation(db: sqlite3.Connection, each: Allocation, *, is_new: bool) -> None:
    if not is_new:  # its devices never change
        db.execute(
            "UPDATE allocations SET phase = ?, pod = ?, boot = ?, answered_at = ?, started_at = ? "
            "WHERE id = ?",
            (
                each.phase.value,
                each.pod,
                each.boot,
                each.answered_at,
                each.started_at,
                each.id,
            ),
        )
        return
    row = asdict(each) | {"phase": each.phase.value}
    del row["devices"]
    _insert(db, "allocations", row)
    db.executemany(
        "INSERT INTO allocation_keys VALUES (?, ?, ?)",
        [(each.id, device, key) for device, keys in each.devices.items() for key in keys],
    )


def _write_lock(db: sqlite3.Connection, lock: DeviceLock) -> None:
    row = asdict(lock) | _place(lock.device) | {"state": lock.state.value}
    del row["keys"]
    _insert(db, "locks", row)
    db.executemany(
        "INSERT INTO lock_keys VALUES (?, ?, ?)",
        [(key, lock.device.resource, lock.device.id) for key in lock.keys],
    )


def _write_pod(db: sqlite3.Connection, pod: PodRecord) -> None:
    counted, row = pod.counted_by, asdict(pod)
    del row["counted_by"]
    row["counted_pid"] = counted.pid if counted else None
    row["counted_start"] = counted.start_ticks if counted else None
    _insert(db, "pods", row, or_replace=True)


def _write_marks(db: sqlite3.Connection, marks: Marks) -> None:
    """Write all of *marks* in place of what was there: they are few and rarely change."""
    db.execute("DELETE FROM quarantines")
    db.execute("DELETE FROM drain")
    for name, each in marks.quarantines.items():
        _insert(db, "quarantines", _place(name) | _columns(each.mark))
        db.executemany(
            "INSERT INTO quarantine_keys (resource, device, key) VALUES (?, ?, ?)",
            [(name.resource, name.id, key) for key in each.keys],
        )
    if marks.drain is not None:
        _insert(db, "drain", {"only": 1} | _columns(marks.drain))


def _mark(at: float, uid: int, pid: int, reason: str) -> Mark:
    return Mark(asker=Asker(uid=uid, pid=pid), at=at, reason=reason)


def _columns(mark: Mark) -> dict[str, object]:
    return {"at": mark.at, "uid": mark.asker.uid, "pid": mark.asker.pid, "reason": mark.reason}


def _name(resource: str, id_: str) -> DeviceName:
    return DeviceName(ResourceName(resource), DeviceId(id_))


def _place(name: DeviceName) -> dict[str, object]:
    return {"resource": name.resource, "device": name.id}


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with the name of its device, whose two columns are gone."""
    rest = {column: value for column, value in row.items() if column != "resource"}
    return rest | {"device": _name(row["resource"], row["device"])}


def _select(db: sqlite3.Connection, command: str, *values: object) -> list[dict[str, Any]]:
    """Return the rows that *command* finds, each by the names of its columns."""
    found = db.execute(command, values)
    columns = [column for column, *_ in found.description]
    return [dict(zip(columns, row, strict=True)) for row in found]


def _insert(
    db: sqlite3.Connection, table: str, row: Mapping[str, object], *, or_replace: bool = False
) -> None:
    """Write one *row*, which is given by the names of its columns."""
    command = "INSERT OR REPLACE" if or_replace else "INSERT"
    places = ", ".join("?" * len(row))
    db.execute(
        f"{command} INTO {table} ({', '.join(row)}) VALUES ({places})",
        tuple(row.values()),
    )
