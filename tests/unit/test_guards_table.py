"""The table of guards fits the source: each edit applies, each test exists, the page has each."""

import ast
from functools import cache
from pathlib import Path

import pytest

from guards.guard import Edit, Guard
from guards.removal import NotProvenError, remove
from guards.table import GUARDS


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_every_edit_applies_once_and_leaves_a_program(
    repository: Path, tmp_path: Path, guard: Guard
) -> None:
    for edit in guard.edits:
        copy = tmp_path / edit.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((repository / edit.file).read_text())
    remove(guard, tmp_path)
    for edit in guard.edits:
        ast.parse((tmp_path / edit.file).read_text())


def test_an_edit_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("twice\ntwice\n")
    edit = Edit("file.py", "twice", "once")
    guard = Guard(name="made-up", why="", edits=(edit,), tests=())
    with pytest.raises(NotProvenError, match="2 times"):
        remove(guard, tmp_path)


@cache
def _functions(file: Path) -> frozenset[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        each.name for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, kinds)
    )


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_every_test_of_a_guard_exists(repository: Path, guard: Guard) -> None:
    assert guard.tests
    for test in guard.tests:
        file, _, name = test.partition("::")
        assert name.rpartition("::")[2] in _functions(repository / file)


def test_names_of_guards_are_their_own() -> None:
    names = [guard.name for guard in GUARDS]
    assert len(names) == len(set(names))


def test_the_page_on_guards_has_each_of_them_as_the_table_has_it(repository: Path) -> None:
    page = (repository / "docs/guards.md").read_text()
    for guard in GUARDS:
        for test in guard.tests:
            assert f"| `{guard.name}` | {guard.why} |" in page
            assert test.rpartition("::")[2] in page
