"""The ledger's files removed, moved or replaced under the daemon that has them open."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fakes.books import allocated, drafted, silicon
from holdfast.errors import LedgerError, LedgerLostError
from holdfast.ledger.store import FILE, Store
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
            with pytest.raises(LedgerLostError, match="Restart holdfast when its state folder is"):
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
