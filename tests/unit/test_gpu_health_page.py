"""docs/gpu-health.md tells people exactly the classes of Xids that the code has."""

import re
from pathlib import Path

import pytest

from holdfast.model.nvidia.xids import IGNORED, Cure, rule_of

_PAGE = (Path(__file__).parents[2] / "docs" / "gpu-health.md").read_text("utf-8")
_ROWS = dict(re.findall(r"^\| (\w+) \| ([\d, -]+?)(?:, and .*)? \| .+ \|$", _PAGE, re.MULTILINE))
_MOST = 1000


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found |= {*range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("cure", list(Cure), ids=lambda cure: cure.name.lower())
def test_the_page_has_each_class_with_its_xids(cure: Cure) -> None:
    rules = {xid: rule_of(xid) for xid in range(_MOST)}
    known = {xid for xid, each in rules.items() if each.known and each.cure is cure}
    assert _numbers(_ROWS[cure.name.lower()]) == known


def test_the_page_has_the_xids_that_are_ignored() -> None:
    (told,) = re.findall(r"Ignored by default, as by NVIDIA's plugin: ([\d, ]+)\.", _PAGE)
    assert _numbers(told) == IGNORED
