"""docs/doctor.md lists exactly the checks that the doctor has, under the names of their areas."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.checks import AREAS

_REPOSITORY = Path(__file__).parents[2]
_PAGE = (_REPOSITORY / "docs" / "doctor.md").read_text("utf-8").partition("## Checks")[2]
_ROWS = re.findall(r"^\| ([a-z-]+) \| ([a-z-]+) \| (.+) \|$", _PAGE, re.MULTILINE)[1:]
_CODE = (
    *(_REPOSITORY / "daemon/holdfast/doctor").rglob("*.py"),
    _REPOSITORY / "daemon/holdfast/cli/doctor.py",
)


def _named(path: Path) -> Iterator[str]:
    """Yield each check that *path* names at a place where it makes a finding."""
    for each in ast.walk(ast.parse(path.read_text("utf-8"))):
        match each:
            case ast.keyword(arg="check", value=ast.Constant(value=str() as name)):
                yield name


def test_every_check_of_the_code_is_on_the_page() -> None:
    in_code = {check for path in _CODE for check in _named(path)}
    assert in_code - {check for _, check, _ in _ROWS} == set()


def test_every_check_on_the_page_is_in_the_code() -> None:
    in_code = {check for path in _CODE for check in _named(path)}
    assert {check for _, check, _ in _ROWS} - in_code == set()


def test_every_area_of_the_code_is_on_the_page_and_no_other() -> None:
    assert {area for area, _, _ in _ROWS} == AREAS.keys() | {"configuration", "any"}


def test_no_check_is_on_the_page_twice() -> None:
    assert len({(area, check) for area, check, _ in _ROWS}) == len(_ROWS)
