"""The ledger as the rest of the daemon sees it: decide on the book, commit, then publish it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct

from holdfast.errors import (
    LaneStuckError,
    LedgerError,
    LedgerLostError,
    LedgerUnreadableError,
    LedgerUnusableError,
)
from holdfast.ledger import disk, rows
from holdfast.ledger.instance import InstanceLock, PluginFolderLock
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, DeviceLock, LockState, Move
from holdfast.model.book.draft import Draft
from holdfast.model.ids import BootId, DeviceName
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

T = TypeVar("T")

CLOSES_IN = 15.0
"""Seconds. A pod that has 30 to stop is not killed while it waits for its disk: the log says so."""


class LedgerObserver(Protocol):
    """Hears of each commit when its book is published."""

    def committed(self, moves: tuple[Move, ...], seconds: float, /) -> None:
        """Hear which *moves* were committed, and for how many *seconds* the disk had them."""


class Ledger(Struct, kw_only=True):
    """One file, one writer, one order of commits.

    `book` publishes each committed book; nothing uncommitted is ever seen there. Decisions run on
    the ledger's own lane, one after the other, each on the book the former one left.

    `store` is open, has `book`, and its thread is the lane's; use `open_ledger`.
    """

    store: Store
    lane: Lane
    book: Watched[Book]
    clock: Clock
    boot: BootId
    """The boot of the machine that decisions are made in."""
    locks: Sequence[InstanceLock | PluginFolderLock]
    proven_at: float | None = None
    """When `prove` last succeeded (monotonic seconds), None before it did."""
    _failing_since: float | None = None
    _problem: str = ""
    _lost: str = ""
    _written_anew: tuple[str, ...] = ()
    _owed: dict[Callable[[Draft], None], object] = {}
    """What is not written down yet, by how it is to be; the lane's thread takes out what it has
    committed, so only a copy is gone through."""
    _logged: set[str] = set()
    _observers: list[LedgerObserver] = []

    def observe(self, observer: LedgerObserver) -> None:
        """Have *observer* hear of each commit from now on."""
        self._observers.append(observer)

    @property
    def failing_since(self) -> float | None:
        """Return since when writes fail (monotonic seconds), None once `prove` has succeeded."""
        since = (self.lane.stuck_since, self._failing_since)
        return min((each for each in since if each is not None), default=None)

    @property
    def problem(self) -> str:
        """Return why writes fail, empty while they do not."""
        if self._failing_since is None and self.lane.stuck_since is not None:
            return "a write hangs"
        return self._problem

    async def apply(self, decide: Callable[[Draft], T], *, deadline: float | None = None) -> T:
        """Let *decide* change a draft of the book, and commit what it did; return its answer.

        *decide* must be pure, for it runs on another thread. Raises LedgerError when the commit
        failed, LaneStuckError when it took longer than *deadline*: then it may still come.
        """
        answer, _ = await self.lane.run(
            lambda: self._apply(decide), deadline=deadline, after=self._publish
        )
        return answer

    def owe(self, what: object, record: Callable[[Draft], None]) -> None:
        """Have *record* write *what* down with `Draft.pay`, or before the next Allocation of all.

        So Allocations are in the book in the order of their calls, whatever the disk does. The
        last one of the same devices takes the place of a former one: either that pod is over, or
        it is the same one, and nobody came in between. So a dead disk has only so many wait.
        """
        for former, each in self._owed.copy().items():
            if each == what:
                self._owed.pop(former, None)
        self._owed[record] = what

    def may_lack(self, what: object) -> bool:
        """Tell whether *what* may be missing from `book`: owed, or committed and not published."""
        return what in self._owed.copy().values() or self.book.value is not self.store.book

    async def apply_or_log(
        self,
        decide: Callable[[Draft], T],
        *,
        failed: Callable[[str], None] = lambda _reason: None,
    ) -> T | None:
        """Do as `apply`; where that fails call *failed* with the reason, and return None.

        For those who try again at each beat: a reason is logged once until a write succeeds.
        """
        try:
            return await self.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            reason = str(error)
            if reason not in self._logged:
                self._logged.add(reason)
                log.warning("cannot record a lock change", reason=reason)
            failed(reason)
            return None

    async def apply_if_changing(self, decide: Callable[[Draft], None]) -> bool:
        """Do as `apply_or_log`, and wait for nothing where *decide* changes nothing.

        Return whether it changes anything, committed or not. It is decided here, on the published
        book, and again only where another commit came between.
        """
        book = self.book.value
        made = self._draft(book)
        decide(made)

        def adopt(draft: Draft) -> None:
            if not draft.adopt(made):
                decide(draft)

        if made.book is book:
            self._forget_paid(made)
            return False
        await self.apply_or_log(adopt)
        return True

    async def if_unmoved(
        self, lock: DeviceLock, decide: Callable[[Draft], None]
    ) -> DeviceLock | None:
        """Let *decide* change the book if *lock* has not moved since it was read.

        Return the lock as it is then; None: it moved, or is free now, or the commit failed, which
        is logged as by `apply_or_log`.
        """

        def checked(draft: Draft) -> DeviceLock | None:
            if not draft.is_as(lock):
                return None
            decide(draft)
            return draft.locks.get(lock.device)

        return await self.apply_or_log(checked)

    async def move_if_unmoved(
        self, lock: DeviceLock, state: LockState, evidence: str
    ) -> DeviceLock | None:
        """Move *lock* to *state* as `if_unmoved` does."""
        return await self.if_unmoved(lock, lambda draft: draft.move(lock.device, state, evidence))

    async def history(self, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
        """Return the last *limit* moves, of one device or of all, oldest first."""
        query = partial(rows.read_history, device=device, limit=limit)
        return await self.lane.run(lambda: self.store.ask(query))

    async def moved_devices(self) -> frozenset[DeviceName]:
        """Return the devices of which there is any history, those included that left the node."""
        return await self.lane.run(lambda: self.store.ask(rows.read_moved_devices))

    async def tidy(self, *, keep: int) -> None:
        """Do the housekeeping that must not be on the way of an Allocate.

        All but the last *keep* moves of each device are dropped.
        """
        await self.lane.run(lambda: self.store.tidy(keep=keep))

    async def prove(self, *, deadline: float | None = None) -> tuple[str, ...]:
        """Keep the locks, write and read back; nothing else ends `failing_since` and `problem`.

        Return why the files were written again since the last time, and what was kept or lost.
        Raises LedgerError, of which SecondDaemonError is one, or LaneStuckError after *deadline*
        seconds.
        """
        started = self.clock.monotonic()
        try:
            await self.lane.run(self._prove, deadline=deadline)
        except LaneStuckError as error:
            # It may be another write that does not come back, and the proof was never begun.
            self._fails(started, error)
            raise
        told, self._written_anew = self._written_anew, ()
        return told

    async def close(self) -> None:
        """Close the file; what was committed stays, whatever was done to it just before.

        Raise LaneStuckError where the disk does not answer in time.
        """
        await self.lane.run(self._close, deadline=CLOSES_IN)

    def _apply(self, decide: Callable[[Draft], T]) -> "tuple[T, _Commit | None]":
        """Return what *decide* answers, and what was committed; None: it changed nothing."""
        before = self.store.book
        draft = self._draft(before)
        answer = decide(draft)
        after = draft.book
        if after is before:
            self._forget_paid(draft)
            return answer, None
        if self._lost:
            raise LedgerLostError(self._lost)
        started = self.clock.monotonic()
        try:
            try:
                self.store.write(after, draft.moves)
            except LedgerLostError:  # at once, not at the next proof: a pod's admission waits
                self._prove()
                self.store.write(after, draft.moves)
        except Exception as error:
            self._fails(started, error)
            raise
        self._forget_paid(draft)
        took = self.clock.monotonic() - started
        return answer, _Commit(book=after, moves=draft.moves, took=took)

    def _forget_paid(self, draft: Draft) -> None:
        for each in draft.paid:
            self._owed.pop(each, None)

    def _draft(self, book: Book) -> Draft:
        clock = self.clock
        owed = self._owed.copy()
        return Draft(book, now=clock.wall(), uptime=clock.uptime(), boot=self.boot, owed=owed)

    def _close(self) -> None:
        with suppress(LedgerError):
            if self.store.changes():
                self._prove()
        self.store.close()

    def _prove(self) -> None:
        started = self.clock.monotonic()
        try:
            for lock in self.locks:
                lock.keep()
            self._written_anew += self.store.prove()
        except Exception as error:
            if isinstance(error, LedgerLostError | LedgerUnusableError):
                self._lost = str(error)
            self._fails(started, error)
            raise
        self._problem, self._lost, self._failing_since = "", "", None
        self.proven_at = self.clock.monotonic()

    def _fails(self, started: float, error: Exception) -> None:
        if self._failing_since is None:
            self._failing_since = started
        self._problem = str(error)

    def _publish(self, decided: "tuple[object, _Commit | None]") -> None:
        _, commit = decided
        if commit is not None:
            self._logged.clear()
            self.book.set(commit.book)
            for each in self._observers:
                each.committed(commit.moves, commit.took)


class _Commit(Struct, frozen=True, kw_only=True):
    """A new book that is on the disk, what led to it, and the seconds that writing it took."""

    book: Book
    moves: tuple[Move, ...]
    took: float


async def open_ledger(
    folder: Path,
    lane: Lane,
    *,
    clock: Clock,
    boot: BootId,
    locks: Sequence[InstanceLock | PluginFolderLock],
) -> Ledger:
    """Open the ledger in *folder* on *lane*, and read the book.

    What is not the ledger that was here, whole, is kept beside an empty one, and the log says so.
    The caller holds *locks*, among them the folder's InstanceLock; they are kept with each proof.
    Raises LedgerUnusableError.
    """
    store = await lane.run(lambda: _open(folder))
    book = Watched(store.book)
    return Ledger(store=store, lane=lane, book=book, clock=clock, boot=boot, locks=locks)


def _open(folder: Path) -> Store:
    try:
        return Store(folder)
    except LedgerUnreadableError as error:
        reason = str(error)
    try:
        kept = disk.set_aside(folder / disk.FILE)
    except OSError as error:
        raise LedgerUnusableError(f"{reason}; cannot keep it beside: {error}") from error
    store = Store(folder, replace=True)
    if kept is None:
        log.error("ledger is gone", reason=reason)
    else:
        log.error("unreadable ledger kept beside", reason=reason, kept=str(kept))
    return store
