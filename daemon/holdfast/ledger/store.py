"""The ledger's file: open it, read the book from it, write the next one as one commit."""

import errno
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path

from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.ledger import rows
from holdfast.model.book import Book
from holdfast.model.ids import DeviceName
from holdfast.model.locks import Move

FILE = "ledger.db"
RESERVE = "reserve"
LOCK = "lock"
"""What the daemon holds locked while it runs."""
_SCHEMA = ("schema-1.sql", "schema-2.sql", "schema-3.sql", "schema-4.sql", "schema-5.sql")
"""What made each version from the one before; a file that was ever released is never edited."""
SCHEMA_VERSION = len(_SCHEMA)
_APPLICATION_ID = 0x686F6C64  # "hold"
RESERVE_BYTES = 1 << 20
"""What is kept free on the disk, so that a release can be written when it is full."""
_BUSY_TIMEOUT_MS = 500


class Store:
    """The open ledger file. Every method blocks and must run on one and the same thread.

    One commit is one fsync: WAL with synchronous=FULL. The WAL is folded back by `tidy`, which is
    never called on the way of an Allocate.
    """

    def __init__(self, folder: Path, *, history_per_device: int = 200) -> None:
        """Open the ledger in *folder*, or create it.

        Raises LedgerUnusableError when it is damaged, newer, or cannot be opened; the file is left
        as it was found.
        """
        self._path = folder / FILE
        self._reserve = folder / RESERVE
        self._history_per_device = history_per_device
        self._disk_full = False
        try:
            # Looked at without write access first: closing a file that is not to be touched would
            # otherwise fold its WAL back into it.
            if not self._path.exists() or inspect(self._path):
                _create(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise self._unusable(error) from error
        self._keep_reserve()

    def read(self) -> Book:
        """Return the book as it was last committed.

        Raises LedgerUnusableError when its rows make no sense.
        """
        try:
            return rows.read_book(self._db)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._unusable(error) from error

    def history(self, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
        """Return the last *limit* moves, of one device or of all, oldest first."""
        return rows.read_history(self._db, device, limit)

    def write(self, before: Book, after: Book, moves: Iterable[Move]) -> None:
        """Commit the difference between two books together with the moves that lead there.

        Raises LedgerError, and then nothing was written. On a full disk the reserve is given up
        for a change that records no new Allocation, so that releases always go through.
        """
        moves = tuple(moves)
        releases = not (after.allocations.keys() - before.allocations.keys())
        if self._disk_full and not releases:
            message = (
                f"cannot write the ledger {self._path}: the disk is full, and what is left is kept "
                "for releases; make room"
            )
            raise LedgerError(message)
        try:
            self._commit(before, after, moves)
        except sqlite3.Error as error:
            if not (_is_full(error) and releases and self._give_up_reserve()):
                message = f"cannot write the ledger {self._path}: {error}"
                raise LedgerError(message) from error
            try:
                self._commit(before, after, moves)
            except sqlite3.Error as again:
                message = f"cannot write the ledger {self._path}: {again}"
                raise LedgerError(message) from again

    def tidy(self) -> None:
        """Drop history beyond its bound, fold the WAL back, and fill the reserve again."""
        try:
            self._db.execute(
                "DELETE FROM history WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER "
                "(PARTITION BY resource, device ORDER BY seq DESC) AS age FROM history) "
                "WHERE age > ?)",
                (self._history_per_device,),
            )
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            message = f"cannot tidy the ledger {self._path}: {error}"
            raise LedgerError(message) from error
        self._keep_reserve()

    def prove(self) -> None:
        """Commit something that changes nothing; raise LedgerError while the file takes none."""
        if self._disk_full:
            self._keep_reserve()
        try:
            self._db.execute("UPDATE counters SET fence = fence")
        except sqlite3.Error as error:
            message = f"cannot write the ledger {self._path}: {error}"
            raise LedgerError(message) from error
        if self._disk_full:
            raise LedgerError(f"cannot write the ledger {self._path}: the disk is full; make room")

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self._db.close()

    def _prepare(self) -> None:
        db = self._db
        db.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("BEGIN IMMEDIATE")  # fails on a read-only or locked file, now and not later
        db.execute("ROLLBACK")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            db.executescript(_upgrade(version))

    def _unusable(self, error: Exception) -> LedgerUnusableError:
        return LedgerUnusableError(
            f"cannot use the ledger {self._path}: {error}. It is left as it is: move it away to "
            "start with an empty one, which kubelet's checkpoint then fills"
        )

    def _commit(self, before: Book, after: Book, moves: tuple[Move, ...]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            rows.write_difference(self._db, before, after)
            rows.write_moves(self._db, moves)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _keep_reserve(self) -> None:
        """Keep room on the disk that a release can be written into when it is full."""
        self._disk_full = False
        try:
            with self._reserve.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError as error:  # the next tidy tries again
            self._disk_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            with suppress(OSError):
                self._reserve.unlink()

    def _give_up_reserve(self) -> bool:
        try:
            self._reserve.unlink()
        except OSError:
            return False
        self._disk_full = True
        return True


def read_only(folder: Path) -> Book:
    """Return the book of a daemon that is down; raises LedgerError when there is none."""
    with closing(_open_read_only(folder)) as db:
        try:
            return rows.read_book(db)
        except sqlite3.Error as error:
            message = f"cannot read the ledger {folder / FILE}: {error}"
            raise LedgerError(message) from error


def read_only_history(folder: Path, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves from the file of a daemon that is down, oldest first."""
    with closing(_open_read_only(folder)) as db:
        try:
            return rows.read_history(db, device, limit)
        except sqlite3.Error as error:
            message = f"cannot read the ledger {folder / FILE}: {error}"
            raise LedgerError(message) from error


def _create(path: Path) -> None:
    """Make an empty ledger beside *path* and rename it: it is there whole, or not at all."""
    half = path.with_name(f".{path.name}.new")
    for suffix in ("", "-journal", "-wal", "-shm"):  # what a creation that was killed left behind
        half.with_name(half.name + suffix).unlink(missing_ok=True)
    with closing(sqlite3.connect(half, isolation_level=None)) as db:
        # Not later, in place: a kill just then leaves a journal that a look without write access,
        # with which each start begins, cannot roll back.
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_upgrade(0))
    half.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _upgrade(version: int) -> str:
    """Return the one transaction that makes a ledger of *version* one of ours; 0: an empty file."""
    folder = resources.files("holdfast.ledger")
    return "\n".join(
        (
            "BEGIN IMMEDIATE;",
            *(folder.joinpath(name).read_text("utf-8") for name in _SCHEMA[version:]),
            f"PRAGMA application_id = {_APPLICATION_ID};",
            f"PRAGMA user_version = {SCHEMA_VERSION};",
            "COMMIT;",
        )
    )


def inspect(path: Path, *, how: str = "mode=ro") -> bool:
    """Return whether the file is empty; raise when it is not one that we may write.

    *how* it is opened is a query of SQLite's file names. Raises sqlite3.Error or LedgerError.
    """
    with closing(_connect_read_only(path, how)) as db:
        db.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not tables:
            return True
        if owner != _APPLICATION_ID:
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


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
