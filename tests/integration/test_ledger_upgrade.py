"""A ledger from before there were marks: brought up whole, or left as it was; and marks on disk."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib import resources
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, NOW, WHOLE, X, Y, allocated, drafted, keys, name, silicon
from holdfast.errors import LedgerUnusableError
from holdfast.ledger.files import FILE
from holdfast.ledger.kept import Kept
from holdfast.ledger.ledger import open_ledger
from holdfast.ledger.readonly import read_only
from holdfast.ledger.schema import SCHEMA_VERSION
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, ClaimRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import LockState
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.queue import settle
from holdfast.model.ids import ClaimRef, ClaimUid, HardwareKey, PciAddress
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.idle import IdleMemory
from holdfast.model.nvidia.xid_records import XidRecord
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane

_MARK = Mark(asker=Asker(uid=1000, pid=77), at=NOW, reason="ECC errors")
_QUARANTINE = Quarantine(device=name("d0"), keys=keys("a", "b"), mark=_MARK)
_ALL = Marks(quarantines={name("d0"): _QUARANTINE}, drain=replace(_MARK, reason=""))


def _version_1(folder: Path) -> None:
    """Write what the first release of the schema left behind: a lock, an Allocation, history."""
    schema = resources.files("holdfast.ledger").joinpath("schema-1.sql").read_text("utf-8")
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.executescript(schema)
        db.execute("PRAGMA application_id = 0x686F6C64")
        db.execute("PRAGMA user_version = 1")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE counters SET fence = 7, last_allocation = 3")
        db.execute(
            "INSERT INTO allocations VALUES (3, ?, ?, ?, 0, 'active', ?)", (WHOLE, NOW, BOOT, X)
        )
        db.execute("INSERT INTO allocation_keys VALUES (3, 'd0', 'a')")
        db.execute(
            "INSERT INTO locks VALUES (?, 'd0', 'held', 7, ?, ?, 3, ?, 'gate passed')",
            (WHOLE, NOW, BOOT, X),
        )
        db.execute("INSERT INTO lock_keys VALUES ('a', ?, 'd0')", (WHOLE,))
        db.execute(
            "INSERT INTO pods VALUES (?, ?, NULL, NULL, '', '', NULL, NULL, NULL)", (X, BOOT)
        )
        db.execute(
            "INSERT INTO history VALUES (1, ?, ?, 'd0', 7, 'free', 'held', ?, 'allocated')",
            (NOW, WHOLE, X),
        )


def _of_version(version: int, folder: Path) -> None:
    """Write what an older daemon left behind, its lock and its history included."""
    _version_1(folder)
    schemas = resources.files("holdfast.ledger")
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        for number in range(2, version + 1):
            db.executescript(schemas.joinpath(f"schema-{number}.sql").read_text("utf-8"))
        db.execute(f"PRAGMA user_version = {version}")


def _schema(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        return db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()


def _version(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE)) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


def _set(store: Store, marks: Marks) -> Book:
    before = store.read()
    draft = drafted(before)
    draft.mark(marks)
    store.write(before, draft.book, draft.moves)
    return draft.book


def test_an_older_ledger_is_brought_up_with_all_that_it_has(tmp_path: Path) -> None:
    _version_1(tmp_path)
    with closing(Store(tmp_path)) as store:
        book = store.read()
        (lock,) = book.locks.values()
        assert (lock.device, lock.keys, lock.state, lock.pod, lock.fence) == (
            name("d0"),
            keys("a"),
            LockState.HELD,
            X,
            7,
        )
        assert (book.fence, book.last_allocation, [*book.allocations]) == (7, 3, [3])
        assert book.marks == Marks()
        assert book.kept == {}
        assert [move.evidence for move in store.history(None, 10)] == ["allocated"]
        assert _set(store, _ALL) == store.read()
    assert _version(tmp_path) == SCHEMA_VERSION


def test_a_ledger_that_was_brought_up_is_the_same_as_a_new_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    _version_1(old)
    for folder in (old, new):
        Store(folder).close()
    assert _schema(old) == _schema(new)


def test_an_upgrade_that_is_killed_at_any_moment_is_done_at_the_next_start(
    tmp_path: Path,
) -> None:
    script = (
        "import sys; from pathlib import Path; from holdfast.ledger.store import Store\n"
        "print('go', flush=True); Store(Path(sys.argv[1]))"
    )
    for n in range(6):
        folder = tmp_path / str(n)
        folder.mkdir()
        _version_1(folder)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(n * 0.001)  # not to wait for anything: to be killed at different moments
            child.send_signal(signal.SIGKILL)
        with closing(Store(folder)) as store:
            assert store.read().locks.keys() == {name("d0")}
            _set(store, _ALL)


def test_an_upgrade_that_fails_leaves_the_older_ledger_as_it_was(tmp_path: Path) -> None:
    _version_1(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("CREATE TABLE drain (mine INTEGER)")  # half of it works, the rest cannot
    before = _schema(tmp_path)
    for _ in range(2):
        with pytest.raises(LedgerUnusableError, match="table drain already exists"):
            Store(tmp_path)
        assert _schema(tmp_path) == before
        assert _version(tmp_path) == 1


def test_an_older_ledger_can_be_read_while_the_daemon_is_down_and_is_not_changed(
    tmp_path: Path,
) -> None:
    _version_1(tmp_path)
    book = read_only(tmp_path)
    assert book.locks.keys() == {name("d0")}
    assert book.marks == Marks()
    assert _version(tmp_path) == 1


@pytest.mark.parametrize(
    "marks",
    [
        _ALL,
        Marks(drain=_MARK),
        Marks(quarantines=_ALL.quarantines),
        _ALL.with_quarantine(Quarantine(device=name("d1"), keys=keys("c"), mark=_MARK)),
        _ALL.without(name("d0")),
        Marks(),
    ],
)
def test_marks_are_read_as_they_were_written_whatever_was_there_before(
    tmp_path: Path, marks: Marks
) -> None:
    with closing(Store(tmp_path)) as store:
        for before in (Marks(), _ALL):
            _set(store, before)
            assert _set(store, marks).marks == marks
            assert store.read().marks == marks
    with closing(Store(tmp_path)) as store:
        assert store.read().marks == marks
    assert read_only(tmp_path).marks == marks


@pytest.mark.parametrize(
    "kept",
    [
        {"acme/heat": {"A": "1", "B": "2"}},
        {"acme/heat": {"B": "1"}, "other/thing": {"A": "3"}},
        {"acme/heat": {}},
        {},
    ],
)
def test_what_vendors_keep_is_read_as_it_was_written_whatever_was_there_before(
    tmp_path: Path, kept: dict[str, dict[str, str]]
) -> None:
    with closing(Store(tmp_path)) as store:
        for wanted in ({"acme/heat": {"A": "0", "B": "2"}}, kept):
            before = store.read()
            draft = drafted(before)
            for topic in before.kept.keys() | wanted.keys():
                draft.keep(topic, wanted.get(topic, {}))
            store.write(before, draft.book, draft.moves)
            written = {topic: each for topic, each in wanted.items() if each}
            assert store.read().kept == draft.book.kept == written
    assert read_only(tmp_path).kept == {topic: each for topic, each in kept.items() if each}


def test_of_a_lock_from_before_it_was_written_down_a_container_may_have_started(
    tmp_path: Path,
) -> None:
    _version_1(tmp_path)
    assert read_only(tmp_path).locks[name("d0")].started
    with closing(Store(tmp_path)) as store:
        assert store.read().locks[name("d0")].started


def test_version_6_had_no_claims_and_keeps_every_lock(tmp_path: Path) -> None:
    _of_version(6, tmp_path)
    before = read_only(tmp_path)
    assert [(each.device, each.pod, each.claim) for each in before.locks.values()] == [
        (name("d0"), X, None)
    ]
    with closing(Store(tmp_path)) as store:
        assert store.read() == before
    assert _version(tmp_path) == SCHEMA_VERSION


def test_claims_and_who_has_what_by_them_are_read_as_they_were_written(tmp_path: Path) -> None:
    first, second = (
        ClaimRecord(
            ref=ClaimRef("default", ClaimUid(f"uid-{n}"), f"claim-{n}"),
            pods=frozenset({X, Y}) if n else frozenset({X}),
            boot=BOOT,
        )
        for n in range(2)
    )
    with closing(Store(tmp_path)) as store:

        def write(step: Callable[[Draft], object]) -> None:
            before = store.read()
            draft = drafted(before)
            step(draft)
            store.write(before, draft.book, draft.moves)
            assert store.read() == draft.book == read_only(tmp_path)

        def take(draft: Draft) -> None:
            for record, devices in ((first, silicon(d0="a")), (second, silicon(d1="b"))):
                draft.note_claim(record)
                draft.allocate(WHOLE, devices, pod=X, claim=record.ref.uid)
            settle(draft)

        write(take)
        assert store.read().locks[name("d1")].claim == second.ref.uid
        write(lambda draft: draft.note_claim(replace(second, pods=frozenset({Y}), over_at=7.5)))
        write(lambda draft: draft.forget_claim(first.ref.uid))
        assert [*store.read().claims] == [second.ref.uid]


async def _of_gpus(folder: Path) -> tuple[dict[str, GpuState], dict[str, IdleMemory]]:
    """Return what NVIDIA's adapter finds kept in the ledger after an upgrade."""
    lane = Lane("ledger", deadline=30.0)
    ledger = await open_ledger(folder, lane, clock=SystemClock(), boot=BOOT, locks=())
    try:
        return (
            Kept(ledger, "nvidia/health", GpuState).value,
            Kept(ledger, "nvidia/idle", IdleMemory).value,
        )
    finally:
        await ledger.close()
        lane.close()


async def test_what_a_gpu_of_version_3_was_condemned_for_is_kept(tmp_path: Path) -> None:
    _of_version(3, tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("INSERT INTO gpus VALUES ('GPU-1', ?, '550', '[1, 3]', '[\"lost\"]')", (BOOT,))
        db.execute("INSERT INTO gpu_xids VALUES ('GPU-1', 48, -1, -1, 0, 1, 2, 3)")
    gpus, idle = await _of_gpus(tmp_path)
    record = XidRecord(xid=48, first=1, last=2, count=3)
    assert gpus == {
        "GPU-1": GpuState(
            uuid="GPU-1", boot=BOOT, driver="550", xids=(record,), awaits=frozenset({"lost"})
        )
    }
    assert idle == {}


async def test_all_that_version_5_knew_of_gpus_is_kept(tmp_path: Path) -> None:
    _of_version(5, tmp_path)
    first = NOW + 0.125
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.executemany(
            "INSERT INTO gpus (uuid, boot, driver, awaits, pci) VALUES (?, ?, ?, ?, ?)",
            [("GPU-1", BOOT, "550", "[]", "0000:65:00.0"), ("GPU-2", BOOT, "", '["lost"]', None)],
        )
        db.executemany(
            "INSERT INTO gpu_xids VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                ("GPU-1", 94, 1, 0, 0, first, NOW + 9, 1),
                ("GPU-1", 48, -1, -1, 0, first, NOW + 2, 2),
                ("GPU-1", 48, -1, -1, 1, first, NOW + 3, 3),
            ],
        )
        db.execute("INSERT INTO gpu_idle VALUES ('GPU-2', 'boot-1 load 7', 5, 94371840)")
    before = read_only(tmp_path)
    gpus, idle = await _of_gpus(tmp_path)
    assert gpus == {
        "GPU-1": GpuState(
            uuid="GPU-1",
            boot=BOOT,
            driver="550",
            pci=PciAddress("0000:65:00.0"),
            xids=(
                XidRecord(xid=48, first=first, last=NOW + 2, count=2),
                XidRecord(xid=48, suspected=True, first=first, last=NOW + 3, count=3),
                XidRecord(xid=94, gi=1, ci=0, first=first, last=NOW + 9, count=1),
            ),
        ),
        "GPU-2": GpuState(uuid="GPU-2", boot=BOOT, awaits=frozenset({"lost"})),
    }
    assert idle == {"GPU-2": IdleMemory(load="boot-1 load 7", least=5, now=90 << 20)}
    after = read_only(tmp_path)
    assert (after.locks, after.allocations) == (before.locks, before.allocations)


async def test_what_an_adapter_cannot_read_is_an_error_and_nothing_to_forget(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        draft = drafted(store.read())
        draft.keep("nvidia/idle", {"GPU-1": '{"load": 7}'})
        store.write(store.read(), draft.book, draft.moves)
    with pytest.raises(LedgerUnusableError, match="nvidia/idle makes no sense"):
        await _of_gpus(tmp_path)


def _allocate(draft: Draft) -> None:
    allocated(silicon(d1="c"), pod=Y)(draft)
    settle(draft)


def _unmark(draft: Draft) -> None:
    draft.mark(Marks())


@pytest.mark.parametrize("step", [_allocate, _unmark])
def test_a_mark_and_its_line_of_history_are_one_commit(
    tmp_path: Path, step: Callable[[Draft], None]
) -> None:
    with closing(Store(tmp_path)) as store:
        before = _set(store, _ALL)
        draft = drafted(before)
        step(draft)
        draft.tell(name("d0"), frozenset({HardwareKey("a")}), "told")
        store.write(before, draft.book, draft.moves)
        assert store.read() == draft.book
        assert store.history(name("d0"), 1)[0].evidence == "told"
