"""Reads a ledger that is not to be written: that of a daemon that is down, or not ours yet."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from holdfast.errors import LedgerError, LedgerUnreadableError, LedgerUnusableError
from holdfast.ledger import rows
from holdfast.ledger.disk import FILE, SEAL, Stamp
from holdfast.ledger.rows import APPLICATION_ID, SCHEMA_VERSION

T = TypeVar("T")

BUSY_TIMEOUT_MS = 500


def read_only(folder: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """Return what *query* reads in *folder*, of a daemon that is down; raises LedgerError."""
    path = folder / FILE
    try:
        # Where nothing can be written SQLite cannot make the files that it wants beside this one.
        alone = not has_wal(folder) and not os.access(folder, os.W_OK)
        opened = _connect_read_only(path, "immutable=1" if alone else "mode=ro")
    except (sqlite3.Error, OSError) as error:
        advice = "check that this is the daemon's state folder (--state-dir)"
        raise LedgerError(f"cannot open the ledger {path}: {error}; {advice}") from error
    with closing(opened) as db:
        try:
            _refuse_others(db, path)
            db.execute("BEGIN")  # a daemon may write beside us: all is read as of one moment
            return query(db)
        except (sqlite3.Error, ValueError) as error:
            raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def inspect(path: Path, known: Stamp | None, *, how: str = "mode=ro") -> None:
    """Raise when the file is not the ledger that is *known*, whole, or not one that we may write.

    *how* it is opened is a query of SQLite's file names. Raises sqlite3.Error, LedgerError, or
    OSError, or ValueError for what makes no sense.
    """
    if not path.stat().st_size:  # SQLite would take the WAL beside it for all of it
        raise ValueError("it is empty")
    with closing(_connect_read_only(path, how)) as db:
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            raise ValueError("it is empty")
        _refuse_others(db, path)
        db.execute("BEGIN")
        verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        rows.read_book(db)
        stamp = rows.read_stamp(db)
        if known is not None and known.ledger not in {"", stamp.ledger}:
            raise ValueError(f"it is another ledger than the one that was here (see {SEAL})")
        if known is not None and stamp.commits < known.commits:
            raise ValueError(
                f"it is an old copy: it has {stamp.commits} of at least {known.commits} commits "
                f"(see {SEAL})"
            )


def has_wal(folder: Path) -> bool:
    """Tell whether some commits are in the WAL only; raises OSError."""
    with suppress(FileNotFoundError):
        return (folder / f"{FILE}-wal").stat().st_size > 0
    return False


def _refuse_others(db: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerUnusableError for another program's file, and for that of another version."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        message = f"cannot use the ledger {path}: another program's database is there"
        raise LedgerUnusableError(message)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise LedgerUnreadableError(
            f"cannot use the ledger {path}: it has version {version}, this holdfast knows "
            f"{SCHEMA_VERSION}"
        )


def _connect_read_only(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
