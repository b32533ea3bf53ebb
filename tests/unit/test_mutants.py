"""The changes that `make mutants` makes, and the list of those that change nothing."""

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from mutants.change import Change
from mutants.changes import changes
from mutants.equivalent import FILE, equivalents, stale
from mutants.scope import SETTLED, concerned_tests, files

_SOURCE = '''
def rule(facts):
    """Say whether."""
    if facts.a and not facts.b:
        log.info("a %s", facts.a)
        return facts.reason
    for each in facts.all:
        if each.age >= 10:
            continue
        each.seen = True
        tell(each)
    return any(each.c is None for each in facts.all if each.d)
'''


@pytest.fixture(scope="module")
def made(repository: Path) -> list[tuple[str, list[Change]]]:
    """The text of each file, and the changes of it."""
    sources = {file: (repository / file).read_text() for file in files(repository)}
    return [(source, changes(file, source)) for file, source in sources.items()]


def _made(source: str) -> set[str]:
    return {change.becomes for change in changes("rule.py", source)}


def test_each_kind_of_change_is_made() -> None:
    assert _made(_SOURCE) == {
        "if True:",
        "if False:",
        "if True and not facts.b:",
        "if facts.a and True:",
        "if facts.a and (facts.b):",
        "return None",
        "if each.age > 10:",
        "if each.age >= 11:",
        "pass",
        "each.seen = False",
        "return all(each.c is None for each in facts.all if each.d)",
        "return any(each.c is not None for each in facts.all if each.d)",
        "return any(each.c is None for each in facts.all if True)",
        "return any(each.c is None for each in facts.all if False)",
    }


def _around(source: str) -> list[tuple[int, int]]:
    """Return where functions and the statements of the module begin and end, in bytes."""
    starts = [0, *itertools.accumulate(len(each) for each in source.encode().splitlines(True))]
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [each for each in ast.walk(tree) if isinstance(each, kinds)] + tree.body
    return [(starts[each.lineno - 1], starts[each.end_lineno or each.lineno]) for each in found]


@pytest.mark.slow
def test_every_change_of_the_source_leaves_a_program(
    made: list[tuple[str, list[Change]]],
) -> None:
    """As far as it can touch it: the lines of the function around it, or of its statement."""
    for source, found in made:
        data, places = source.encode(), _around(source)
        for change in found:
            start, end = min(
                ((a, b) for a, b in places if a <= change.start and change.end <= b),
                key=lambda place: place[1] - place[0],
            )
            piece = replace(change, start=change.start - start, end=change.end - start)
            before = data[start:end].decode()
            changed = piece.apply(before)
            assert changed != before
            ast.parse(f"if True:\n{changed}" if changed[0].isspace() else changed)


def test_a_change_keeps_its_name_when_other_lines_move() -> None:
    before = [change.name for change in changes("rule.py", _SOURCE)]
    after = [change.name for change in changes("rule.py", "import this\n\n\n" + _SOURCE)]
    assert before == after


def test_every_file_has_tests_that_exist(repository: Path) -> None:
    assert set(SETTLED) <= set(files(repository))
    for file in files(repository):
        tests = concerned_tests(file, repository)
        assert tests
        assert all((repository / test).is_file() for test in tests)


def test_each_equivalent_change_is_one_that_is_made(
    made: list[tuple[str, list[Change]]],
) -> None:
    every = [change for _, found in made for change in found]
    assert not stale(equivalents(FILE.read_text()), every)


def test_an_equivalent_change_needs_a_reason() -> None:
    entry = '[[change]]\nfile = "a"\nfunction = "f"\nwas = "x"\nbecomes = "y"\nwhy = "{}"\n'
    assert list(equivalents(entry.format("same")).values()) == ["same"]
    with pytest.raises(ValueError, match="no reason"):
        equivalents(entry.format(" "))
    with pytest.raises(ValueError, match="twice"):
        equivalents(entry.format("same") * 2)


def _run(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mutants", *options],
        cwd=repository / "tests",
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_file_that_is_not_there_is_an_error(repository: Path) -> None:
    ran = _run(repository, "--file", "model/nothing.py")
    assert ran.returncode == 1
    assert "no file has 'model/nothing.py' in its name" in ran.stderr
