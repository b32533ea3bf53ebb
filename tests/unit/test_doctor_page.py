"""docs/doctor.md lists exactly the checks that the doctor has, under the names of their areas."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.areas import AREAS

_REPOSITORY = Path(__file__).parents[2]
_PAGE = (_REPOSITORY / "docs" / "doctor.md").read_text("utf-8").partition("## Checks")[2]
_ROWS = re.findall(r"^\| ([a-z-]+) \| ([a-z-]+) \| (.+) \|$", _PAGE, re.MULTILINE)[1:]
_CODE = (
    *(_REPOSITORY / "daemon/holdfast/doctor").rglob("*.py"),
    _REPOSITORY / "daemon/holdfast/cli/doctor.py",
    _REPOSITORY / "daemon/holdfast/settings/needs.py",
)


def _named(path: Path) -> Iterator[tuple[str, str]]:
    """Yield area and name of each check in *path*; of those in every area the area is any."""
    for each in ast.walk(ast.parse(path.read_text("utf-8"))):
        match each:
            case ast.Call(func=ast.Name("Check"), args=[area, ast.Constant(value=str() as name)]):
                yield str(area.value) if isinstance(area, ast.Constant) else "any", name
            case ast.Call(func=ast.Name("Need"), keywords=keywords):
                values = {each.arg: each.value for each in keywords}
                yield "privileges", ast.literal_eval(values["check"])


_IN_CODE = {check for path in _CODE for check in _named(path)}


def test_every_check_of_the_code_is_on_the_page_in_its_area() -> None:
    assert _IN_CODE - {(area, check) for area, check, _ in _ROWS} == set()


def test_every_check_on_the_page_is_in_the_code_in_its_area() -> None:
    assert {(area, check) for area, check, _ in _ROWS} - _IN_CODE == set()


def test_every_area_of_the_code_is_on_the_page_and_no_other() -> None:
    assert {area for area, _, _ in _ROWS} == AREAS.keys() | {"configuration", "any"}


def test_no_check_is_on_the_page_twice() -> None:
    assert len({(area, check) for area, check, _ in _ROWS}) == len(_ROWS)
