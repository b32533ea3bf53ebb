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

import pytest

from fakes.books import allocated, drafted, silicon
from fakes.faultydisk import FaultyDisk
from holdfast.errors import LedgerError, LedgerLostError, LedgerUnusableError
from holdfast.ledger.files import FILE
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book
from holdfast.model.book.queue import settle


def _apply(store: Store, device: str) -> Book:
    before = store.read()
    draft = drafted(before)
    allocated(silicon(**{device: device[-1]}))(draft)
    settle(draft)
    store.write(before, draft.book, draft.moves)
    return draft.book


def _after_a_crash(folder: Path, to: Path) -> Book:
    """Return the book that the next daemon finds when this one is killed now."""
    shutil.copytree(folder, to)
    with closing(Store(to)) as store:
        return store.read()


_ALL = (FILE, f"{FILE}-wal", f"{FILE}-shm")


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
        with pytest.raises(LedgerLostError, match=f"{names[0]}.* was removed"):
            _apply(store, "d2")
        assert store.prove() == names
        assert store.read() == book
        assert len(store.history(None, 10)) == 1
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
def test_a_file_that_somebody_put_in_the_place_of_ours_is_told_and_never_touched(
    tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        replace(tmp_path / name)
        theirs = (tmp_path / name).read_bytes()
        for _ in range(2):
            with pytest.raises(LedgerLostError, match=f"in the place of {name}. Move it away"):
                store.prove()
            with pytest.raises(LedgerLostError, match=f"in the place of {name}. Move it away"):
                _apply(store, "d2")
        assert (tmp_path / name).read_bytes() == theirs
        (tmp_path / name).unlink()
        assert store.prove() == (name,)
        assert _apply(store, "d2").locks.keys() > book.locks.keys()


@pytest.mark.parametrize("gone", ["state", "."])
def test_a_state_folder_is_made_again_with_what_is_above_it(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "var" / "state"
    folder.mkdir(parents=True)
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        shutil.rmtree(tmp_path / "var" / gone)
        assert store.prove() == _ALL
        assert store.read() == book


def test_files_that_are_removed_again_are_written_again(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        for device in ("d1", "d2", "d3"):
            book = _apply(store, device)
            for name in _ALL:
                (tmp_path / name).unlink()
            assert store.prove() == _ALL
            assert store.read() == book


def test_what_an_attempt_that_was_killed_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
        for name in _ALL:
            (tmp_path / name).unlink()
        (tmp_path / f".{FILE}.new").write_bytes(b"half a ledger")
        assert store.prove() == _ALL
        assert store.read() == book


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
        assert "again, of which ledger.db" in _proven(prover)
        # Not changed to it in its place, where a kill would leave a journal behind.
        in_wal_mode = b"\x02\x02"
        assert (folder / f".{FILE}.new").read_bytes()[18:20] == in_wal_mode
        disk.is_mended()
        assert _proven(prover) == " ".join(_ALL)
        assert _proven(prover) == ""
        assert prover.stdin is not None
        prover.stdin.close()
    with closing(Store(folder)) as store:
        assert store.read() == book


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
                with contextlib.suppress(LedgerLostError):
                    store.prove()
            assert remover.stdout.readline() == "removed\n"
            store.prove()
            assert store.read() == book
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
            with contextlib.suppress(LedgerLostError):
                store.prove()
        with pytest.raises(LedgerLostError, match="another file was put in the place of ledger.db"):
            store.prove()
        assert (folder / FILE).read_bytes() == before
        (folder / FILE).unlink()
        store.prove()
        assert store.read() == book
    assert _after_a_crash(folder, tmp_path / "copy") == book


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
        theirs.execute("SELECT * FROM locks").fetchall()
        (folder / FILE).unlink()
        store.prove()
        _apply(store, "d2")
        theirs.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        book = _apply(store, "d3")
        assert _after_a_crash(folder, tmp_path / "copy") == book
        assert len(book.locks) == 3


def test_a_wal_whose_ledger_was_moved_away_is_not_the_next_ones(tmp_path: Path) -> None:
    folder, crashed = tmp_path / "state", tmp_path / "crashed"
    folder.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
        shutil.copytree(folder, crashed)
    (crashed / FILE).unlink()
    wal = (crashed / f"{FILE}-wal").read_bytes()
    with closing(Store(crashed)) as store:
        assert store.read() == Book()
    assert (crashed / f"{FILE}-wal.stale").read_bytes() == wal


def test_an_empty_file_beside_a_full_wal_is_not_used(tmp_path: Path) -> None:
    folder, crashed = tmp_path / "state", tmp_path / "crashed"
    folder.mkdir()
    with closing(Store(folder)) as store:
        _apply(store, "d1")
        shutil.copytree(folder, crashed)
    (crashed / FILE).write_bytes(b"")
    with pytest.raises(LedgerUnusableError, match="it is empty, and its WAL is not"):
        Store(crashed)
    assert (crashed / f"{FILE}-wal").stat().st_size


def test_a_copy_that_was_whole_when_the_daemon_was_killed_is_the_ledger_of_the_next(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        book = _apply(store, "d1")
    (tmp_path / FILE).rename(tmp_path / f".{FILE}.new")
    with closing(Store(tmp_path)) as store:
        assert store.read() == book
        assert not (tmp_path / f".{FILE}.new").exists()


def test_an_old_copy_is_not_used_once_there_was_a_ledger(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        _apply(store, "d1")
    shutil.copy(tmp_path / FILE, tmp_path / f".{FILE}.new")
    Store(tmp_path).close()
    (tmp_path / FILE).unlink()
    with closing(Store(tmp_path)) as store:
        assert store.read() == Book()


def test_a_daemon_that_ends_before_its_ledger_could_be_put_back_tries_once_more(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Store(folder)) as store:
        book = _apply(store, "d1")
        shutil.rmtree(folder)
        folder.write_text("in the way")
        with pytest.raises(LedgerLostError):
            store.prove()
        folder.unlink()
    with closing(Store(folder)) as store:
        assert store.read() == book
