"""The guards of docs/guards.md, each with the edits that remove it, and where its tests are."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from guards.edits.host import HOST_EDITS
from guards.edits.model import MODEL_EDITS
from guards.edits.parts import PART_EDITS
from guards.edits.reclaim import RECLAIM_EDITS
from guards.guard import Edit, Guard

EDITS: Mapping[str, tuple[Edit, ...]] = {**HOST_EDITS, **MODEL_EDITS, **PART_EDITS, **RECLAIM_EDITS}
"""All edits, by the file that each is made in, below daemon/holdfast."""
_NAMES = r"`[^|]+`"
_ROW = re.compile(
    rf"^\| `(?P<guard>[\w-]+)` \| (?P<why>.+) \| (?P<files>{_NAMES}) \| (?P<tests>{_NAMES}) \|$",
    re.MULTILINE,
)
_NAME = re.compile(r"`([^`]+)`")
_DEFINED = re.compile(r"^( *)(?:async )?(?:def|class) ((?:test_|Test)\w+)", re.MULTILINE)


def read_guards(repository: Path) -> tuple[Guard, ...]:
    """Return the guards in the order of the page.

    Raise ValueError where the page and the edits do not agree, or a test is not there once.
    """
    edits: dict[str, dict[str, tuple[Edit, ...]]] = defaultdict(dict)
    for file, each in EDITS.items():
        for name in dict.fromkeys(edit.guard for edit in each):
            edits[name][file] = tuple(edit for edit in each if edit.guard == name)
    places = _places(repository)
    guards: dict[str, Guard] = {}
    for row in _ROW.finditer((repository / "docs/guards.md").read_text()):
        name = row["guard"]
        if name in guards:
            raise ValueError(f"{name} is on the page twice")
        if set(_NAME.findall(row["files"])) != edits[name].keys():
            raise ValueError(
                f"the row of {name} has to name the files of its edits: {[*edits[name]]}"
            )
        guards[name] = Guard(
            name=name,
            why=row["why"],
            edits=edits[name],
            tests=tuple(_only(places, test) for test in _NAME.findall(row["tests"])),
        )
    if missing := set(edits) - set(guards):
        raise ValueError(f"docs/guards.md has no row of {sorted(missing)}")
    return tuple(guards.values())


def _places(repository: Path) -> dict[str, list[str]]:
    """Return what pytest calls the tests of each name; those of a class have its name too."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted((repository / "tests").glob("*/**/test_*.py")):
        place = file.relative_to(repository).as_posix()
        group = ""
        for indent, name in _DEFINED.findall(file.read_text()):
            if name.startswith("Test"):
                group = name
            else:
                test = f"{group}::{name}" if indent else name
                places[test].append(f"{place}::{test}")
    return places


def _only(places: Mapping[str, list[str]], test: str) -> str:
    found = places.get(test, [])
    if len(found) != 1:
        raise ValueError(f"{test} is the name of {len(found)} tests, and not of one: {found}")
    return found[0]
