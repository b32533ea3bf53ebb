"""The ledger on a disk that loses power, dies, fills or hangs."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.books import allocated, silicon
from fakes.faultydisk import Ext4, FaultyDisk, ext4
from fakes.ledgers import committed, ledger_in, moves_in, stored
from fakes.smalldisk import fill
from holdfast.app.watches import proof
from holdfast.errors import LaneStuckError, LedgerError
from holdfast.ledger.disk import FILE
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from manual_clock import ManualClock
from waiting import until


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Ext4]:
    with ext4(tmp_path) as disk:
        yield disk


def _grant(draft: Draft, device: str) -> None:
    allocated(silicon(**{device: device[-1]}))(draft)
    settle(draft)


def _apply(store: Store, device: str) -> Book:
    return committed(store, lambda draft: _grant(draft, device))


# What was answered is there after a power failure.

_WRITER = """
import sys
from pathlib import Path
from fakes.books import allocated, drafted, silicon
from holdfast.ledger.store import Store
from holdfast.model.book.queue import settle
store = Store(Path(sys.argv[1]))
for n in range(1, 4):
    draft = drafted(store.book)
    allocated(silicon(**{f"d{n}": str(n)}))(draft)
    settle(draft)
    store.write(draft.book, draft.moves)
    print(n, flush=True)
    sys.stdin.readline()
"""


def test_a_commit_has_been_synced_to_the_disk_before_it_is_answered(tmp_path: Path) -> None:
    """Every write that no sync followed is taken away, as a power failure takes it."""
    folder = tmp_path / "state"
    folder.mkdir()
    Store(folder).close()
    disk = FaultyDisk(tmp_path / "faulty", folder)
    tests = Path(__file__).parents[1]
    path = f"{tests.parent / 'daemon'}{os.pathsep}{tests}"
    shutil.copy(folder / FILE, tmp_path / FILE)
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **disk.environment},
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        for n in range(1, 4):
            assert writer.stdout.readline() == f"{n}\n"
            left = tmp_path / f"after-{n}"
            shutil.copytree(disk.synced, left)
            if not (left / FILE).exists():
                shutil.copy(tmp_path / FILE, left)
            with closing(Store(left)) as store:
                assert [name.id for name in stored(store).locks] == [f"d{m + 1}" for m in range(n)]
            writer.stdin.write("\n")
            writer.stdin.flush()


@pytest.mark.parametrize("written_again", [False, True])
def test_a_ledger_that_was_just_made_survives_a_power_failure_with_its_first_commit(
    disk: Ext4, *, written_again: bool
) -> None:
    store = Store(disk.path)
    if written_again:
        for file in disk.path.glob(f"{FILE}*"):
            file.unlink()
        assert store.prove()
    book = _apply(store, "d1")
    disk.power_fails()
    store.close()
    disk.unmount()
    disk.mount()
    with closing(Store(disk.path)) as store:
        assert stored(store) == book
    assert book.locks


# A disk that fails while nobody writes.


async def test_a_disk_that_has_gone_read_only_shows_before_the_first_pod_finds_out(
    disk: Ext4,
) -> None:
    clock = ManualClock()
    async with ledger_in(disk.path, clock) as ledger:
        await ledger.prove()
        assert ledger.proven_at == clock.monotonic()
        disk.goes_read_only()
        began = clock.monotonic()
        for _ in range(3):
            with pytest.raises(LedgerError, match="cannot write the ledger"):
                await ledger.prove()
            clock.shift(5)
        assert ledger.failing_since == began
        assert ledger.proven_at == began
        assert "cannot write the ledger" in ledger.problem


async def test_a_disk_that_is_dead_shows_before_the_first_pod_finds_out(disk: Ext4) -> None:
    clock = ManualClock()
    async with ledger_in(disk.path, clock) as ledger:
        await ledger.prove()
        disk.power_fails()
        for _ in range(3):
            with pytest.raises(LedgerError):
                await ledger.prove()
        assert ledger.failing_since == clock.monotonic()


async def test_a_disk_that_fills_while_nobody_writes_shows_and_is_proven_again_with_room(
    disk: Ext4,
) -> None:
    """What the WAL takes up already can be written over, which proves nothing of the next page."""
    clock = ManualClock()
    async with ledger_in(disk.path, clock) as ledger:
        for _ in range(40):
            await ledger.prove()
        await ledger.tidy(keep=200)
        filler = fill(disk.path)
        with pytest.raises(LedgerError, match="the disk is full"):
            await ledger.prove()
        assert ledger.failing_since == clock.monotonic()
        assert (disk.path / "reserve").stat().st_size == 1 << 20
        filler.unlink()
        await ledger.prove()
        assert ledger.failing_since is None
        assert ledger.problem == ""


def test_housekeeping_that_a_full_disk_stops_halfway_costs_no_history(disk: Ext4) -> None:
    with closing(Store(disk.path)) as store:
        for n in range(1, 9):
            _apply(store, f"d{n}")
        before = (disk.path / FILE).stat().st_mtime_ns
        for _ in range(40):
            committed(store, _told_of_each)
        history = moves_in(store, None, 1000)
        filler = fill(disk.path)
        with pytest.raises(LedgerError, match="cannot tidy the ledger .* is full"):
            store.tidy(keep=200)
        assert (disk.path / FILE).stat().st_mtime_ns != before, "some of the WAL was folded"
        assert store.changes() == ()
        filler.unlink()
        assert store.prove() == ()
        assert moves_in(store, None, 1000) == history


def _told_of_each(draft: Draft) -> None:
    for lock in draft.locks.values():
        draft.tell(lock.device, lock.keys, "a person said so " * 20)


def test_that_files_were_written_again_on_a_full_disk_is_told_once_there_is_room(
    disk: Ext4,
) -> None:
    with closing(Store(disk.path)) as store:
        book = _apply(store, "d1")
        filler = fill(disk.path)
        (disk.path / FILE).unlink()
        for _ in range(2):
            with pytest.raises(LedgerError, match="the disk is full"):
                store.prove()
            assert stored(store) == book
            assert (disk.path / FILE).exists()
        filler.unlink()
        assert store.prove() == (f"{FILE} was removed",)
        assert store.prove() == ()


async def test_only_a_proof_ends_a_failure_for_a_commit_may_not_have_reached_the_disk(
    disk: Ext4,
) -> None:
    clock = ManualClock()
    async with ledger_in(disk.path, clock) as ledger:
        with closing(sqlite3.connect(disk.path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError):
                await ledger.apply(lambda draft: _grant(draft, "d1"))
        began = clock.monotonic()
        clock.shift(5)
        await ledger.apply(lambda draft: _grant(draft, "d1"))
        assert ledger.failing_since == began
        assert await ledger.prove() == ()
        assert ledger.failing_since is None


async def test_that_it_works_again_is_told_although_nobody_waited_for_the_proof_any_more(
    disk: Ext4,
) -> None:
    clock = ManualClock()
    async with ledger_in(disk.path, clock) as ledger:
        watch = proof.LedgerProof(ledger, clock=clock)
        filler = fill(disk.path)
        with capture_logs() as logs:
            await watch.prove()
            filler.unlink()
            await ledger.prove()  # as one that hung, was given up, and went through
            await watch.prove()
            await watch.prove()
        assert [each["event"] for each in logs] == [
            "ledger cannot be written",
            "ledger can be written again",
        ]
        assert "the disk is full" in logs[1]["before"]


async def test_that_files_were_written_again_is_in_the_check_for_an_hour(tmp_path: Path) -> None:
    """Such as because of a program that reads the ledger and does not end: nobody reads the log."""
    clock = ManualClock()
    async with ledger_in(tmp_path, clock) as ledger:
        watch = proof.LedgerProof(ledger, clock=clock)

        async def said() -> tuple[bool, str]:
            await watch.prove()
            (check,) = watch.checks()
            return check.passes, check.reason

        assert await said() == (True, "")
        (tmp_path / FILE).unlink()
        passes, reason = await said()
        assert passes
        assert reason.startswith("its files were written again: ")
        clock.shift(3599)
        assert await said() == (True, reason)
        clock.shift(1)
        assert await said() == (True, "")


async def test_a_write_that_does_not_come_back_counts_from_when_the_first_proof_failed(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with ledger_in(tmp_path, clock) as ledger:
        hangs, comes_back = threading.Event(), threading.Event()

        def slow(draft: Draft) -> None:
            hangs.set()
            comes_back.wait()
            _grant(draft, "d1")

        write = asyncio.create_task(ledger.apply(slow))
        await until(hangs.is_set)
        began = clock.monotonic()
        for _ in range(2):
            with pytest.raises(LaneStuckError):
                await ledger.prove(deadline=0.05)
            assert ledger.failing_since == began
            assert "lane ledger" in ledger.problem
            clock.shift(5)
        comes_back.set()
        await write
        await ledger.prove()
        assert ledger.failing_since is None


def test_a_dead_disk_is_noticed_within_ten_seconds() -> None:
    """At worst it dies right after a proof, and the next one hangs until it is given up."""
    assert proof.EVERY + proof.DEADLINE < 10


def test_a_proof_leaves_the_book_as_it_was_and_the_wal_bounded(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        for _ in range(600):
            store.prove()
        assert (tmp_path / f"{FILE}-wal").stat().st_size > 1 << 20
        store.tidy(keep=200)
        store.prove()
        assert (tmp_path / f"{FILE}-wal").stat().st_size <= 1 << 20
        assert stored(store) == book
