"""Reads a ledger that is not to be written: that of a daemon that is down, or not ours yet."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.ledger import rows
from holdfast.ledger.files import FILE
from holdfast.ledger.schema import APPLICATION_ID, SCHEMA_VERSION
from holdfast.model.book.book import Book
from holdfast.model.book.locks import Move
from holdfast.model.ids import DeviceName

T = TypeVar("T")

BUSY_TIMEOUT_MS = 500


def read_only(folder: Path) -> Book:
    """Return the book of a daemon that is down; raises LedgerError when there is none."""
    return _read(folder, rows.read_book)


def read_only_history(folder: Path, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves from the file of a daemon that is down, oldest first."""
    return _read(folder, lambda db: rows.read_history(db, device, limit))


def read_only_moved_devices(folder: Path) -> frozenset[DeviceName]:
    """Return the devices with any history in the file of a daemon that is down."""
    return _read(folder, rows.read_moved_devices)


def _read(folder: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    with closing(_open_read_only(folder)) as db:
        try:
            return read(db)
        except sqlite3.Error as error:
            message = f"cannot read the ledger {folder / FILE}: {error}"
            raise LedgerError(message) from error


def inspect(path: Path, *, how: str = "mode=ro") -> bool:
    """Return whether the file is empty; raise when it is not one that we may write.

    *how* it is opened is a query of SQLite's file names. Raises sqlite3.Error or LedgerError.
    """
    with closing(_connect_read_only(path, how)) as db:
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not tables:
            return True
        if owner != APPLICATION_ID:
            message = f"cannot use the ledger {path}: another program's database is there"
            raise LedgerUnusableError(message)
        if version > SCHEMA_VERSION:
            message = (
                f"cannot use the ledger {path}: it has version {version}, this holdfast knows "
                f"{SCHEMA_VERSION}. Install the newer one again; nothing was changed"
            )
            raise LedgerUnusableError(message)
        verdict = db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        return False


def _connect_read_only(path: Path, how: str = "mode=ro") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)


def _open_read_only(folder: Path) -> sqlite3.Connection:
    path = folder / FILE
    try:
        return _connect_read_only(path)
    except sqlite3.Error as error:
        message = f"cannot open the ledger {path}: {error}"
        raise LedgerError(message) from error
