"""docs/doctor.md lists exactly the checks that the doctor has, and each of them has a test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.doctor.areas import AREAS

_REPOSITORY = Path(__file__).parents[2]
_PAGE = (_REPOSITORY / "docs" / "doctor.md").read_text("utf-8").partition("## Checks")[2]
_ROWS = re.findall(r"^\| ([a-z-]+) \| ([a-z-]+) \| (.+) \|$", _PAGE, re.MULTILINE)[1:]
_DAEMON = _REPOSITORY / "daemon/holdfast"
_BESIDE = {
    "dra": ("doctor/apiserver.py",),
    "events": ("doctor/apiserver.py",),
    "named": ("doctor/apiserver.py",),
    "privileges": ("settings/needs.py",),
}
"""Modules that name checks of an area and are not that of its function in `AREAS`."""


def _code() -> dict[str, set[Path]]:
    """Return the modules of each area, with those of `any` area and of the command itself."""
    found = {"configuration": {_DAEMON / "cli/doctor.py"}, "any": {_DAEMON / "doctor/areas.py"}}
    for area, findings in AREAS.items():
        module = findings.__module__.removeprefix("holdfast.").replace(".", "/")
        found[area] = {_DAEMON / each for each in (f"{module}.py", *_BESIDE.get(area, ()))}
    return found


def _named(path: Path) -> Iterator[str]:
    """Yield the name of each check in *path*."""
    for each in ast.walk(ast.parse(path.read_text("utf-8"))):
        match each:
            case ast.Call(func=ast.Name("Check"), args=[ast.Constant(value=str() as name)]):
                yield name
            case ast.Call(func=ast.Name("Need"), keywords=keywords):
                values = {each.arg: each.value for each in keywords}
                yield ast.literal_eval(values["check"])


@pytest.fixture(scope="module")
def named() -> dict[Path, set[str]]:
    return {path: set(_named(path)) for path in _DAEMON.rglob("*.py")}


def test_every_check_of_the_code_is_on_the_page_in_an_area_of_its_module(
    named: dict[Path, set[str]],
) -> None:
    for path, names in named.items():
        areas = {area for area, modules in _code().items() if path in modules}
        lacking = names - {check for area, check, _ in _ROWS if area in areas}
        assert not lacking, f"docs/doctor.md needs a row for each of {path}, in one of {areas}"


def test_every_check_on_the_page_is_in_the_code_in_its_area(named: dict[Path, set[str]]) -> None:
    in_code = {
        (area, check)
        for area, modules in _code().items()
        for module in modules
        for check in named[module]
    }
    assert {(area, check) for area, check, _ in _ROWS} - in_code == set()


def test_every_area_of_the_code_is_on_the_page_and_no_other() -> None:
    assert {area for area, _, _ in _ROWS} == AREAS.keys() | {"configuration", "any"}


def test_no_check_is_on_the_page_twice() -> None:
    assert len({(area, check) for area, check, _ in _ROWS}) == len(_ROWS)


_TESTS = (
    *(_REPOSITORY / "tests/integration/doctor").glob("test_*.py"),
    *(_REPOSITORY / "tests/contract").glob("test_doctor_*.py"),
    *(_REPOSITORY / "tests/unit").glob("test_doctor_[!p]*.py"),
)


def _strings(path: Path) -> set[str]:
    """Return the strings of *path*, and the modules from which it imports."""
    found = set()
    for each in ast.walk(ast.parse(path.read_text("utf-8"))):
        match each:
            case ast.Constant(value=str() as text) | ast.ImportFrom(module=str() as text):
                found.add(text)
    return found


def test_each_check_is_asked_for_by_its_name_in_a_test_of_its_area() -> None:
    asked = [_strings(path) for path in _TESTS]
    for area, check, _ in _ROWS:
        modules = {
            ".".join(each.relative_to(_DAEMON.parent).with_suffix("").parts)
            for each in _code()[area]
        }
        its = (each for each in asked if area == "any" or area in each or modules & each)
        assert any(check in each for each in its), f"a test of area {area} has to name {check}"
