"""docs/architecture.md is true of the code: its rooms are the packages, its figure's arrows imports."""

import re
from pathlib import Path

import pytest

from holdfast.settings import known_paths
from pictures import architecture
from pictures.all import FOLDER
from pictures.architecture import NotTrueError, layers, packages

_DOCS = FOLDER.parent
_PACKAGE = _DOCS.parent / "daemon/holdfast"
_PAGE = (_DOCS / "architecture.md").read_text("utf-8")
_ROOMS = dict(re.findall(r"^\*\*`(\w+)`\*\* (.+?)(?=\n\n|\Z)", _PAGE, re.MULTILINE | re.DOTALL))


def test_every_package_has_its_paragraph_and_no_other_has() -> None:
    assert set(_ROOMS) == packages(_PACKAGE)


def test_the_paragraphs_go_down_as_the_layers_do(repository: Path) -> None:
    rows = layers(repository)
    row = {name: number for number, names in enumerate(rows) for name in names}
    order = [row[name] for name in _ROOMS]

    assert order == sorted(order)


@pytest.mark.parametrize("room", _ROOMS)
def test_a_paragraph_names_every_package_within_its_room(room: str) -> None:
    named = set(re.findall(r"`(\w+)`", _ROOMS[room]))
    assert packages(_PACKAGE / room) <= named, f"docs/architecture.md: name each below {room}"


@pytest.mark.parametrize("name", ["architecture.md", "how-it-works.md"])
def test_every_module_or_setting_that_a_page_names_exists(name: str) -> None:
    text = (_DOCS / name).read_text("utf-8")
    rooms = "|".join(_ROOMS)
    named = set(re.findall(rf"`((?:{rooms})\.[\w.]+)`", text)) - set(known_paths())

    assert named
    for module in named:
        path = _PACKAGE.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_the_page_counts_no_files() -> None:
    assert not re.search(r"\d+ (files|modules|lines|packages)", _PAGE)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            '"allocation -> ledger"',
            '"ledger -> allocation"',
            "ledger imports nothing of allocation",
        ),
        ('value = "Book"', 'value = "Cook"', "no module of it has the word"),
        ('in = "Allocate"', 'in = "Deallocate"', "no module of it has the word"),
        ("[rooms.ledger]", "[rooms.register]", r"the packages differ in \['ledger', 'register'\]"),
    ],
)
def test_a_figure_that_is_not_true_is_refused(
    repository: Path, tmp_path: Path, old: str, new: str, told: str
) -> None:
    source = tmp_path / "architecture.toml"
    text = (FOLDER / source.name).read_text("utf-8")
    assert old in text
    source.write_text(text.replace(old, new), "utf-8")

    with pytest.raises(NotTrueError, match=told):
        architecture.draw(source, repository)
