"""The ledger on a real disk: killed, locked, damaged, from another time, full, read-only."""

import _sqlite3
import asyncio
import contextlib
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.books import (
    BEFORE,
    BOOT,
    UPTIME,
    WHOLE,
    X,
    allocated,
    breaches,
    name,
    silicon,
)
from fakes.ledgers import committed, ledger_in, moves_in, stored
from fakes.smalldisk import fill, mounted
from holdfast.errors import LaneStuckError, LedgerError, LedgerUnreadableError, LedgerUnusableError
from holdfast.ledger.disk import FILE, SEAL
from holdfast.ledger.instance import InstanceLock
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.ledger.readonly import read_only
from holdfast.ledger.rows import SCHEMA_VERSION, read_moved_devices
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, LockState, Move, Phase, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.ids import BootId, DeviceId, ProcessId
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock
from waiting import until

_D0 = silicon(d0="a")


def _allocate(draft: Draft) -> int:
    allocation = allocated(_D0)(draft)
    settle(draft)
    return allocation.id


def _release(draft: Draft) -> None:
    for allocation in list(draft.book.allocations.values()):
        draft.end(allocation, "over")
    for lock in list(draft.book.locks.values()):
        draft.move(lock.device, LockState.FREE, "free")


def _bytes(folder: Path) -> dict[str, bytes]:
    """Return what must never change: the database and what its WAL adds to it."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name in {FILE, f"{FILE}-wal"} and path.stat().st_size
    }


def _killed_after(folder: Path, statements: str) -> None:
    """Leave behind what a killed program wrote by *statements*, its WAL not folded back."""
    script = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA wal_autocheckpoint = 0')\n"
        "db.executescript(sys.argv[2])\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder / FILE), statements], check=True)


# What is written is read again.


def test_everything_in_a_book_is_read_again_after_the_file_was_closed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    committed(store, allocated(silicon(d0="ab", d1="c"), pod=X, active=True))
    committed(store, lambda draft: draft.allocate(WHOLE, _D0, checkpoint=BEFORE))
    record = PodRecord(
        uid=X,
        boot=BOOT,
        cgroup="/kubepods/podx",
        inode=7,
        namespace="default",
        name="train-0",
        counted_by=ProcessId(700, 70),
        let_go_at=UPTIME,
        counted_boot=BOOT,
    )
    book = committed(store, lambda draft: draft.note_pod(record))
    store.close()
    again = Store(tmp_path)
    assert stored(again) == book
    assert stored(again).allocations[1].phase is Phase.ACTIVE
    assert stored(tmp_path) == book
    again.close()


def test_the_history_of_a_device_is_told_oldest_first_and_of_all_devices_together(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        committed(store, allocated(silicon(d0="a", d1="b"), pod=X))
        committed(store, _release)
        of_d0 = moves_in(store, name("d0"), 10)
        assert [move.after for move in of_d0] == [
            LockState.HELD,
            LockState.RELEASING,
            LockState.FREE,
        ]
        everything = moves_in(store, None, 10)
        assert len(everything) == 6
        assert all(one.fence < other.fence for one, other in pairwise(everything))
        assert moves_in(store, None, 2) == everything[-2:]
        assert moves_in(tmp_path, name("d0"), 10) == of_d0


def test_the_history_is_bounded_by_tidying(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        for _ in range(6):
            committed(store, allocated(silicon(d0="a", d1="b")))
            committed(store, _release)
        book, latest = stored(store), moves_in(store, name("d0"), 5)
        assert len(moves_in(store, name("d0"), 1000)) == 18
        store.tidy(keep=5)
        assert moves_in(store, name("d0"), 1000) == latest
        assert len(moves_in(store, name("d1"), 1000)) == 5
        assert stored(store) == book


def test_of_a_long_history_little_is_kept_in_memory(tmp_path: Path) -> None:
    used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    used.restype = ctypes.c_longlong
    devices = silicon(**{f"d{number}": f"k{number}" for number in range(64)})
    with closing(Store(tmp_path)) as store:
        before = used()
        for _ in range(16):
            for _ in range(25):
                committed(store, allocated(devices))
                committed(store, _release)
            store.tidy(keep=10**9)
        assert used() - before < 768 << 10


def test_tidying_keeps_the_wal_from_growing(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        sizes = []
        for _ in range(6):
            for _ in range(5):
                committed(store, allocated(_D0))
                committed(store, _release)
            sizes.append((tmp_path / f"{FILE}-wal").stat().st_size)
            store.tidy(keep=200)
        assert max(sizes[1:]) <= sizes[0] * 1.5


# Killed.

_WRITER = """
import sys
from pathlib import Path
from fakes.books import WHOLE, X, drafted, silicon
from holdfast.ledger.store import Store
from holdfast.model.book.book import LockState
from holdfast.model.book.queue import settle
store = Store(Path(sys.argv[1]))
while True:
    for free in (False, True):
        draft = drafted(store.book)
        if free:
            for each in list(draft.book.allocations.values()):
                draft.end(each, "over")
            for lock in list(draft.book.locks.values()):
                draft.move(lock.device, LockState.FREE, "free")
        else:
            draft.allocate(WHOLE, silicon(d0="a", d1="bc"), pod=X)
        settle(draft)
        store.write(draft.book, draft.moves)
        print(draft.book.fence, flush=True)
    if draft.book.fence % 60 == 0:
        store.tidy(keep=10**9)
"""


@pytest.fixture(scope="module")
def writer_environment() -> dict[str, str]:
    tests = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{tests.parent / 'daemon'}{os.pathsep}{tests}"}


def test_what_was_committed_before_a_kill_is_there_after_it(
    tmp_path: Path, writer_environment: dict[str, str]
) -> None:
    last = 0
    for round_ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=writer_environment,
        ) as writer:
            assert writer.stdout is not None
            for _ in range(3 + 7 * round_):
                last = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            told = writer.stdout.read().splitlines()
        last = max([last, *(int(line) for line in told if line.isdigit())])
        with closing(Store(tmp_path)) as store:
            book = stored(store)
            assert book.fence >= last
            assert not breaches(book)
            assert bool(book.locks) is bool(book.allocations)
            fences = [move.fence for move in moves_in(store, None, 10**6)]
            assert fences == list(range(1, book.fence + 1))


def test_a_ledger_whose_creation_was_killed_is_created_again(
    tmp_path: Path, writer_environment: dict[str, str]
) -> None:
    script = (
        "import sys; from pathlib import Path; from holdfast.ledger.store import Store\n"
        "print('go', flush=True); Store(Path(sys.argv[1])); print('done', flush=True)"
    )
    for n in range(6):
        folder = tmp_path / str(n)
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=writer_environment,
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(n * 0.001)  # not to wait for anything: to be killed at different moments
            child.send_signal(signal.SIGKILL)
        with closing(Store(folder)) as store:
            assert stored(store) == Book()


def test_a_ledger_is_in_its_journal_mode_when_it_is_first_seen_at_its_place(
    tmp_path: Path,
) -> None:
    """Changed in place, a kill at that moment left a journal that kept every later start out."""
    Store(tmp_path).close()
    assert {each.name for each in tmp_path.iterdir()} == {FILE, SEAL, "reserve"}
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,), "whole"


# Files that must not be touched.


def _garbage(folder: Path) -> None:
    (folder / FILE).write_bytes(b"this is no database" * 1000)


def _torn(folder: Path) -> None:
    """A page of the middle is gone, the header is right."""
    with closing(Store(folder)) as store:
        for _ in range(20):
            committed(store, allocated(silicon(d0="a", d1="b")))
            committed(store, _release)
        store.tidy(keep=200)
    data = bytearray((folder / FILE).read_bytes())
    data[4096 : 4096 * 3] = b"\xff" * 4096 * 2
    (folder / FILE).write_bytes(data)


def _miscounted(folder: Path) -> None:
    """The header tells of free pages that the file does not have."""
    with closing(Store(folder)) as store:
        committed(store, allocated(_D0))
    data = bytearray((folder / FILE).read_bytes())
    data[36:40] = (7).to_bytes(4, "big")
    (folder / FILE).write_bytes(data)


def _short(folder: Path) -> None:
    with closing(Store(folder)) as store:
        committed(store, allocated(_D0))
    os.truncate(folder / FILE, 4096)


def _another_programs(folder: Path) -> None:
    _killed_after(folder, "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)")


def _of_another_version(folder: Path) -> None:
    with closing(Store(folder)) as store:
        committed(store, allocated(_D0))
    _killed_after(folder, f"PRAGMA user_version = {SCHEMA_VERSION + 7}; CREATE TABLE news (a)")


def _empty(folder: Path) -> None:
    (folder / FILE).touch()


def _only_begun(folder: Path) -> None:
    _killed_after(folder, "PRAGMA journal_mode = WAL;")


def _without_a_table(folder: Path) -> None:
    Store(folder).close()
    _killed_after(folder, "DROP TABLE things")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_garbage, "not a database"),
        (_torn, "cannot use the ledger"),
        (_miscounted, "cannot use the ledger"),
        (_short, "cannot use the ledger"),
        (_another_programs, "another program's database"),
        (_of_another_version, f"it has version {SCHEMA_VERSION + 7}, this holdfast knows 1"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_refused_and_not_a_byte_of_it_changes(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(tmp_path)
    before = _bytes(tmp_path)
    for _ in range(2):
        with pytest.raises(LedgerUnusableError, match=reason) as refused:
            Store(tmp_path)
        assert isinstance(refused.value, LedgerUnreadableError) is (spoil != _another_programs)
        assert _bytes(tmp_path) == before


def test_a_ledger_that_another_program_has_locked_is_refused(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        committed(store, allocated(_D0))
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnusableError, match="locked") as refused:
            Store(tmp_path)
        assert not isinstance(refused.value, LedgerUnreadableError), "it is whole"


def test_a_commit_that_meets_a_lock_writes_nothing_and_succeeds_when_it_is_gone(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        before = committed(store, allocated(_D0))
        tried: list[str] = []
        store._db.set_trace_callback(tried.append)
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="cannot write the ledger .* locked"):
                committed(store, _release)
            assert stored(store) == before
        assert tried.count("BEGIN IMMEDIATE") == 1, "a lock is no full disk, which is tried again"
        assert (tmp_path / "reserve").stat().st_size
        assert committed(store, _release).locks == {}


@pytest.mark.parametrize(
    "spoil",
    [
        _garbage,
        _torn,
        _miscounted,
        _short,
        _of_another_version,
        _without_a_table,
        _empty,
        _only_begun,
    ],
)
async def test_a_start_keeps_what_it_cannot_read_beside_and_begins_with_an_empty_ledger(
    tmp_path: Path, lane: Lane, spoil: Callable[[Path], None]
) -> None:
    for kept in ("unreadable-1", "unreadable-2"):
        spoil(tmp_path)
        before = _bytes(tmp_path)
        with capture_logs() as logs:
            ledger = await _open(tmp_path, lane, ManualClock())
        assert ledger.book.value == Book()
        await ledger.apply(_allocate)
        await ledger.close()
        aside = tmp_path / f"{FILE}.{kept}"
        assert {
            FILE + each: (tmp_path / f"{aside.name}{each}").read_bytes()
            for each in ("", "-wal")
            if FILE + each in before
        } == before
        assert [(each["event"], each["log_level"], each["kept"]) for each in logs] == [
            ("unreadable ledger kept beside", "error", str(aside))
        ]
        assert "cannot use the ledger" in logs[0]["reason"]
        again = await _open(tmp_path, lane, ManualClock())
        assert list(again.book.value.allocations) == [1], "it is the ledger from now on"
        await again.close()
        (tmp_path / FILE).unlink()
        (tmp_path / SEAL).unlink()


async def test_a_start_leaves_what_is_not_a_ledger_or_only_locked_in_its_place(
    tmp_path: Path, lane: Lane
) -> None:
    _another_programs(tmp_path)
    before = _bytes(tmp_path)
    with pytest.raises(LedgerUnusableError, match="another program's database"):
        await _open(tmp_path, lane, ManualClock())
    assert _bytes(tmp_path) == before
    for each in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (tmp_path / each).unlink(missing_ok=True)
    ledger = await _open(tmp_path, lane, ManualClock())
    await ledger.apply(_allocate)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnusableError, match="locked"):
            await _open(tmp_path, lane, ManualClock())
    ledger = await _open(tmp_path, lane, ManualClock())
    assert list(ledger.book.value.allocations) == [1]
    assert not list(tmp_path.glob("*unreadable*"))


async def test_what_cannot_be_read_and_not_be_kept_beside_stops_the_start(
    small_disk: Path, lane: Lane
) -> None:
    _garbage(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LedgerUnusableError, match="not a database; cannot keep it beside: "):
        await _open(small_disk, lane, ManualClock())
    assert [each.name for each in small_disk.iterdir()] == [FILE]


def test_a_daemon_that_is_down_and_never_ran_has_no_book_to_read(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot"):
        stored(tmp_path)
    with pytest.raises(LedgerError, match="cannot"):
        moves_in(tmp_path, None, 10)
    assert list(tmp_path.iterdir()) == []


# Full and read-only disks.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as disk:
        yield disk


def test_on_a_full_disk_releases_are_written_into_the_reserve_and_allocations_are_not(
    small_disk: Path,
) -> None:
    with closing(Store(small_disk)) as store:
        committed(store, allocated(silicon(d0="a", d1="b"), pod=X, active=True))
        filler = fill(small_disk)
        for _ in range(3):
            with pytest.raises(LedgerError, match="full"):
                committed(store, allocated(silicon(d2="c")))
        assert (small_disk / "reserve").exists()
        allocation = stored(store).allocations[1]
        committed(store, lambda draft: draft.end(allocation, "over"))
        assert not (small_disk / "reserve").exists()
        for _ in range(20):  # what the reserve made room for is not for new Allocations
            with pytest.raises(LedgerError, match="full"):
                committed(store, allocated(silicon(d2="c")))
        book = committed(store, _release)
        assert book.locks == {}
        assert stored(store) == book
        with pytest.raises(LedgerError, match="full"):
            store.prove()
        filler.unlink()
        store.tidy(keep=200)
        assert (small_disk / "reserve").stat().st_size == 1 << 20
        assert committed(store, allocated(silicon(d2="c"))).locks


def test_on_a_disk_too_full_for_the_reserve_nothing_is_allocated_until_there_is_room(
    small_disk: Path,
) -> None:
    with closing(Store(small_disk)) as store:
        committed(store, allocated(_D0))
    (small_disk / "reserve").unlink()
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - 512 * 1024)
    with closing(Store(small_disk)) as store:
        with pytest.raises(LedgerError, match="kept for releases"):
            committed(store, allocated(silicon(d1="b")))
        committed(store, _release)
        filler.unlink()
        store.tidy(keep=200)
        committed(store, allocated(silicon(d1="b")))


def test_a_read_only_disk_is_refused_at_once_and_by_name(small_disk: Path) -> None:
    with closing(Store(small_disk)) as store:
        committed(store, allocated(_D0))
    before = _bytes(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LedgerUnusableError, match="cannot use the state folder"):
        InstanceLock(small_disk)
    with pytest.raises(LedgerUnusableError, match="cannot use the ledger") as refused:
        Store(small_disk)
    assert not isinstance(refused.value, LedgerUnreadableError), "it is whole"
    assert list(stored(small_disk).allocations) == [1], "and people are shown it"
    assert _bytes(small_disk) == before


# The asynchronous ledger.


@pytest.fixture
def lane() -> Iterator[Lane]:
    with contextlib.closing(Lane("ledger", deadline=60.0)) as lane:
        yield lane


class _Heard:
    """Keeps what a ledger tells of its commits."""

    def __init__(self) -> None:
        self.moves: list[tuple[Move, ...]] = []
        self.seconds: list[float] = []

    def committed(self, moves: tuple[Move, ...], seconds: float) -> None:
        self.moves.append(moves)
        self.seconds.append(seconds)


async def _open(folder: Path, lane: Lane, clock: ManualClock) -> Ledger:
    return await open_ledger(folder, lane, clock=clock, boot=BootId("boot-1"), locks=())


async def test_a_decision_is_published_once_it_is_on_disk(tmp_path: Path, lane: Lane) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    heard = _Heard()
    ledger.observe(heard)
    answer = await ledger.apply(_allocate)
    assert answer == 1
    await until(lambda: ledger.book.value.locks)
    assert [[move.device for move in moves] for moves in heard.moves] == [[name("d0")]]
    assert heard.seconds == [0.0], "no time passes on the manual clock"
    assert stored(tmp_path) == ledger.book.value
    assert [move.after for move in await ledger.history(None, 10)] == [LockState.HELD]


async def test_decisions_made_at_once_each_see_what_the_former_left(
    tmp_path: Path, lane: Lane
) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    ids = [
        await ledger.apply(
            lambda draft: draft.allocate(WHOLE, {DeviceId("d0"): _D0[DeviceId("d0")]}).id
        )
        for _ in range(3)
    ]
    assert ids == [1, 2, 3]


async def test_a_decision_that_fails_changes_nothing(tmp_path: Path, lane: Lane) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())

    def decide(draft: Draft) -> None:
        allocated(_D0)(draft)
        draft.move(name("d9"), LockState.FREE, "no such lock")

    with pytest.raises(KeyError):
        await ledger.apply(decide)
    assert await ledger.apply(lambda draft: draft.book.allocations) == {}
    assert ledger.failing_since is None


async def test_a_commit_that_fails_is_not_published_and_is_told_until_the_ledger_is_proven(
    tmp_path: Path, lane: Lane
) -> None:
    clock = ManualClock()
    ledger = await _open(tmp_path, lane, clock)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = clock.monotonic()
        for _ in range(2):
            with pytest.raises(LedgerError):
                await ledger.apply(_allocate)
            assert ledger.failing_since == began
            clock.shift(5)
    assert ledger.book.value == Book()
    await ledger.apply(_allocate)
    await ledger.prove()
    assert ledger.failing_since is None
    await until(lambda: list(ledger.book.value.allocations) == [1])


async def test_why_a_move_cannot_be_recorded_is_logged_once_until_a_write_succeeds(
    tmp_path: Path, lane: Lane
) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    told: list[str] = []
    with capture_logs() as logs:
        for _ in range(2):
            with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                for _ in range(3):
                    assert await ledger.apply_or_log(_allocate, failed=told.append) is None
            assert await ledger.apply_or_log(_allocate) is not None
            await until(lambda: ledger.book.value == stored(tmp_path))
    assert len(told) == 6
    assert [(each["event"], each["reason"]) for each in logs] == [
        ("cannot record a lock change", told[0])
    ] * 2


async def test_a_lock_that_moved_since_it_was_read_is_left_as_it_is(
    tmp_path: Path, lane: Lane
) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    await ledger.apply(_allocate)
    lock = ledger.book.value.locks[name("d0")]
    moved = await ledger.move_if_unmoved(lock, LockState.RELEASING, "its pod is over")
    assert moved is not None
    assert (moved.state, moved.evidence) == (LockState.RELEASING, "its pod is over")
    assert moved == ledger.book.value.locks[name("d0")]
    assert await ledger.move_if_unmoved(lock, LockState.RELEASING, "again") is None
    assert ledger.book.value.locks[name("d0")] == moved


async def test_a_decision_that_changes_nothing_waits_for_nobody(tmp_path: Path, lane: Lane) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    over = threading.Event()
    stuck = asyncio.create_task(lane.run(over.wait))
    seen: list[Book] = []
    assert not await ledger.apply_if_changing(lambda draft: seen.append(draft.before))
    assert not stuck.done()
    assert seen == [ledger.book.value]
    over.set()
    await stuck


async def test_a_decision_is_made_again_only_where_another_commit_came_between(
    tmp_path: Path, lane: Lane
) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    seen: list[Book] = []

    def decide(draft: Draft) -> None:
        seen.append(draft.before)
        allocated(silicon(d1="b"))(draft)

    assert await ledger.apply_if_changing(decide)
    await until(lambda: list(ledger.book.value.allocations) == [1])
    assert len(seen) == 1
    over = threading.Event()
    first = [asyncio.create_task(each) for each in (lane.run(over.wait), ledger.apply(_allocate))]
    await asyncio.sleep(0)
    second = asyncio.create_task(ledger.apply_if_changing(decide))
    await asyncio.sleep(0)
    assert len(seen) == 2
    over.set()
    await asyncio.gather(*first, second)
    assert [len(book.allocations) for book in seen] == [0, 1, 2]
    await until(lambda: list(ledger.book.value.allocations) == [1, 2, 3])
    assert ledger.book.value == stored(tmp_path)


async def test_a_ledger_on_a_full_disk_proves_itself_though_nobody_has_anything_to_write(
    small_disk: Path,
) -> None:
    """Its devices are withheld, so no Allocate would come to find out."""
    async with ledger_in(small_disk, ManualClock()) as ledger:
        filler = fill(small_disk)
        with pytest.raises(LedgerError, match="full"):
            await ledger.apply(_allocate)
        with pytest.raises(LedgerError, match="full"):
            await ledger.prove()
        assert ledger.failing_since is not None
        filler.unlink()
        await ledger.prove()
        assert ledger.failing_since is None
        await ledger.apply(_allocate)


async def test_a_commit_that_takes_too_long_is_given_up_and_yet_comes(
    tmp_path: Path, lane: Lane
) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())

    given_up = threading.Event()

    def slow(draft: Draft) -> None:
        given_up.wait(20.0)
        allocated(_D0)(draft)

    with pytest.raises(LaneStuckError):
        await ledger.apply(slow, deadline=0.05)
    given_up.set()
    await until(lambda: ledger.book.value.allocations, what="the late commit")


async def test_tidying_and_reading_go_through_the_same_lane(tmp_path: Path, lane: Lane) -> None:
    ledger = await _open(tmp_path, lane, ManualClock())
    await ledger.apply(_allocate)
    await ledger.tidy(keep=200)
    assert await ledger.history(None, 10) == moves_in(tmp_path, None, 10)
    assert ledger.book.value == stored(tmp_path)


def test_what_a_creation_that_was_killed_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    """A ledger is made beside its name and renamed, so that it is there whole or not at all."""
    half = tmp_path / f".{FILE}.new"
    half.write_bytes(b"half a ledger")
    store = Store(tmp_path)
    assert stored(store) == Book()
    store.close()
    assert not half.exists()


def test_a_history_that_cannot_be_read_is_an_error_that_names_the_ledger(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("DROP TABLE history")
        other.commit()
    for read in (lambda: moves_in(store, None, 10), lambda: store.ask(read_moved_devices)):
        with pytest.raises(LedgerError, match=r"cannot read the ledger .*ledger\.db"):
            read()
    store.close()


def test_a_history_that_cannot_be_tidied_is_an_error_that_names_the_ledger(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store._db.execute("DROP TABLE history")
        store._place.note()
        with pytest.raises(LedgerError, match=r"cannot tidy the ledger .*ledger\.db"):
            store.tidy(keep=200)


def test_a_release_for_which_the_reserve_is_too_small_is_an_error_that_says_so(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        before = committed(store, allocated(_D0))
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        long = "x" * 100_000
        with pytest.raises(LedgerError, match="cannot write the ledger .* full"):
            committed(store, lambda draft: draft.move(name("d0"), LockState.RELEASING, long))
        assert stored(store) == before


def test_a_ledger_is_used_in_the_way_that_its_promises_rest_on(tmp_path: Path) -> None:
    """Whatever the library's defaults are, and whoever changed the file's journal mode."""
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with closing(Store(tmp_path)) as store:
        used = {
            name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint")
        }
        assert store._db.execute("PRAGMA busy_timeout").fetchone()[0] > 0
        assert store._db.execute("PRAGMA journal_size_limit").fetchone()[0] > 0
    full = 2
    assert used == {"journal_mode": "wal", "synchronous": full, "wal_autocheckpoint": 0}


def test_a_ledger_whose_folder_leads_nowhere_says_that_it_cannot_be_looked_at(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(folder)
        with pytest.raises(LedgerError, match="cannot look at the ledger"):
            store.prove()


@pytest.mark.parametrize("how", ["ABORT", "ROLLBACK"])
def test_a_write_that_fails_half_way_leaves_no_transaction_open(tmp_path: Path, how: str) -> None:
    """Whether SQLite has rolled it back by itself or not, its own reason is told."""
    with closing(Store(tmp_path)) as store:
        before = committed(store, allocated(_D0))
        store._db.execute(
            "CREATE TEMP TRIGGER stop BEFORE UPDATE ON counters "
            f"BEGIN SELECT RAISE({how}, 'stopped half way'); END"
        )
        for write in (store.prove, lambda: committed(store, _release)):
            with pytest.raises(LedgerError, match="stopped half way"):
                write()
            assert not store._db.in_transaction
        assert stored(store) == before
        store._db.execute("DROP TRIGGER stop")
        store.prove()
        assert committed(store, _release).locks == {}


def test_of_a_daemon_that_is_down_the_devices_with_a_history_can_be_told(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        committed(store, allocated(_D0))
        committed(store, _release)
    assert read_only(tmp_path, read_moved_devices) == {name("d0")}


def test_what_cannot_be_read_of_a_daemon_that_is_down_is_an_error(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store._db.execute("DROP TABLE history")
    with pytest.raises(LedgerError, match="cannot read the ledger"):
        moves_in(tmp_path, None, 5)


def test_a_ledger_that_is_closed_leaves_no_file_open(tmp_path: Path) -> None:
    files = Path("/proc/self/fd")
    open_now = len(list(files.iterdir()))
    Store(tmp_path).close()
    Store(tmp_path).close()
    assert len(list(files.iterdir())) == open_now
