"""The table of guards fits the source: each edit applies, each test exists, the page has each."""

import ast
from pathlib import Path

import pytest

from guards.guard import Edit, Guard
from guards.removal import SOURCE, NotProvenError, remove
from guards.table import EDITS, read_guards

_GUARDS = read_guards(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize("guard", _GUARDS, ids=lambda guard: guard.name)
def test_every_edit_applies_once_and_leaves_a_program(
    repository: Path, tmp_path: Path, guard: Guard
) -> None:
    assert guard.edits
    assert guard.tests
    for file in guard.edits:
        copy = tmp_path / SOURCE / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((repository / SOURCE / file).read_text())
    remove(guard, tmp_path)
    for file in guard.edits:
        ast.parse((tmp_path / SOURCE / file).read_text())


def test_an_edit_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / SOURCE / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text("twice\ntwice\n")
    edits = {"file.py": (Edit("made-up", "twice", "once"),)}
    guard = Guard(name="made-up", why="", edits=edits, tests=())
    with pytest.raises(NotProvenError, match="2 times"):
        remove(guard, tmp_path)


def _copy(repository: Path, folder: Path) -> Path:
    """Return a copy of the page on guards, in a repository whose tests have names alone."""
    page = folder / "docs/guards.md"
    page.parent.mkdir()
    page.write_text((repository / "docs/guards.md").read_text())
    for test in {test for guard in _GUARDS for test in guard.tests}:
        file, _, name = test.partition("::")
        group, _, function = name.rpartition("::")
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("a") as tests:
            tests.write(f"class {group}:\n    " if group else "")
            tests.write(f"async def {function}(): ...\n")
    return page


def test_all_edits_are_of_guards_of_the_page(repository: Path, tmp_path: Path) -> None:
    _copy(repository, tmp_path)
    read = read_guards(tmp_path)
    assert [guard.name for guard in read] == [guard.name for guard in _GUARDS]
    assert sum(map(len, EDITS.values())) == sum(
        len(edits) for guard in read for edits in guard.edits.values()
    )


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ("| `self` |", "| `selves` |", "selves"),
        ("| `self` |", "| self |", r"no row of \['self'\]"),
        ("| `self` |", "| `mode` |", "mode is on the page twice"),
        ("| `inuse/deviceuse.py` |", "| `inuse/budget.py` |", "has to name the files of its edits"),
        ("| `test_the_daemon_never_", "| `test_our_daemon_never_", "of 0 tests"),
    ],
)
def test_a_page_that_does_not_agree_with_the_edits_and_tests_is_refused(
    repository: Path, tmp_path: Path, before: str, after: str, match: str
) -> None:
    page = _copy(repository, tmp_path)
    assert before in page.read_text()
    page.write_text(page.read_text().replace(before, after, 1))
    with pytest.raises(ValueError, match=match):
        read_guards(tmp_path)


def test_the_name_of_a_guards_test_is_its_own(repository: Path, tmp_path: Path) -> None:
    _copy(repository, tmp_path)
    another = tmp_path / "tests/unit/test_more.py"
    another.write_text("def test_the_daemon_never_signals_itself(): ...\n")
    with pytest.raises(ValueError, match="test_the_daemon_never_signals_itself is .* of 2 tests"):
        read_guards(tmp_path)
