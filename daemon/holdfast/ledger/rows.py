"""Between rows and values: what of a book is in which table."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.model.book.book import Allocation, Book, Phase, PodRecord
from holdfast.model.book.locks import DeviceLock, LockState, Move
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.ids import (
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)

_MARKS_SINCE_VERSION = 2
_MOMENTS_SINCE_VERSION = 4
"""Before, an Allocation had the time of its checkpoint, and a pod's end the time of day."""
_STARTED_SINCE_VERSION = 5
_KEPT_SINCE_VERSION = 6


def read_book(db: sqlite3.Connection) -> Book:
    """Return everything but the history."""
    fence, last_allocation = db.execute("SELECT fence, last_allocation FROM counters").fetchone()
    return Book(
        fence=fence,
        last_allocation=last_allocation,
        allocations={each.id: each for each in _read_allocations(db)},
        locks={each.device: each for each in _read_locks(db)},
        pods={each.uid: each for each in _read_pods(db)},
        marks=_read_marks(db),
        kept=_read_kept(db),
    )


def read_history(db: sqlite3.Connection, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves, oldest first."""
    where = "WHERE resource = ? AND device = ?" if device else ""
    what = (device.resource, device.id) if device else ()
    found = db.execute(
        "SELECT at, resource, device, fence, before, after, pod, evidence "  # noqa: S608 - constants
        f"FROM history {where} ORDER BY seq DESC LIMIT ?",
        (*what, limit),
    ).fetchall()
    return tuple(
        Move(
            at=at,
            device=_name(resource, id_),
            fence=fence,
            before=LockState(before),
            after=LockState(after),
            pod=pod,
            evidence=evidence,
        )
        for at, resource, id_, fence, before, after, pod, evidence in reversed(found)
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
    changed = [lock for name, lock in after.locks.items() if before.locks.get(name) != lock]
    gone = [lock for name, lock in before.locks.items() if name not in after.locks]
    for lock in gone + changed:
        db.execute(
            "DELETE FROM locks WHERE resource = ? AND device = ?",
            (lock.device.resource, lock.device.id),
        )
    for ended in before.allocations.keys() - after.allocations.keys():
        db.execute("DELETE FROM allocations WHERE id = ?", (ended,))
    for uid in before.pods.keys() - after.pods.keys():
        db.execute("DELETE FROM pods WHERE uid = ?", (uid,))
    for allocation in after.allocations.values():
        if before.allocations.get(allocation.id) != allocation:
            _write_allocation(db, allocation, is_new=allocation.id not in before.allocations)
    for lock in changed:
        _write_lock(db, lock)
    for pod in after.pods.values():
        if before.pods.get(pod.uid) != pod:
            _write_pod(db, pod)
    if before.marks != after.marks:
        _write_marks(db, after.marks)
    _write_kept(db, before.kept, after.kept)


def write_moves(db: sqlite3.Connection, moves: Iterable[Move]) -> None:
    """Append to the history."""
    for move in moves:
        _insert(
            db,
            "INSERT INTO history",
            at=move.at,
            resource=move.device.resource,
            device=move.device.id,
            fence=move.fence,
            before=move.before.value,
            after=move.after.value,
            pod=move.pod,
            evidence=move.evidence,
        )


def _read_allocations(db: sqlite3.Connection) -> Iterable[Allocation]:
    keys: dict[int, dict[DeviceId, set[HardwareKey]]] = defaultdict(lambda: defaultdict(set))
    for allocation, device, key in db.execute(
        "SELECT allocation, device, key FROM allocation_keys"
    ):
        keys[allocation][device].add(key)
    moments = "checkpoint, answered_at, started_at" if _has_moments(db) else "'', 0, 0"
    for id_, resource, created_at, boot, phase, pod, checkpoint, answered, started in db.execute(
        f"SELECT id, resource, created_at, boot, phase, pod, {moments} FROM allocations"  # noqa: S608 - constants
    ).fetchall():
        yield Allocation(
            id=id_,
            resource=ResourceName(resource),
            devices={device: frozenset(keys[id_][device]) for device in sorted(keys[id_])},
            created_at=created_at,
            boot=BootId(boot),
            checkpoint=CheckpointId(checkpoint),
            answered_at=answered,
            started_at=started,
            phase=Phase(phase),
            pod=pod,
        )


def _read_locks(db: sqlite3.Connection) -> Iterable[DeviceLock]:
    keys: dict[tuple[str, str], set[HardwareKey]] = defaultdict(set)
    for key, resource, device in db.execute("SELECT key, resource, device FROM lock_keys"):
        keys[resource, device].add(key)
    # A file from before it was written down, open for reading alone, does not tell who started.
    started = "started" if _version(db) >= _STARTED_SINCE_VERSION else "1"
    for resource, device, state, fence, since, boot, allocation, pod, evidence, ran in db.execute(
        "SELECT resource, device, state, fence, since, boot, allocation, pod, evidence, "  # noqa: S608 - constants
        f"{started} FROM locks"
    ).fetchall():
        yield DeviceLock(
            device=_name(resource, device),
            keys=frozenset(keys[resource, device]),
            state=LockState(state),
            fence=fence,
            since=since,
            boot=BootId(boot),
            allocation=allocation,
            pod=pod,
            evidence=evidence,
            started=bool(ran),
        )


def _read_pods(db: sqlite3.Connection) -> Iterable[PodRecord]:
    moments = "let_go_at, counted_boot" if _has_moments(db) else "NULL, boot"
    for uid, boot, cgroup, inode, namespace, name, pid, start, let_go_at, counted in db.execute(
        "SELECT uid, boot, cgroup, inode, namespace, name, counted_pid, counted_start, "  # noqa: S608 - constants
        f"{moments} FROM pods"
    ).fetchall():
        yield PodRecord(
            uid=PodUid(uid),
            boot=BootId(boot),
            cgroup=cgroup,
            inode=inode,
            namespace=namespace,
            name=name,
            counted_by=None if pid is None else ProcessId(pid, start),
            let_go_at=let_go_at,
            counted_boot=counted,
        )


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
    _insert(
        db,
        "INSERT INTO allocations",
        id=each.id,
        resource=each.resource,
        created_at=each.created_at,
        boot=each.boot,
        phase=each.phase.value,
        pod=each.pod,
        checkpoint=each.checkpoint,
        answered_at=each.answered_at,
        started_at=each.started_at,
    )
    db.executemany(
        "INSERT INTO allocation_keys VALUES (?, ?, ?)",
        [(each.id, device, key) for device, keys in each.devices.items() for key in keys],
    )


def _write_lock(db: sqlite3.Connection, lock: DeviceLock) -> None:
    resource, device = lock.device.resource, lock.device.id
    _insert(
        db,
        "INSERT INTO locks",
        resource=resource,
        device=device,
        state=lock.state.value,
        fence=lock.fence,
        since=lock.since,
        boot=lock.boot,
        allocation=lock.allocation,
        pod=lock.pod,
        evidence=lock.evidence,
        started=int(lock.started),
    )
    db.executemany(
        "INSERT INTO lock_keys VALUES (?, ?, ?)", [(key, resource, device) for key in lock.keys]
    )


def _write_pod(db: sqlite3.Connection, pod: PodRecord) -> None:
    counted = pod.counted_by
    _insert(
        db,
        "INSERT OR REPLACE INTO pods",
        uid=pod.uid,
        boot=pod.boot,
        cgroup=pod.cgroup,
        inode=pod.inode,
        namespace=pod.namespace,
        name=pod.name,
        counted_pid=counted.pid if counted else None,
        counted_start=counted.start_ticks if counted else None,
        let_go_at=pod.let_go_at,
        counted_boot=pod.counted_boot,
    )


def _write_marks(db: sqlite3.Connection, marks: Marks) -> None:
    """Write all of *marks* in place of what was there: they are few and rarely change."""
    db.execute("DELETE FROM quarantines")
    db.execute("DELETE FROM drain")
    for name, each in marks.quarantines.items():
        place = {"resource": name.resource, "device": name.id}
        _insert(db, "INSERT INTO quarantines", **place, **_columns(each.mark))
        db.executemany(
            "INSERT INTO quarantine_keys (resource, device, key) VALUES (?, ?, ?)",
            [(name.resource, name.id, key) for key in each.keys],
        )
    if marks.drain is not None:
        _insert(db, "INSERT INTO drain", only=1, **_columns(marks.drain))


def _mark(at: float, uid: int, pid: int, reason: str) -> Mark:
    return Mark(asker=Asker(uid=uid, pid=pid), at=at, reason=reason)


def _columns(mark: Mark) -> dict[str, object]:
    return {"at": mark.at, "uid": mark.asker.uid, "pid": mark.asker.pid, "reason": mark.reason}


def _name(resource: str, id_: str) -> DeviceName:
    return DeviceName(ResourceName(resource), DeviceId(id_))


def _insert(db: sqlite3.Connection, command: str, /, **row: object) -> None:
    """Write one *row*, which is given by the names of its columns."""
    places = ", ".join("?" * len(row))
    db.execute(f"{command} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
