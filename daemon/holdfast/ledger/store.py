"""The ledger's file: open it, read the book from it, write the next one as one commit."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from holdfast.errors import (
    LedgerError,
    LedgerLostError,
    LedgerUnreadableError,
    LedgerUnusableError,
)
from holdfast.ledger import disk, rows
from holdfast.ledger.disk import FILE, Stamp
from holdfast.ledger.readonly import BUSY_TIMEOUT_MS, inspect
from holdfast.ledger.rows import creation
from holdfast.model.book.book import Book, Move

T = TypeVar("T")

_WAL_BYTES = 1 << 17
"""To what the WAL is cut when it begins again."""
_UNFOLDED = 2000
"""Pages in the WAL that a reader has kept from being folded: two hours of a node at rest."""
_OF_CONTENT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""What SQLite says of a file that it can read; the last of one that lacks a table."""
_CACHE_KIB = 512
"""Pages that SQLite keeps: its own bound is four times that, and a history fills any."""


class Store:
    """The open ledger file. Every method blocks and must run on one and the same thread.

    One commit is one fsync: WAL with synchronous=FULL. The WAL is folded back by `tidy`, which is
    never called on the way of an Allocate. All but the history is in memory too, as `book`:
    whatever is done to the files, they are written again from there.
    """

    def __init__(self, folder: Path, *, replace: bool = False) -> None:
        """Open the ledger in *folder*, or create it where there is none, with *replace* always.

        Raises LedgerUnusableError when it cannot be opened, LedgerUnreadableError when it is
        not the one that was here, whole; what is there is left as it was found.
        """
        self._path = folder / FILE
        self._reserve = disk.Reserve(folder)
        self._seal = disk.Seal(folder)
        self._stale = ""
        """Why files are to be written again that nobody has changed."""
        self._spoiled = False
        """Whether what is open was written to by somebody else."""
        self._told: tuple[str, ...] = ()
        """Why the files were written again, until a proof that succeeds tells it."""
        known = None
        try:
            known = disk.sealed(folder)
            # Looked at without write access first: closing a file that is not to be touched would
            # otherwise fold its WAL back into it.
            try:
                inspect(self._path, known)
            except FileNotFoundError:
                self._begin(known, replace=replace)
            with suppress(OSError):  # it is older: not to be used where this one is moved away
                disk.remove_half(self._path)
            self._db = self._open()
            self._adopt(rows.read_book(self._db), rows.read_stamp(self._db))
        except LedgerUnusableError as error:
            if known is None:
                raise
            raise LedgerUnreadableError(str(error)) from error  # there was a ledger: not this one
        except (sqlite3.Error, OSError, ValueError) as error:
            raise self._unusable(error) from error
        self._reserve.keep()

    def ask(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what *query* reads of the open file; raises LedgerError when it cannot."""
        try:
            return query(self._db)
        except (sqlite3.Error, ValueError) as error:
            raise LedgerError(f"cannot read the ledger {self._path}: {error}") from error

    def write(self, after: Book, moves: tuple[Move, ...]) -> None:
        """Commit *after* as the next book, together with the moves that lead there.

        Raises LedgerError, and then nothing is in the open ledger, though after a failed fsync the
        next start may find it; LedgerLostError when the files are not as we left them. On a full
        disk the reserve is given up for a change that records no new Allocation, so that releases
        always go through.
        """
        if changes := self.changes():
            raise LedgerLostError(f"cannot write the ledger {self._path}: {'; '.join(changes)}")
        releases = not (after.allocations.keys() - self.book.allocations.keys())
        if self._reserve.full and not releases:
            raise LedgerError(
                f"cannot write the ledger {self._path}: the disk is full, and what is left is kept "
                "for releases; make room"
            )

        commit = partial(self._commit, after, moves)
        try:
            self._with_reserve(commit) if releases else commit()
        except ValueError as error:
            self._stale = str(error)
            raise LedgerLostError(f"cannot write the ledger {self._path}: {error}") from error
        except sqlite3.Error as error:
            raise LedgerError(f"cannot write the ledger {self._path}: {error}") from error

    def tidy(self, *, keep: int) -> None:
        """Drop all but the last *keep* moves of each device, fold the WAL, refill the reserve."""
        try:
            if self.changes() or self._begin_writing():
                return  # the next proof writes it again
        except sqlite3.Error as error:
            raise LedgerError(f"cannot tidy the ledger {self._path}: {error}") from error
        try:
            self._db.execute(
                "DELETE FROM history WHERE fence IN (SELECT fence FROM (SELECT fence, row_number() "
                "OVER (PARTITION BY resource, device ORDER BY fence DESC) AS age FROM history) "
                "WHERE age > ?)",
                (keep,),
            )
            self._db.execute("COMMIT")
            _busy, pages, folded = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            self._undo()
            raise LedgerError(f"cannot tidy the ledger {self._path}: {error}") from error
        finally:  # what is half done, as on a full disk, we did too
            with suppress(OSError):
                self._place.note()
        if pages - folded > _UNFOLDED:
            self._stale = "a program that reads ledger.db in one long transaction has its WAL grow"
        self._reserve.keep()

    def changes(self) -> tuple[str, ...]:
        """Tell why the files are to be written again; raises LedgerError when that is not known."""
        try:
            changes = self._place.changes()
        except OSError as error:
            raise LedgerError(f"cannot look at the ledger {self._path}: {error}") from error
        return changes or tuple(filter(None, [self._stale]))

    def prove(self) -> tuple[str, ...]:
        """Write to the disk and read back; return why the files were written again, and how.

        Files that are not as we left them are written again from memory; what somebody else put
        there is kept beside. That is returned once a proof succeeds. Raises LedgerError while the
        file takes no write, LedgerLostError when what is written does not stay.
        """
        if changes := self.changes():
            self._told += self._write_again(changes)
        self._reserve.keep()
        if self._reserve.full:  # and what is left is kept for releases
            raise LedgerError(f"cannot write the ledger {self._path}: the disk is full; make room")
        try:
            self._seal.keep(self._stamp)
            self._commit(self.book, ())
            stored = self._back.is_stored()
        except (sqlite3.Error, OSError, ValueError) as error:
            if isinstance(error, ValueError):
                self._stale = str(error)
            raise LedgerError(f"cannot write the ledger {self._path}: {error}") from error
        if not stored:
            raise LedgerLostError(
                f"cannot trust the disk of the ledger {self._path}: it reported a write as done, "
                "and what is read from it is something else; replace the disk"
            )
        told, self._told = self._told, ()
        return told

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self._db.close()
        self._back.close()
        self._seal.close()

    def _begin(self, known: Stamp | None, *, replace: bool) -> None:
        """Have a ledger where there is none: an empty one, or a copy not put there yet."""
        if _is_whole(disk.half(self._path), known):
            disk.set_aside(self._path)
            disk.link(self._path)
            return
        names = {self._path.with_name(name) for name in disk.NAMES}
        gone = known is not None or not names.isdisjoint(self._path.parent.iterdir())
        if gone and not replace:
            raise ValueError("it is gone, and there was one")
        self._seal.forget()
        self._make(Book(), Stamp(ledger=token_hex(8), commits=0), ())
        disk.link(self._path)

    def _make(self, book: Book, stamp: Stamp, history: Iterable[tuple[object, ...]]) -> None:
        """Write a whole ledger beside its place."""
        disk.remove_half(self._path)
        with closing(sqlite3.connect(disk.half(self._path), isolation_level=None)) as db:
            db.executescript(creation())
            db.execute("BEGIN")
            db.execute("INSERT INTO counters VALUES (1, 0, 0, ?, ?, '')", (stamp.ledger, 0))
            total = rows.total(rows.write_difference(db, Book(), book))
            rows.write_stamp(db, book, stamp, total, commits=0)
            db.executemany("INSERT INTO history VALUES (?, ?, ?, ?)", history)
            db.execute("COMMIT")
            # Last: all is in the one file by then, whatever becomes of its closing. And not in its
            # place, where a kill leaves a journal that no look without write access rolls back.
            db.execute("PRAGMA journal_mode = WAL")

    def _open(self) -> sqlite3.Connection:
        """Open what lies there, for writing; nothing is written to it."""
        # One that SQLite makes because it is gone again would be empty.
        name = f"{self._path.absolute().as_uri()}?mode=rw"
        db = sqlite3.connect(name, uri=True, isolation_level=None)
        db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        return db

    def _adopt(self, book: Book, stamp: Stamp, made: disk.Identity | None = None) -> None:
        """Go on with what was opened, which has *book*; *made*: only if that is the file."""
        db = self._db
        try:
            if rows.read_stamp(db) != stamp:
                raise FileExistsError("another ledger was put there")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            db.execute("BEGIN IMMEDIATE")  # fails on a read-only or locked file, now and not later
            db.execute("ROLLBACK")
            place = disk.Place(self._path)
            if made not in {None, place.identities[0]}:
                raise FileExistsError("another file was put there")
            prints = rows.read_prints(db)
            self._seal.keep(stamp)
            back = disk.ReadBack(self._path.with_name(f"{FILE}-wal"))
        except (sqlite3.Error, OSError, ValueError):
            db.close()
            self._seal.close()
            raise
        self.book, self._stamp, self._place = book, stamp, place
        self._prints, self._total, self._back = prints, rows.total(prints), back

    def _write_again(self, changes: tuple[str, ...]) -> tuple[str, ...]:
        """Write the whole ledger from memory, and go on with that; return what to log about it."""
        stamp = Stamp(ledger=self._stamp.ledger, commits=self._stamp.commits + 1)
        lost: list[str] = []
        # What was written in place may be another's, or half of something.
        self._spoiled = self._spoiled or any("in its place" in each for each in changes)
        old, back = self._db, self._back
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._with_reserve(lambda: self._make(self.book, stamp, self._moves(lost)))
            made = disk.identity(disk.half(self._path).stat())
            # From here to the end a kill leaves the whole copy. A WAL would be taken for the new
            # file's, or other programs would still write to it.
            kept = disk.set_aside(self._path, self._place.identities)
            disk.link(self._path)
            self._db = self._open()
            try:
                self._adopt(self.book, stamp, made)
            except (sqlite3.Error, OSError, ValueError):
                self._db = old
                raise
        except (sqlite3.Error, OSError, ValueError) as error:
            raise LedgerLostError(
                f"cannot write the ledger {self._path} again ({'; '.join(changes)}): {error}. It "
                "is tried again every few seconds. Do not restart holdfast before: the ledger is "
                "in its memory alone"
            ) from error
        self._stale, self._spoiled = "", False
        old.close()  # it is not at its name any more: SQLite then leaves the WAL at its name alone
        back.close()
        with suppress(OSError):
            disk.remove_half(self._path)
        if lost:
            changes = (*changes, "the history is lost")
        return changes if kept is None else (*changes, f"what was there is kept as {kept.name}")

    def _moves(self, lost: list[str]) -> Iterator[tuple[object, ...]]:
        """Yield the rows of the history, as far as they can be read."""
        if self._spoiled:
            lost.append("it was written to")
            return
        try:
            yield from self._db.execute(
                "SELECT fence, resource, device, document FROM history WHERE fence <= ?",
                (self.book.fence,),
            )
        except sqlite3.Error as error:
            lost.append(str(error))

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Do *write*, and once more with the room of the reserve where the disk is full."""
        try:
            write()
        except sqlite3.Error as error:
            if not (_is_full(error) and self._reserve.give_up()):
                raise
            write()

    def _unusable(self, error: Exception) -> LedgerUnusableError:
        if _is_unreadable(error):
            return LedgerUnreadableError(f"cannot use the ledger {self._path}: {error}")
        return LedgerUnusableError(
            f"cannot use the ledger {self._path}: {error}. It is left as it is: move it away "
            "with its -wal and -shm to start with an empty one, which kubelet's checkpoint then "
            "fills"
        )

    def _begin_writing(self) -> tuple[str, ...]:
        """Begin to write, when nobody else does; return what somebody did to the files until then.

        That can be while this waits: then nothing is begun.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            changes = self.changes()
        except LedgerError:
            self._undo()
            raise
        if changes:
            self._undo()
        return changes

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _commit(self, after: Book, moves: tuple[Move, ...]) -> None:
        """Commit; raises sqlite3.Error, ValueError where it is not the ledger as we left it."""
        stamp = Stamp(ledger=self._stamp.ledger, commits=self._stamp.commits + 1)
        total = self._total
        if changes := self._begin_writing():
            raise ValueError("; ".join(changes))
        try:
            prints = rows.write_difference(self._db, self.book, after)
            for name, new in prints.items():
                total ^= self._prints.get(name, 0) ^ new
            rows.write_stamp(self._db, after, stamp, total, commits=self._stamp.commits)
            rows.write_moves(self._db, moves)
            self._db.execute("COMMIT")
        except BaseException:
            self._undo()
            raise
        finally:
            with suppress(OSError):
                self._place.note_commit()
        self.book, self._stamp, self._total = after, stamp, total
        self._prints |= prints
        for name in [name for name, new in prints.items() if not new]:
            del self._prints[name]
        with suppress(OSError):  # it may know of fewer, and the next proof tells
            self._seal.note(stamp)


def _is_whole(half: Path, known: Stamp | None) -> bool:
    """Tell whether *half* is the ledger that is *known*, and only had to be put in its place."""
    try:
        if half.with_name(f"{half.name}-journal") in half.parent.iterdir():  # it was being written
            return False
        inspect(half, known, how="mode=ro&immutable=1")
    except (sqlite3.Error, OSError, ValueError, LedgerUnusableError):
        return False
    return True


def _is_unreadable(error: Exception) -> bool:
    """Tell whether what was read is at fault: not the disk, a lock, or who may read."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _OF_CONTENT
    return isinstance(error, ValueError)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
