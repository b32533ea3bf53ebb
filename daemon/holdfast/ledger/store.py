"""The ledger's file: open it, read the book from it, write the next one as one commit."""

import errno
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from holdfast.errors import LedgerError, LedgerLostError, LedgerUnusableError
from holdfast.ledger import disk, files, rows
from holdfast.ledger.files import FILE
from holdfast.ledger.readonly import BUSY_TIMEOUT_MS, inspect
from holdfast.ledger.schema import APPLICATION_ID, SCHEMA_VERSION, upgrade
from holdfast.model.book.book import Book
from holdfast.model.book.locks import Move
from holdfast.model.ids import DeviceName

T = TypeVar("T")

_WAL_BYTES = 1 << 17
"""To what the WAL is cut when it begins anew: each proof reads all of it."""
_CACHE_KIB = 512
"""Pages that SQLite keeps: its own bound is four times that, and a history fills any."""


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
        self._ours: disk.Pinned | None = None
        """Meanwhile, the last file of ours that was put in its place."""
        self._reserve = disk.Reserve(folder)
        try:
            # Looked at without write access first: closing a file that is not to be touched would
            # otherwise fold its WAL back into it.
            if not self._path.exists():
                _begin(self._path)
            elif not self._path.stat().st_size and self._wal.exists() and self._wal.stat().st_size:
                raise sqlite3.DatabaseError("it is empty, and its WAL is not")
            elif inspect(self._path):
                _create(self._path)
            with suppress(OSError):  # it is older: not to be used where this one is moved away
                files.remove_half(self._path)
            self._db = _connect(self._path)
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

        Raises LedgerError, and then nothing is in the open ledger, though after a failed fsync the
        next start may find it; LedgerLostError when the names of the open files do not lead
        to them any more. On a full disk the reserve is given up for a change that
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
        if self._kept is not None:  # the next daemon has only what lies there
            with suppress(LedgerError):
                self._put_back(self._gone())
        self._db.close()

    def _prepare(self) -> None:
        db = self._db
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise sqlite3.DatabaseError("another program's database was put there")
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
            db.executescript(upgrade(version))
        self._place = disk.Place(map(self._path.with_name, files.NAMES))

    def _gone(self) -> tuple[str, ...]:
        """Return which of our file names lead nowhere; raise LedgerLostError for another's file."""
        try:
            strayed = self._strayed()
        except OSError as error:
            raise LedgerError(f"cannot look at the ledger {self._path}: {error}") from error
        if strayed.replaced:
            raise LedgerLostError(
                f"cannot write the ledger {self._path}: another file was put in the place of "
                f"{', '.join(strayed.replaced)}. Move it away: the ledger is then written again "
                "from what holdfast has in memory"
            )
        return strayed.gone

    def _strayed(self) -> disk.Strayed:
        if self._kept is None:
            return self._place.strayed()
        if not os.path.lexists(self._path):
            return disk.Strayed(gone=files.NAMES)
        ours = self._ours is not None and self._ours.lies_at(self._path)
        return disk.Strayed(replaced=() if ours else (FILE,))

    def _put_back(self, gone: tuple[str, ...]) -> None:
        """Write the ledger again where its files were, and go on with the new ones."""
        half = files.half(self._path)
        try:
            if self._kept is None:
                kept = sqlite3.connect(":memory:", isolation_level=None)
                self._db.backup(kept)
                self._ours = self._place.pin(self._path)
                self._kept = kept
                # Not later: whoever closes the last connection removes the WAL by its name.
                self._db.close()
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.remove_half(self._path)
            with closing(sqlite3.connect(half, isolation_level=None)) as copy:
                self._kept.backup(copy)
                copy.execute("PRAGMA journal_mode = WAL")
            self._clear_place()
            self._pin(half)
            files.link(self._path)
            self._reopen()
        except (sqlite3.Error, OSError) as error:
            raise LedgerLostError(
                f"cannot write the ledger {self._path} again, of which {', '.join(gone) or FILE} "
                f"was removed: {error}. It is tried again every few seconds. Do not restart "
                "holdfast before: the ledger is in its memory alone"
            ) from error
        self._kept.close()
        self._kept = None
        self._pin(None)

    def _clear_place(self) -> None:
        """Remove what is left of ours; from here to the end a kill leaves the whole copy.

        A WAL would be taken for the new file's, or other programs would still write to it.
        """
        self._refuse_another()
        for name in files.NAMES:
            self._path.with_name(name).unlink(missing_ok=True)

    def _refuse_another(self) -> None:
        ours = self._ours is not None and self._ours.lies_at(self._path)
        if os.path.lexists(self._path) and not ours:
            raise FileExistsError(errno.EEXIST, "another file was put there", str(self._path))

    def _pin(self, path: Path | None) -> None:
        before, self._ours = self._ours, None if path is None else disk.Pinned(path)
        if before is not None:
            before.close()

    def _reopen(self) -> None:
        """Open what was put in its place; raise where it was removed, or replaced, since."""
        self._db = _connect(self._path)
        try:
            self._refuse_another()  # before anything is written to it
            self._prepare()
            self._refuse_another()
        except (sqlite3.Error, OSError):
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
            f"cannot use the ledger {self._path}: {error}. It is left as it is: move it away "
            "with its -wal and -shm to start with an empty one, which kubelet's checkpoint then "
            "fills"
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


def _begin(path: Path) -> None:
    """Have a ledger at *path*, where there is none: an empty one, or a copy not put there yet."""
    files.move_companions_aside(path)
    if _is_whole(files.half(path)):
        files.replace(path)
    else:
        _create(path)


def _is_whole(half: Path) -> bool:
    """Tell whether *half* is a ledger that only had to be put in its place."""
    if half.with_name(f"{half.name}-journal").exists():
        return False
    try:
        return not inspect(half, how="mode=ro&immutable=1")
    except (sqlite3.Error, OSError, LedgerUnusableError):
        return False


def _create(path: Path) -> None:
    """Make an empty ledger beside *path* and rename it: it is there whole, or not at all."""
    files.remove_half(path)
    with closing(sqlite3.connect(files.half(path), isolation_level=None)) as db:
        # Not later, in place: a kill just then leaves a journal that a look without write access,
        # with which each start begins, cannot roll back.
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(upgrade(0))
    files.replace(path)


def _connect(path: Path) -> sqlite3.Connection:
    """Open what lies there. One that SQLite makes because it is gone again would be empty."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
