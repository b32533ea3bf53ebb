"""A ledger in a folder of the test's, with a lane of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

from fakes.books import BOOT, drafted
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.ids import BootId
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane


@asynccontextmanager
async def ledger_in(
    folder: Path, clock: Clock | None = None, *, boot: BootId = BOOT
) -> AsyncIterator[Ledger]:
    """Yield the ledger in *folder*, which is made where it is not there."""
    folder.mkdir(exist_ok=True)
    with closing(Lane("ledger", deadline=30.0)) as lane:
        ledger = await open_ledger(folder, lane, clock=clock or SystemClock(), boot=boot, locks=())
        try:
            yield ledger
        finally:
            await ledger.close()


def committed(store: Store, decide: Callable[[Draft], object]) -> Book:
    """Do what Ledger does: decide on the book, settle, commit."""
    before = store.read()
    draft = drafted(before)
    decide(draft)
    settle(draft)
    store.write(before, draft.book, draft.moves)
    return draft.book
