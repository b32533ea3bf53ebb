"""A ledger in a folder of the test's, with a lane of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from fakes.books import BOOT, drafted
from holdfast.ledger import rows
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.ledger.readonly import read_only
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, Move
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.ids import BootId, DeviceName
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane

T = TypeVar("T")


@asynccontextmanager
async def ledger_in(
    folder: Path, clock: Clock | None = None, *, boot: BootId = BOOT
) -> AsyncIterator[Ledger]:
    """Yield the ledger in *folder*, which is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(Lane("ledger", deadline=30.0)) as lane:
        ledger = await open_ledger(folder, lane, clock=clock or SystemClock(), boot=boot, locks=())
        try:
            yield ledger
        finally:
            await ledger.close()


def committed(store: Store, decide: Callable[[Draft], object]) -> Book:
    """Do what Ledger does: decide on the book, settle, commit."""
    draft = drafted(store.book)
    decide(draft)
    settle(draft)
    store.write(draft.book, draft.moves)
    return draft.book


def stored(where: Store | Path) -> Book:
    """Return the book that is in the file: of an open ledger, or in a folder of one."""
    return _ask(where, rows.read_book)


def moves_in(where: Store | Path, device: DeviceName | None, limit: int) -> tuple[Move, ...]:
    """Return the last *limit* moves that are in the file, of one device or of all."""
    return _ask(where, partial(rows.read_history, device=device, limit=limit))


def _ask(where: Store | Path, query: Callable[[Connection], T]) -> T:
    return where.ask(query) if isinstance(where, Store) else read_only(where, query)
