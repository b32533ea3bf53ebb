"""Between rows and values: the tables; one row for each thing of a book, its document as JSON."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from hashlib import blake2b
from operator import xor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.ledger.disk import Stamp
from holdfast.model.book.book import Allocation, Book, ClaimRecord, DeviceLock, Move, PodRecord
from holdfast.model.book.marks import Mark, Marks, Quarantine
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName

SCHEMA_VERSION = 1
APPLICATION_ID = 0x686F6C64  # "hold"
K = TypeVar("K")
V = TypeVar("V")

_NODE = "node"
"""What is drained: there is one thing of that kind at most."""
_MOVE = msgspec.json.Decoder(Move)


def creation() -> str:
    """Return the one transaction that makes an empty ledger of an empty file."""
    return "\n".join(
        (
            "BEGIN IMMEDIATE;",
            Path(__file__).with_name("schema.sql").read_text("utf-8"),
            f"PRAGMA application_id = {APPLICATION_ID};",
            f"PRAGMA user_version = {SCHEMA_VERSION};",
            "COMMIT;",
        )
    )


class _ClaimRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim as it is written: a device cannot be the key of a JSON object."""

    record: ClaimRecord
    admin: tuple[tuple[DeviceName, frozenset[HardwareKey]], ...]


Name = tuple[str, str]
"""Of a thing: its kind, and its name."""


def read_book(db: sqlite3.Connection) -> Book:
    """Return everything but the history, of one moment where a transaction is open.

    Raises ValueError where a row makes no sense, or is not what the last commit left.
    """
    stamp = read_stamp(db)
    fence, last_allocation, checksum = db.execute(
        "SELECT fence, last_allocation, checksum FROM counters"
    ).fetchone()
    locks = {each.device: each for each in _read(db, "lock", DeviceLock).values()}
    if set(_keys(locks.values())) != set(db.execute("SELECT key, lock FROM lock_keys")):
        raise ValueError("its locks have other keys than those that they keep from others")
    allocations = {each.id: each for each in _read(db, "allocation", Allocation).values()}
    claims = _read(db, "claim", _ClaimRow).values()
    quarantines = _read(db, "quarantine", Quarantine).values()
    book = Book(
        fence=fence,
        last_allocation=last_allocation,
        allocations=dict(sorted(allocations.items())),
        locks=locks,
        pods={each.uid: each for each in _read(db, "pod", PodRecord).values()},
        claims={
            each.record.ref.uid: replace(each.record, admin=dict(each.admin)) for each in claims
        },
        marks=Marks(
            quarantines={each.device: each for each in quarantines},
            drain=_read(db, "drain", Mark).get(_NODE),
        ),
        kept=_read(db, "kept", dict[str, str]),
    )
    if _checksum(book, stamp, total(read_prints(db))) != checksum:
        raise ValueError("it is not whole: its rows are not those of its last commit")
    if (db.execute("SELECT max(fence) FROM history").fetchone()[0] or 0) > book.fence:
        raise ValueError("it is not whole: its history is ahead of it")
    return book


def read_stamp(db: sqlite3.Connection) -> Stamp:
    """Return which ledger it is, and how many commits it has had."""
    found = db.execute("SELECT ledger, commits FROM counters").fetchone()
    if found is None:
        raise ValueError("its counters are gone")
    return Stamp(ledger=found[0], commits=found[1])


def read_prints(db: sqlite3.Connection) -> dict[Name, int]:
    """Return a number for each thing that changes with anything of its row."""
    found = db.execute("SELECT kind, name, document FROM things")
    return {(kind, name): _print(kind, name, document) for kind, name, document in found}


def total(prints: Mapping[Name, int]) -> int:
    """Return one number for all; of a change, it changes by the numbers before and after."""
    return reduce(xor, prints.values(), 0)


def write_stamp(
    db: sqlite3.Connection, book: Book, stamp: Stamp, total: int, *, commits: int
) -> None:
    """Write what is said of all rows; raises ValueError unless it has *commits* of this ledger."""
    written = db.execute(
        "UPDATE counters SET fence = ?, last_allocation = ?, commits = ?, checksum = ?"
        " WHERE ledger = ? AND commits = ?",
        (
            book.fence,
            book.last_allocation,
            stamp.commits,
            _checksum(book, stamp, total),
            stamp.ledger,
            commits,
        ),
    )
    if written.rowcount != 1:
        raise ValueError("it has not the last commit of this ledger")


def write_difference(db: sqlite3.Connection, before: Book, after: Book) -> dict[Name, int]:
    """Write what differs, deletions first so that a key can change hands in one commit.

    Return the number of each thing that changed, as `read_prints` does; 0: it is gone.
    """
    prints: dict[Name, int] = {}
    for (kind, old), (_, new) in zip(_things(before), _things(after), strict=True):
        changed = _changed(old, new)
        gone = [name for name in old if name not in new or name in changed]
        if kind == "lock":
            keys = [(key,) for name in gone for key in old[name].keys]
            db.executemany("DELETE FROM lock_keys WHERE key = ?", keys)
            db.executemany("INSERT INTO lock_keys VALUES (?, ?)", _keys(changed.values()))
        names = [(kind, str(name)) for name in gone]
        db.executemany("DELETE FROM things WHERE kind = ? AND name = ?", names)
        rows = [(kind, str(name), _document(each)) for name, each in changed.items()]
        db.executemany("INSERT INTO things VALUES (?, ?, ?)", rows)
        prints |= dict.fromkeys(names, 0)
        prints |= {row[:2]: _print(*row) for row in rows}
    return prints


def write_moves(db: sqlite3.Connection, moves: Iterable[Move]) -> None:
    """Append to the history."""
    rows = [(each.fence, each.device.resource, each.device.id, _document(each)) for each in moves]
    db.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", rows)


def read_history(db: sqlite3.Connection, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves, oldest first; raises ValueError where one makes no sense."""
    where = "WHERE resource = ? AND device = ?" if device else ""
    what = (device.resource, device.id) if device else ()
    found = db.execute(
        f"SELECT document FROM history {where} ORDER BY fence DESC LIMIT ?",  # noqa: S608 - constants
        (*what, limit),
    ).fetchall()
    return tuple(_MOVE.decode(document) for (document,) in reversed(found))


def read_moved_devices(db: sqlite3.Connection) -> frozenset[DeviceName]:
    """Return the devices of which there is any history."""
    found = db.execute("SELECT DISTINCT resource, device FROM history").fetchall()
    return frozenset(DeviceName(ResourceName(name), DeviceId(id_)) for name, id_ in found)


def _print(kind: str, name: str, document: str) -> int:
    row = f"{kind}\0{name}\0{document}".encode()
    return int.from_bytes(blake2b(row, digest_size=16).digest())


def _checksum(book: Book, stamp: Stamp, total: int) -> str:
    said = f"{stamp.ledger} {stamp.commits} {book.fence} {book.last_allocation} {total:x}"
    return blake2b(said.encode(), digest_size=16).hexdigest()


def _things(book: Book) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield each kind with all that *book* has of it, by name."""
    yield "allocation", book.allocations
    yield "lock", book.locks
    yield "pod", book.pods
    yield "claim", book.claims
    yield "quarantine", book.marks.quarantines
    yield "drain", {} if book.marks.drain is None else {_NODE: book.marks.drain}
    yield "kept", book.kept


def _read(db: sqlite3.Connection, kind: str, type_: type[V]) -> dict[str, V]:
    """Return all things of *kind* by name."""
    decoder = msgspec.json.Decoder(type_)
    things: dict[str, V] = {}
    for name, document in db.execute("SELECT name, document FROM things WHERE kind = ?", (kind,)):
        try:
            things[name] = decoder.decode(document)
        except msgspec.MsgspecError as error:
            raise ValueError(f"its {kind} {name} makes no sense: {error}") from error
    return things


def _keys(locks: Iterable[DeviceLock]) -> list[tuple[str, str]]:
    """Return each key that is locked, with the name of its lock."""
    return [(key, str(each.device)) for each in locks for key in each.keys]


def _document(thing: object) -> str:
    if isinstance(thing, ClaimRecord):
        thing = _ClaimRow(record=replace(thing, admin={}), admin=tuple(thing.admin.items()))
    return msgspec.json.encode(thing).decode()


def _changed(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V]:
    """Return what is new in *after* or differs from *before*."""
    # What a draft did not touch is the same object: a book of hundreds is gone through quickly.
    return {
        key: value
        for key, value in after.items()
        if (was := before.get(key)) is not value and was != value
    }
