"""The ledger as the rest of the daemon sees it: decide on the book, commit, then publish it."""

import asyncio
import fcntl
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.errors import LedgerUnusableError
from holdfast.ledger.store import LOCK, Store
from holdfast.model.book import Book
from holdfast.model.draft import Draft
from holdfast.model.ids import BootId, DeviceName
from holdfast.model.locks import Move
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

T = TypeVar("T")


class Ledger:
    """One file, one writer, one order of commits.

    `book` publishes each committed book; nothing uncommitted is ever seen there. Decisions run on
    the ledger's own lane, one after the other, each on the book the former one left.
    """

    def __init__(self, store: Store, lane: Lane, *, clock: Clock, boot: BootId) -> None:
        """Take an open store whose thread is *lane*'s; use `open_ledger`."""
        self._store = store
        self._lane = lane
        self._clock = clock
        self._boot = boot
        self._loop = asyncio.get_running_loop()
        self._latest = Book()
        self._failing_since: float | None = None
        self._proven_at: float | None = None
        self.book: Watched[Book] = Watched(self._latest)
        self.commit_seconds: Callable[[float], None] = lambda _seconds: None
        self.moved: Callable[[tuple[Move, ...]], None] = lambda _moves: None

    @property
    def failing_since(self) -> float | None:
        """Return since when commits fail (monotonic seconds), None while they succeed."""
        stuck = self._lane.stuck_since
        return stuck if stuck is not None else self._failing_since

    @property
    def proven_at(self) -> float | None:
        """Return when the last durable write succeeded (monotonic seconds), None before one."""
        return self._proven_at

    async def apply(self, decide: Callable[[Draft], T], *, deadline: float | None = None) -> T:
        """Let *decide* change a draft of the book, and commit what it did; return its answer.

        *decide* must be pure, for it runs on another thread. Raises LedgerError when the commit
        failed, LaneStuckError when it took longer than *deadline*: then it may still come.
        """
        return await self._lane.run(lambda: self._apply(decide), deadline=deadline)

    async def history(self, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
        """Return the last *limit* moves, of one device or of all, oldest first."""
        return await self._lane.run(lambda: self._store.history(device, limit))

    async def tidy(self) -> None:
        """Do the housekeeping that must not be on the way of an Allocate."""
        await self._lane.run(self._store.tidy)

    async def prove(self, *, idle: float = math.inf) -> None:
        """Find out whether it can commit: devices may be withheld, and then nobody writes.

        Raises LedgerError or LaneStuckError while it cannot. Does nothing while it does not fail
        and the last durable write is less than *idle* seconds ago.
        """
        proven = self._proven_at
        due = proven is None or self._clock.monotonic() - proven >= idle
        if due or self.failing_since is not None:
            await self._lane.run(self._prove)

    async def close(self) -> None:
        """Close the file; what was committed stays."""
        await self._lane.run(self._store.close)

    async def load(self) -> None:
        """Read the committed book and publish it."""
        self._latest = await self._lane.run(self._store.read)
        self.book.set(self._latest)

    def _apply(self, decide: Callable[[Draft], T]) -> T:
        before = self._latest
        clock = self._clock
        draft = Draft(before, now=clock.wall(), uptime=clock.uptime(), boot=self._boot)
        answer = decide(draft)
        after = draft.book
        if after is before:
            return answer
        started = self._clock.monotonic()
        try:
            self._store.write(before, after, draft.moves)
        except Exception:
            self._failing_since = self._failing_since or started
            raise
        self._failing_since = None
        self._latest = after
        self._proven_at = self._clock.monotonic()
        took = self._proven_at - started
        # Published from here, not by the caller: it may have given up waiting by now.
        self._loop.call_soon_threadsafe(self._publish, after, draft.moves, took)
        return answer

    def _prove(self) -> None:
        started = self._clock.monotonic()
        try:
            self._store.prove()
        except Exception:
            self._failing_since = self._failing_since or started
            raise
        self._failing_since = None
        self._proven_at = self._clock.monotonic()

    def _publish(self, book: Book, moves: tuple[Move, ...], took: float) -> None:
        self.book.set(book)
        self.commit_seconds(took)
        self.moved(moves)


class InstanceLock:
    """Keeps a second daemon from ever writing the same ledger; released when the process ends."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of *folder*, creating it; raises LedgerUnusableError when it is taken."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"cannot use the state folder {folder}: {error.strerror}"
            raise LedgerUnusableError(message) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            message = f"cannot use the state folder {folder}: another holdfast is running on it"
            raise LedgerUnusableError(message) from error

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._fd)


async def open_ledger(
    folder: Path, lane: Lane, *, clock: Clock, boot: BootId, history_per_device: int = 200
) -> Ledger:
    """Open the ledger in *folder* on *lane*, and read the book.

    Raises LedgerUnusableError; the caller holds the folder's InstanceLock.
    """
    store = await lane.run(lambda: Store(folder, history_per_device=history_per_device))
    ledger = Ledger(store, lane, clock=clock, boot=boot)
    await ledger.load()
    return ledger
