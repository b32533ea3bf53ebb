"""The ledger's files removed, moved or replaced under the daemon that has them open."""

import contextlib
import os
import select
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.books import allocated, drafted, silicon
from fakes.faultydisk import FaultyDisk
from fakes.ledgers import committed, ledger_in, moves_in, stored
from holdfast.errors import (
    LedgerError,
    LedgerLostError,
    LedgerUnreadableError,
    LedgerUnusableError,
)
from holdfast.ledger.disk import FILE, SEAL, half, sealed
from holdfast.ledger.readonly import BUSY_TIMEOUT_MS
from holdfast.ledger.store import _UNFOLDED, Store
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from manual_clock import ManualClock


def _apply(store: Store, device: str) -> Book:
    return committed(store, allocated(silicon(**{device: device[-1]})))


def _after_a_crash(folder: Path, to: Path) -> Book:
    """Return the book that the next daemon finds when this one is killed now."""
    shutil.copytree(folder, to)
    with closing(Store(to)) as store:
        return stored(store)


_ALL = (FILE, f"{FILE}-wal", f"{FILE}-shm")


def _removed(names: tuple[str, ...] = _ALL) -> tuple[str, ...]:
    return tuple(f"{each} was removed" for each in names)


@pytest.mark.parametrize("names", [*((each,) for each in _ALL), _ALL])
def test_files_that_were_removed_are_written_again_with_all_that_was_in_them(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        for name in names:
            (folder / name).unlink()
        with pytest.raises(LedgerLostError, match=f"{names[0]} was removed"):
            _apply(store, "d2")
        assert store.prove() == _removed(names)
        assert stored(store) == book
        assert len(moves_in(store, None, 10)) == 1
        assert store.prove() == ()
        assert _after_a_crash(folder, tmp_path / "first") == book
        more = _apply(store, "d2")
        assert _after_a_crash(folder, tmp_path / "second") == more
        assert len(more.locks) == 2


def test_a_state_folder_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        folder.rename(tmp_path / "moved")
        assert len(store.prove()) == 3
        assert _after_a_crash(folder, tmp_path / "copy") == book


def test_a_folder_that_cannot_be_made_again_is_told_and_nothing_is_lost_meanwhile(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        shutil.rmtree(folder)
        folder.write_text("in the way")
        for _ in range(2):
            with pytest.raises(LedgerLostError, match="It is tried again every few seconds"):
                store.prove()
            with pytest.raises(LedgerError):
                _apply(store, "d2")
        folder.unlink()
        assert store.prove()
        assert _after_a_crash(folder, tmp_path / "copy") == book


def _another_ledger(file: Path) -> None:
    with closing(Store(file.parent / "elsewhere")) as store:
        _apply(store, "d7")
    (file.parent / "elsewhere" / FILE).replace(file)


def _empty(file: Path) -> None:
    (file.parent / "empty").touch()
    (file.parent / "empty").replace(file)


@pytest.mark.parametrize("replace", [_another_ledger, _empty])
@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal"])
def test_a_file_that_somebody_put_in_the_place_of_ours_is_kept_beside_and_ours_written_again(
    tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        replace(tmp_path / name)
        theirs = (tmp_path / name).read_bytes()
        with pytest.raises(LedgerLostError, match=f"in the place of {name}"):
            _apply(store, "d2")
        aside = name.replace(FILE, f"{FILE}.unreadable-1")
        assert store.prove() == (
            f"another file was put in the place of {name}",
            f"what was there is kept as {FILE}.unreadable-1",
        )
        assert (tmp_path / aside).read_bytes() == theirs
        assert store.prove() == ()
        assert _apply(store, "d2").locks.keys() > book.locks.keys()
        assert len(moves_in(store, None, 10)) == 2
    with closing(Store(tmp_path)) as store:
        assert len(stored(store).locks) == 2


def _truncated(file: Path) -> None:
    os.truncate(file, 0)


def _overwritten(file: Path) -> None:
    """As by cp onto it, with a file of the same size."""
    file.write_bytes(b"x" * file.stat().st_size)


@pytest.mark.parametrize("spoil", [_truncated, _overwritten])
@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal"])
def test_a_file_that_is_changed_in_its_place_is_written_again_from_memory(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        store.prove()
        spoil(folder / name)
        store.tidy(keep=200)
        with pytest.raises(LedgerLostError, match=f"{name} was changed in its place"):
            _apply(store, "d2")
        assert store.prove() == (f"{name} was changed in its place", "the history is lost")
        assert stored(store) == book
        assert _after_a_crash(folder, tmp_path / "copy") == book
        assert len(_apply(store, "d2").locks) == 2


def test_a_file_that_is_changed_while_a_commit_is_written_is_not_taken_for_ours(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        for _ in range(20):
            spoils = Thread(target=os.truncate, args=(tmp_path / FILE, 0))
            spoils.start()
            told = ""
            while spoils.is_alive():
                with contextlib.suppress(LedgerError):
                    told += " ".join(store.prove())
            told += " ".join(store.prove())
            assert "was changed in its place" in told
            assert stored(store) == book
        assert _after_a_crash(tmp_path, tmp_path / "copy") == book


@pytest.mark.parametrize("lets_go", [True, False])
@pytest.mark.parametrize("ours", ["a commit", "a proof", "housekeeping"])
def test_what_another_program_commits_while_we_wait_for_it_is_not_taken_for_ours(
    tmp_path: Path, ours: str, *, lets_go: bool
) -> None:
    """The next start would find a ledger that makes no sense, and begin with an empty one."""
    acts: dict[str, Callable[[Store], object]] = {
        "a commit": lambda store: _apply(store, "d2"),
        "a proof": Store.prove,
        "housekeeping": lambda store: store.tidy(keep=200),
    }
    folder, has, done = tmp_path / "state", Event(), Event()
    folder.mkdir()

    def edit() -> None:
        with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM things")
            has.set()
            done.wait(BUSY_TIMEOUT_MS / 4000)
            db.execute("COMMIT")
            if not lets_go:
                db.execute("BEGIN IMMEDIATE")
                done.wait(60)

    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        edits = Thread(target=edit)
        edits.start()
        has.wait(60)
        with contextlib.suppress(LedgerError):
            acts[ours](store)
        done.set()
        edits.join()
        assert store.book == book
        assert store.prove() == (f"{FILE}-wal was changed in its place", "the history is lost")
        assert _after_a_crash(folder, tmp_path / "copy") == book


def test_nothing_of_an_attempt_to_write_it_again_is_left_for_the_next_one(tmp_path: Path) -> None:
    """A journal beside the next half-written file would be played back into that."""
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
    parts = [half(tmp_path / FILE).with_name(f".{FILE}.new{each}") for each in ("", "-journal")]
    for each in parts:
        each.write_bytes(b"of an attempt that was killed")
    with closing(Store(tmp_path)) as store:
        assert stored(store) == book
    assert not any(each.exists() for each in parts)


def test_a_ledger_that_has_another_commit_than_the_last_of_ours_is_lost_and_written_again(
    tmp_path: Path,
) -> None:
    """Who wrote it left no other sign; so one commit finds it, and the next proof mends it."""
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        store._db.execute("UPDATE counters SET commits = commits + 1")
        store._place.note_commit()
        assert store.changes() == ()
        draft = drafted(book)
        allocated(silicon(d2="2"))(draft)
        with pytest.raises(LedgerLostError, match="it has not the last commit of this ledger"):
            store.write(draft.book, draft.moves)
        assert store.changes() == ("it has not the last commit of this ledger",)
        assert store.prove()[0] == "it has not the last commit of this ledger"
        assert stored(store) == book
        assert _apply(store, "d2") == stored(store)


def test_a_proof_that_finds_another_commit_has_the_next_one_mend_it(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        store._db.execute("UPDATE counters SET commits = commits + 1")
        store._place.note_commit()
        with pytest.raises(LedgerError, match="it has not the last commit of this ledger"):
            store.prove()
        assert store.prove()[0] == "it has not the last commit of this ledger"
        assert store.prove() == ()
        assert stored(store) == book


def test_a_proof_that_finds_the_ledger_locked_has_no_file_written_again(tmp_path: Path) -> None:
    with (
        closing(Store(tmp_path)) as store,
        closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other,
    ):
        _apply(store, "d1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="database is locked"):
            store.prove()
        other.execute("ROLLBACK")
        assert store.changes() == ()
        assert store.prove() == ()


def test_a_reader_that_stays_has_the_ledger_written_again_and_not_its_wal_grow_for_ever(
    tmp_path: Path,
) -> None:
    with (
        closing(Store(tmp_path)) as store,
        closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as reader,
    ):
        book = _apply(store, "d1")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM things").fetchall()
        for _ in range(_UNFOLDED + 10):
            store._commit(book, ())
        store.tidy(keep=200)
        (why,) = store.prove()
        assert "one long transaction" in why
        assert (tmp_path / f"{FILE}-wal").stat().st_size < 1 << 17
        assert store.prove() == ()
        assert stored(store) == book
        assert len(moves_in(store, None, 10)) == 1


# What a start finds.


def test_a_person_who_replaces_a_ledger_ends_what_was_known_of_it_first(tmp_path: Path) -> None:
    """Else a kill before the new one is sealed would leave the old one's seal to refuse it."""
    Store(tmp_path).close()
    for file in tmp_path.glob(f"{FILE}*"):
        file.unlink()
    in_the_way = half(tmp_path / FILE)
    in_the_way.mkdir()
    with pytest.raises(LedgerUnusableError):
        Store(tmp_path, replace=True)
    assert sealed(tmp_path) is None
    in_the_way.rmdir()
    Store(tmp_path).close()


def test_a_lock_is_waited_for_as_long_as_the_ledgers_own_deadline_allows(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        assert store._db.execute("PRAGMA busy_timeout").fetchone() == (BUSY_TIMEOUT_MS,)


def test_a_wal_alone_is_not_taken_for_a_folder_without_a_ledger(tmp_path: Path) -> None:
    (tmp_path / f"{FILE}-wal").write_bytes(b"of a ledger that is gone")
    with pytest.raises(LedgerUnreadableError, match="it is gone, and there was one"):
        Store(tmp_path)


def test_what_lies_beside_the_place_of_a_copy_that_was_not_put_there_is_kept(
    tmp_path: Path,
) -> None:
    """As by a kill between the two: the WAL of another file must not be taken for the copy's."""
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
    (tmp_path / FILE).rename(half(tmp_path / FILE))
    for name in (f"{FILE}-wal", f"{FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / f"{FILE}-wal").write_bytes(b"of another file")
    with closing(Store(tmp_path)) as store:
        assert stored(store) == book
    assert (tmp_path / f"{FILE}.unreadable-1-wal").read_bytes() == b"of another file"


def test_another_programs_database_where_ours_was_can_be_moved_away_as_any_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    """Where none of ours was known, it is another program's folder, and nothing is touched."""
    Store(tmp_path).close()
    for file in tmp_path.glob(f"{FILE}*"):
        file.unlink()
    with closing(sqlite3.connect(tmp_path / FILE)) as theirs:
        theirs.execute("CREATE TABLE theirs (a)")
    with pytest.raises(LedgerUnreadableError, match="another program's database is there"):
        Store(tmp_path)


async def _started(folder: Path) -> tuple[Book, list[str]]:
    """Return the book of a daemon that starts now, and what it tells."""
    with capture_logs() as logs:
        async with ledger_in(folder, ManualClock()) as ledger:
            book = ledger.book.value
    return book, [f"{each['event']}: {each['reason']}" for each in logs]


def _backup(folder: Path, to: Path) -> None:
    with (
        closing(sqlite3.connect(folder / FILE)) as source,
        closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)


@pytest.mark.parametrize("clean", [True, False])
async def test_an_old_copy_is_not_taken_for_the_ledger_also_beside_the_wal_of_a_crash(
    tmp_path: Path, *, clean: bool
) -> None:
    folder, after = tmp_path / "state", tmp_path / "after"
    folder.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
        _backup(folder, tmp_path / "backup")
        _apply(store, "d2")
        for _ in range(2):  # the WAL begins anew
            store.tidy(keep=200)
            store.prove()
        if not clean:
            shutil.copytree(folder, after)
    if clean:
        shutil.copytree(folder, after)
    shutil.copy(tmp_path / "backup", after / FILE)
    book, told = await _started(after)
    assert book == Book()
    (line,) = told
    assert line.startswith("unreadable ledger kept beside: cannot use the ledger")
    assert ("it is an old copy: it has 1 of at least 4 commits" in line) is clean
    assert (after / f"{FILE}.unreadable-1").read_bytes() == (tmp_path / "backup").read_bytes()


async def test_another_ledger_is_not_taken_for_this_one_unless_a_person_says_so(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "state", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
    with closing(Store(other)) as store:
        theirs = [_apply(store, each) for each in ("d2", "d3")][-1]
    shutil.copy(other / FILE, folder / FILE)
    book, (told,) = await _started(folder)
    assert book == Book()
    assert "another ledger than the one that was here" in told
    shutil.copy(other / FILE, folder / FILE)
    (folder / SEAL).unlink()
    assert await _started(folder) == (theirs, [])


@pytest.mark.parametrize("how", ["empty", "gone", "all but its WAL"])
async def test_a_ledger_that_is_gone_or_empty_is_told_where_there_was_one(
    tmp_path: Path, how: str
) -> None:
    folder, crashed = tmp_path / "state", tmp_path / "crashed"
    folder.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
        shutil.copytree(folder, crashed)
    place = crashed if how == "all but its WAL" else folder
    if how == "empty":
        os.truncate(place / FILE, 0)
    else:
        (place / FILE).unlink()
    book, (told,) = await _started(place)
    assert book == Book()
    assert ("it is empty" if how == "empty" else "it is gone, and there was one") in told
    assert await _started(place) == (Book(), [])


@pytest.mark.parametrize("seal", [b"", b"no seal", None])
async def test_a_seal_that_is_damaged_or_gone_keeps_no_whole_ledger_out(
    tmp_path: Path, seal: bytes | None
) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
    (tmp_path / SEAL).unlink()
    if seal is not None:
        (tmp_path / SEAL).write_bytes(seal)
    assert await _started(tmp_path) == (book, [])


def test_a_seal_that_is_removed_is_written_again_by_the_next_proof(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        (tmp_path / SEAL).unlink()
        store.prove()
        before = sealed(tmp_path)
        assert before is not None
        _apply(store, "d1")
        after = sealed(tmp_path)
        assert after is not None
        assert (after.ledger, after.commits) == (before.ledger, before.commits + 1)


@pytest.mark.parametrize("gone", ["state", "."])
def test_a_state_folder_is_made_again_with_what_is_above_it(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "var" / "state"
    folder.mkdir(parents=True)
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        shutil.rmtree(tmp_path / "var" / gone)
        assert store.prove() == _removed()
        assert stored(store) == book


def test_files_that_are_removed_again_are_written_again(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        for device in ("d1", "d2", "d3"):
            book = _apply(store, device)
            for name in _ALL:
                (tmp_path / name).unlink()
            assert store.prove() == _removed()
            assert stored(store) == book


def test_what_an_attempt_that_was_killed_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        for name in _ALL:
            (tmp_path / name).unlink()
        (tmp_path / f".{FILE}.new").write_bytes(b"half a ledger")
        assert store.prove() == _removed()
        assert stored(store) == book


_PROVER = """
import sys
from pathlib import Path
from holdfast.errors import LedgerError
from holdfast.ledger.store import Store
store = Store(Path(sys.argv[1]))
for _ in sys.stdin:
    try:
        print(*store.prove(), flush=True)
    except LedgerError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("names", [_ALL, _ALL[1:2], _ALL[:1]])
def test_a_copy_that_could_not_be_put_in_its_place_is_put_there_by_the_next_proof(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """What was open is closed by then, so that the copy is all there is."""
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
    disk = FaultyDisk(tmp_path / "faulty", folder)
    tests = Path(__file__).parents[1]
    path = f"{tests.parent / 'daemon'}{os.pathsep}{tests}"
    with subprocess.Popen(
        [sys.executable, "-c", _PROVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **disk.environment},
        text=True,
    ) as prover:
        assert _proven(prover) == ""
        disk.breaks("nameless")
        for name in names:
            (folder / name).unlink()
        assert "again (ledger.db" in _proven(prover)
        # Not changed to it in its place, where a kill would leave a journal behind.
        in_wal_mode = b"\x02\x02"
        assert (folder / f".{FILE}.new").read_bytes()[18:20] == in_wal_mode
        disk.is_mended()
        assert _proven(prover) == " ".join(_removed())
        assert _proven(prover) == ""
        assert prover.stdin is not None
        prover.stdin.close()
    with closing(Store(folder)) as store:
        assert stored(store) == book


def _proven(prover: "subprocess.Popen[str]") -> str:
    """Have *prover* prove its ledger; return what it prints."""
    assert prover.stdin is not None
    assert prover.stdout is not None
    prover.stdin.write("\n")
    prover.stdin.flush()
    return prover.stdout.readline().strip()


_REMOVER = """
import os, sys
for _ in sys.stdin:
    print("ready", flush=True)
    while True:
        try:
            os.unlink(sys.argv[1])
        except FileNotFoundError:
            continue
        break
    print("removed", flush=True)
"""


def test_a_ledger_that_is_removed_as_soon_as_it_is_written_again_loses_nothing(
    tmp_path: Path,
) -> None:
    """If its file is removed just before it is opened, an empty one must not be made instead."""
    with (
        closing(Store(tmp_path)) as store,
        subprocess.Popen(
            [sys.executable, "-c", _REMOVER, str(tmp_path / FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as remover,
    ):
        assert remover.stdin is not None
        assert remover.stdout is not None
        book = _apply(store, "d1")
        for _ in range(20):
            (tmp_path / FILE).unlink()
            remover.stdin.write("\n")
            remover.stdin.flush()
            assert remover.stdout.readline() == "ready\n"
            while not select.select([remover.stdout], [], [], 0.0)[0]:
                with contextlib.suppress(LedgerError):
                    store.prove()
            assert remover.stdout.readline() == "removed\n"
            store.prove()
            assert stored(store) == book
        remover.stdin.close()
    assert _after_a_crash(tmp_path, tmp_path / "copy") == book


_INTRUDER = """
import os, sys
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    pass
os.rename(sys.argv[1], sys.argv[2])
"""


def _stale(file: Path) -> None:
    """A copy of our ledger, older than all of its locks."""
    file.parent.mkdir()
    with closing(Store(file.parent)):
        pass
    (file.parent / FILE).rename(file)


def _of_another_program(file: Path) -> None:
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE theirs (x)")


@pytest.mark.parametrize("theirs", [_stale, _of_another_program])
def test_a_file_that_comes_just_as_ours_is_put_back_is_never_taken_for_ours(
    tmp_path: Path, theirs: Callable[[Path], None]
) -> None:
    folder, file = tmp_path / "state", tmp_path / "theirs" / "file"
    folder.mkdir()
    theirs(file)
    before = file.read_bytes()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        (folder / FILE).unlink()
        with subprocess.Popen(
            [sys.executable, "-c", _INTRUDER, str(file), str(folder / FILE)],
            stdout=subprocess.PIPE,
            text=True,
        ) as intruder:
            assert intruder.stdout is not None
            assert intruder.stdout.readline() == "ready\n"
            with contextlib.suppress(LedgerError):
                store.prove()
        store.prove()
        assert (folder / f"{FILE}.unreadable-1").read_bytes() == before
        assert stored(store) == book
    assert _after_a_crash(folder, tmp_path / "copy") == book


class _MeddledWith(Store):
    """A store to whose file something is done each time just before it is opened."""

    def __init__(self, folder: Path) -> None:
        self.meddle: Callable[[Path], None] = lambda _file: None
        super().__init__(folder)

    def _open(self) -> sqlite3.Connection:
        self.meddle(self._path)
        return super()._open()


def _another_in_its_place(file: Path) -> None:
    """As by cp onto it."""
    other = file.parent / "elsewhere"
    other.mkdir()
    with closing(Store(other)) as store:
        _apply(store, "d7")
    file.write_bytes((other / FILE).read_bytes())


def _a_copy_of_it(file: Path) -> None:
    shutil.copy(file, file.parent / "copy")
    (file.parent / "copy").replace(file)


@pytest.mark.parametrize("meddle", [_another_in_its_place, _a_copy_of_it])
def test_what_is_opened_in_the_place_of_what_was_written_again_is_not_gone_on_with(
    tmp_path: Path, meddle: Callable[[Path], None]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(_MeddledWith(folder)) as store:
        book = _apply(store, "d1")
        (folder / FILE).unlink()
        store.meddle = meddle
        with pytest.raises(LedgerLostError, match="another (ledger|file) was put there"):
            store.prove()
        store.meddle = lambda _file: None
        store.prove()
        assert store.prove() == ()
        assert stored(store) == book
        assert len(_apply(store, "d2").locks) == 2


def test_attempts_to_write_it_again_that_fail_leave_no_file_open(tmp_path: Path) -> None:
    """There is one every few seconds, for as long as it fails."""
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(_MeddledWith(folder)) as store:
        (folder / FILE).unlink()
        store.meddle = _a_copy_of_it
        files = set[int]()
        for _ in range(4):
            with pytest.raises(LedgerLostError):
                store.prove()
            files.add(sum(1 for _ in Path("/proc/self/fd").iterdir()))
        assert len(files) == 1


class _LosesItsIndex(sqlite3.Connection):
    """Somebody removes the index of the WAL when the file was just locked, and read again."""

    _locked = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self._locked:
            (_, _, file) = super().execute("PRAGMA database_list").fetchone()
            Path(f"{file}-shm").unlink(missing_ok=True)
        self._locked |= sql == "ROLLBACK"
        return super().execute(sql, parameters)


class _LosingItsIndex(Store):
    def _open(self) -> sqlite3.Connection:
        name = f"{self._path.as_uri()}?mode=rw"
        return sqlite3.connect(name, uri=True, isolation_level=None, factory=_LosesItsIndex)


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(LedgerUnusableError):
        _LosingItsIndex(tmp_path)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_what_somebody_wrote_into_it_is_no_history_also_where_the_first_attempt_fails(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "state", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    with closing(Store(other)) as store:
        _apply(store, "d7")
    with closing(_MeddledWith(folder)) as store:
        _apply(store, "d1")
        store.tidy(keep=200)
        store.prove()
        (folder / FILE).write_bytes((other / FILE).read_bytes())
        (folder / f"{FILE}-shm").unlink()
        store.meddle = _a_copy_of_it
        with pytest.raises(LedgerLostError):
            store.prove()
        store.meddle = lambda _file: None
        assert "the history is lost" in store.prove()
        assert moves_in(store, None, 10) == ()


def test_a_history_that_cannot_be_read_any_more_is_told(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        with closing(sqlite3.connect(tmp_path / FILE)) as theirs:
            theirs.execute("DROP TABLE history")
            theirs.commit()
            for name in _ALL:
                (tmp_path / name).unlink()
        assert store.prove() == (*_removed(), "the history is lost")
        assert stored(store) == book


def test_what_is_written_again_has_one_commit_more_and_leaves_nothing_beside(
    tmp_path: Path,
) -> None:
    """An old copy has fewer, and is known by that."""
    with closing(Store(tmp_path)) as store:
        _apply(store, "d1")
        before = sealed(tmp_path)
        (tmp_path / FILE).unlink()
        store.prove()
        after = sealed(tmp_path)
        assert before is not None
        assert after is not None
        assert after.commits == before.commits + 2  # the proof itself is one as well
        assert not half(tmp_path / FILE).exists()


def test_a_program_that_has_the_removed_ledger_open_writes_nothing_over_the_new_one(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with (
        closing(Store(folder)) as store,
        closing(sqlite3.connect(folder / FILE, isolation_level=None)) as theirs,
    ):
        _apply(store, "d1")
        theirs.execute("SELECT * FROM things").fetchall()
        (folder / FILE).unlink()
        store.prove()
        _apply(store, "d2")
        theirs.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        book = _apply(store, "d3")
        assert _after_a_crash(folder, tmp_path / "copy") == book
        assert len(book.locks) == 3


async def test_a_wal_whose_ledger_is_gone_or_empty_is_not_the_next_ones(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
        for how in ("gone", "empty"):
            shutil.copytree(folder, tmp_path / how)
    (tmp_path / "gone" / FILE).unlink()
    os.truncate(tmp_path / "empty" / FILE, 0)
    for how in ("gone", "empty"):
        wal = (tmp_path / how / f"{FILE}-wal").read_bytes()
        assert (await _started(tmp_path / how))[0] == Book()
        assert (tmp_path / how / f"{FILE}.unreadable-1-wal").read_bytes() == wal


def test_a_copy_that_was_whole_when_the_daemon_was_killed_is_the_ledger_of_the_next(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
    (tmp_path / FILE).rename(tmp_path / f".{FILE}.new")
    with closing(Store(tmp_path)) as store:
        assert stored(store) == book
        assert not (tmp_path / f".{FILE}.new").exists()


def test_a_ledger_of_which_the_disk_tells_nothing_is_not_moved_away_as_one_that_makes_no_sense(
    tmp_path: Path,
) -> None:
    Store(tmp_path).close()
    (tmp_path / SEAL).unlink()
    (tmp_path / SEAL).mkdir()
    with pytest.raises(LedgerUnusableError, match="It is left as it is") as refused:
        Store(tmp_path)
    assert not isinstance(refused.value, LedgerUnreadableError)


def test_a_copy_that_was_being_written_is_not_the_ledger_of_the_next(tmp_path: Path) -> None:
    """A look at it does not roll its journal back, so what it shows is of half a change."""
    with closing(Store(tmp_path)) as store:
        _apply(store, "d1")
    copy = half(tmp_path / FILE)
    (tmp_path / FILE).rename(copy)
    copy.with_name(f"{copy.name}-journal").write_bytes(b"pages from before")
    with pytest.raises(LedgerUnreadableError, match="it is gone, and there was one"):
        Store(tmp_path)


async def test_an_old_copy_is_not_used_once_there_was_a_ledger(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        _apply(store, "d1")
    shutil.copy(tmp_path / FILE, tmp_path / f".{FILE}.new")
    Store(tmp_path).close()
    (tmp_path / FILE).unlink()
    assert (await _started(tmp_path))[0] == Book()


def _allocate(draft: Draft) -> None:
    allocated(silicon(d1="1"))(draft)
    settle(draft)


async def test_what_is_done_to_the_files_is_mended_before_an_allocate_fails_or_the_daemon_ends(
    tmp_path: Path,
) -> None:
    async with ledger_in(tmp_path, ManualClock()) as ledger:
        os.truncate(tmp_path / FILE, 0)
        await ledger.apply(_allocate)
        assert await ledger.prove() == (
            f"{FILE} was changed in its place",
            "the history is lost",
        )
        (tmp_path / FILE).unlink()
    with closing(Store(tmp_path)) as store:
        assert [each.id for each in stored(store).locks] == ["d1"]
