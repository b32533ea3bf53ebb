"""The ledger's file: open it, read the book from it, write the next one as one commit."""

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from holdfast.errors import LedgerError, LedgerLostError, LedgerUnusableError
from holdfast.ledger import disk, rows
from holdfast.model.book.book import Book
from holdfast.model.book.locks import Move
from holdfast.model.ids import DeviceName

T = TypeVar("T")

FILE = "ledger.db"
_FILES = ("", "-wal", "-shm")
"""What is open of a ledger, by what its names have after FILE."""
LOCK = "lock"
"""What the daemon holds locked while it runs."""
_SCHEMA = tuple(f"schema-{version}.sql" for version in range(1, 9))
"""What made each version from the one before; a file that was ever released is never edited."""
SCHEMA_VERSION = len(_SCHEMA)
_APPLICATION_ID = 0x686F6C64  # "hold"
_WAL_BYTES = 1 << 17
"""To what the WAL is cut when it begins anew: each proof reads all of it."""
_CACHE_KIB = 512
"""Pages that SQLite keeps: its own bound is four times that, and a history fills any."""
_BUSY_TIMEOUT_MS = 500


class Store:
    """The open ledger file. Every method blocks and must run on one and the same thread.

    One commit is one fsync: WAL with synchronous=FULL. The WAL is folded back by `tidy`, which is
    never called on the way of an Allocate.
    """

    def __init__(self, folder: Path) -> None:
        """Open the ledger in *folder*, or create it.

        Raises LedgerUnusableError when it is damaged, newer, or cannot be opened; the file is left
        as it was found.
        """
        self._path = folder / FILE
        self._wal = folder / f"{FILE}-wal"
        self._kept: sqlite3.Connection | None = None
        """All of the ledger, in memory, from the loss of its files until others are open."""
        self._reserve = disk.Reserve(folder)
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
        except (sqlite3.Error, OSError) as error:
            self._db.close()
            raise self._unusable(error) from error
        self._reserve.keep()

    def read(self) -> Book:
        """Return the book as it was last committed.

        Raises LedgerUnusableError when its rows make no sense.
        """
        try:
            return rows.read_book(self._db)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._unusable(error) from error

    def history(self, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
        """Return the last *limit* moves, of one device or of all, oldest first.

        Raises LedgerError when they cannot be read.
        """
        try:
            return rows.read_history(self._db, device, limit)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot read the ledger {self._path}: {error}") from error

    def moved_devices(self) -> frozenset[DeviceName]:
        """Return the devices of which there is any history; raises LedgerError."""
        try:
            return rows.read_moved_devices(self._db)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot read the ledger {self._path}: {error}") from error

    def write(self, before: Book, after: Book, moves: Iterable[Move]) -> None:
        """Commit the difference between two books together with the moves that lead there.

        Raises LedgerError, and then nothing was written; LedgerLostError when the names of the open
        files do not lead to them any more. On a full disk the reserve is given up for a change that
        records no new Allocation, so that releases always go through.
        """
        moves = tuple(moves)
        if gone := self._gone():
            raise LedgerLostError(
                f"cannot write the ledger {self._path}: {', '.join(gone)} was removed; it is "
                "written again within seconds"
            )
        releases = not (after.allocations.keys() - before.allocations.keys())
        if self._reserve.full and not releases:
            message = (
                f"cannot write the ledger {self._path}: the disk is full, and what is left is kept "
                "for releases; make room"
            )
            raise LedgerError(message)
        try:
            self._commit(before, after, moves)
        except sqlite3.Error as error:
            if not (_is_full(error) and releases and self._reserve.give_up()):
                message = f"cannot write the ledger {self._path}: {error}"
                raise LedgerError(message) from error
            try:
                self._commit(before, after, moves)
            except sqlite3.Error as again:
                message = f"cannot write the ledger {self._path}: {again}"
                raise LedgerError(message) from again

    def tidy(self, *, keep: int) -> None:
        """Drop all but the last *keep* moves of each device, fold the WAL, refill the reserve."""
        try:
            self._db.execute(
                "DELETE FROM history WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER "
                "(PARTITION BY resource, device ORDER BY seq DESC) AS age FROM history) "
                "WHERE age > ?)",
                (keep,),
            )
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            message = f"cannot tidy the ledger {self._path}: {error}"
            raise LedgerError(message) from error
        self._reserve.keep()

    def prove(self) -> tuple[str, ...]:
        """Write to the disk and read back; return the names of files that were written again.

        A ledger whose files were removed is written again, for what is open has all of it. A file
        that somebody else put there is never touched. Raises LedgerError while the file takes no
        write, LedgerLostError when what is written does not stay.
        """
        gone = self._gone()
        if gone or self._kept is not None:
            self._put_back(gone)
        self._reserve.keep()
        if self._reserve.full:  # and what is left is kept for releases
            raise LedgerError(f"cannot write the ledger {self._path}: the disk is full; make room")
        try:
            before = disk.cached(self._wal)
            self._rewrite_counters()
            after = disk.cached(self._wal)
            stored = disk.stored(self._wal)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"cannot write the ledger {self._path}: {error}") from error
        if after == before or stored not in {None, after}:
            raise LedgerLostError(
                f"cannot trust the disk of the ledger {self._path}: it reported a write as done, "
                "and what is read from it is something else; replace the disk"
            )
        return gone

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self._db.close()

    def _prepare(self) -> None:
        db = self._db
        db.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("BEGIN IMMEDIATE")  # fails on a read-only or locked file, now and not later
        db.execute("ROLLBACK")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            db.executescript(_upgrade(version))
        self._place = disk.Place(self._path.with_name(FILE + suffix) for suffix in _FILES)

    def _gone(self) -> tuple[str, ...]:
        """Return which of our file names lead nowhere; raise LedgerLostError for another's file."""
        try:
            strayed = self._place.strayed()
        except OSError as error:
            raise LedgerError(f"cannot look at the ledger {self._path}: {error}") from error
        if strayed.replaced:
            raise LedgerLostError(
                f"cannot write the ledger {self._path}: another file was put in the place of "
                f"{', '.join(strayed.replaced)}. Move it away: the ledger is then written again "
                "from what holdfast has in memory"
            )
        return strayed.gone

    def _put_back(self, gone: tuple[str, ...]) -> None:
        """Write the ledger again where its files were, and go on with the new ones."""
        half = _half(self._path)
        try:
            if self._kept is None:
                kept = sqlite3.connect(":memory:", isolation_level=None)
                self._db.backup(kept)
                self._kept = kept
                # Not later: whoever closes the last connection removes the WAL by its name.
                self._db.close()
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_half(half)
            with closing(sqlite3.connect(half, isolation_level=None)) as copy:
                self._kept.backup(copy)
                copy.execute("PRAGMA journal_mode = WAL")
            _put_in_place(half, self._path)
            self._place.learn()
            self._reopen()
        except (sqlite3.Error, OSError) as error:
            raise LedgerLostError(
                f"cannot write the ledger {self._path} again, of which {', '.join(gone) or FILE} "
                f"was removed: {error}. Restart holdfast when its state folder is there again"
            ) from error
        self._kept.close()
        self._kept = None

    def _reopen(self) -> None:
        """Open what was put in its place; raise where it was removed since."""
        # Not one that is made only now, and is empty.
        uri = f"{self._path.absolute().as_uri()}?mode=rw"
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            self._prepare()
        except (sqlite3.Error, OSError):
            self._place.learn()
            self._db.close()
            raise

    def _rewrite_counters(self) -> None:
        """Commit a page with what it has had: SQLite writes none that was only set to the same."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("UPDATE counters SET fence = fence + 1")
            self._db.execute("UPDATE counters SET fence = fence - 1")
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

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


def _create(path: Path) -> None:
    """Make an empty ledger beside *path* and rename it: it is there whole, or not at all."""
    half = _half(path)
    _remove_half(half)
    with closing(sqlite3.connect(half, isolation_level=None)) as db:
        # Not later, in place: a kill just then leaves a journal that a look without write access,
        # with which each start begins, cannot roll back.
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_upgrade(0))
    _put_in_place(half, path)


def _half(path: Path) -> Path:
    """Return where a ledger is written before it is renamed to *path*."""
    return path.with_name(f".{path.name}.new")


def _remove_half(half: Path) -> None:
    """Remove what an attempt that was killed left behind."""
    for suffix in ("-journal", *_FILES):
        half.with_name(half.name + suffix).unlink(missing_ok=True)


def _put_in_place(half: Path, path: Path) -> None:
    half.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _upgrade(version: int) -> str:
    """Return the one transaction that brings a ledger of *version* to ours; 0: an empty file."""
    folder = Path(__file__).parent
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
