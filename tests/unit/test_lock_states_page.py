"""docs/lock-states.md tells people exactly the moves that the code makes."""

import re
from pathlib import Path

import pytest

from holdfast.model.book.book import NEXT, LockState
from pictures import lockstates
from pictures.all import FOLDER, PICTURES

_PAGE = (Path(__file__).parents[2] / "docs" / "lock-states.md").read_text("utf-8")
_ROWS = re.findall(r"^\| (\w+) \| (\w+) \| (.+) \| (.+) \|$", _PAGE, re.MULTILINE)[1:]
_MOVES = [(LockState(before), LockState(after)) for before, after, _, _ in _ROWS]


def test_every_move_of_the_code_is_on_the_page() -> None:
    assert {(before, after) for before in NEXT for after in NEXT[before]} == set(_MOVES)


def test_no_move_is_on_the_page_twice() -> None:
    assert len(_MOVES) == len(set(_MOVES))


def test_every_state_has_moves_of_its_own() -> None:
    assert set(NEXT) == set(LockState)


@pytest.mark.parametrize("state", list(LockState), ids=lambda state: state.value)
def test_every_state_has_a_paragraph_that_says_what_is_reported_to_kubelet(
    state: LockState,
) -> None:
    found = re.search(rf"^\*\*{state.value}\*\*: (.+?)\n\n", _PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert re.search(r"reported\s+to\s+kubelet\s+as\s+(Healthy|Unhealthy)", found.group(1))


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: f"{row[0]} to {row[1]}")
def test_every_move_says_when_it_happens_and_what_is_written_down(row: tuple[str, ...]) -> None:
    assert all(cell.strip() for cell in row)


def test_the_figure_shows_every_move_and_no_other() -> None:
    names = {(before.value, after.value) for before, after in _MOVES}

    drawn = re.findall(r'data-from="(\w+)" data-to="(\w+)"', PICTURES["lock-states"]())

    assert len(drawn) == len(names)
    assert set(drawn) == names


@pytest.mark.parametrize(
    ("old", "new"),
    [('"free -> held"', '"free -> releasing"'), ("\nfree = ", "\nlost = ")],
    ids=["another move", "another state"],
)
def test_a_layout_that_differs_from_the_code_is_refused(tmp_path: Path, old: str, new: str) -> None:
    layout = (FOLDER / "lock-states.toml").read_text("utf-8").replace(old, new)
    (tmp_path / "lock-states.toml").write_text(layout, "utf-8")

    with pytest.raises(ValueError, match="cannot draw lock-states.toml: it differs"):
        lockstates.draw(tmp_path / "lock-states.toml")
