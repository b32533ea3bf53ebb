"""docs/dra.md shows each yes by a test that exists, and names only what the chart and rules have."""

import re
from pathlib import Path

import pytest

from holdfast.model.book.book import LockState
from holdfast.model.dra.health import HELD, UNHEALTHY

_TESTS = Path(__file__).parents[1]
_PAGE = (_TESTS.parent / "docs/dra.md").read_text("utf-8")
_SHOWN = re.findall(r"`([a-z_/]+\.py) -k (\w+)`", _PAGE)
_COMPARED = _PAGE.partition("## Beside other drivers")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("file", "words"), _SHOWN)
def test_each_test_that_the_page_names_is_there(file: str, words: str) -> None:
    tests = re.findall(
        r"^(?:async )?def (test_\w+)", (_TESTS / file).read_text("utf-8"), re.MULTILINE
    )

    assert [name for name in tests if words in name]


def test_each_row_of_the_comparison_is_shown_or_says_not_yet() -> None:
    rows = [line for line in _COMPARED.splitlines() if line.startswith("| ")][1:]

    assert len(rows) >= len(_SHOWN) > 10
    assert [row for row in rows if " -k " not in row and "not yet: " not in row] == []


def test_the_page_knows_every_taint_with_its_value() -> None:
    section = _PAGE.partition("### What a taint means")[2].partition("\n##")[0]
    values = {state.value for state in LockState if state is not LockState.FREE}

    for value in (*values, "drain", "uncommitted"):
        assert f"`{value}`" in section
    for key in (HELD, UNHEALTHY):
        assert f"`<driver>/{key}`" in section
