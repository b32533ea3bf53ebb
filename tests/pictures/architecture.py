"""Draws the rooms of the daemon, in the layers that the imports keep, and what goes between them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pictures.drawing import Arrow, Box, End, svg

_WIDTH, _LEFT, _MARGIN = 960, 232, 20
_COLUMNS = 12
_GAP = 12


class NotTrueError(ValueError):
    """The figure's text says what the code does not."""


def draw(source: Path, repository: Path) -> str:
    """Return the picture of *source*; raise NotTrueError where it is not true of the code."""
    told = tomllib.loads(source.read_text("utf-8"))
    package = repository / "daemon/holdfast"
    _require_true(told, package)
    for name, room in told["rooms"].items():
        if room.get("parts"):
            room["text"] = [*room["text"], " · ".join(sorted(packages(package / name)))]
    rooms = _placed(told["rooms"], layers(repository))
    outside = {each["name"]: _beside(each, rooms[each["room"]]) for each in told["outside"]}
    arrows = [_between(each, rooms) for each in (*told["uses"], *told["tells"])]
    for each in told["outside"]:
        arrows += _across(each, outside[each["name"]], rooms[each["room"]])
    bottom = max(room.y + room.height for room in rooms.values())
    return svg(
        [*rooms.values(), *outside.values()],
        arrows,
        title="The rooms of the daemon from the top, and what goes between them",
        width=_WIDTH,
        height=round(bottom + _MARGIN),
    )


def packages(package: Path) -> set[str]:
    """Return the packages in *package*; what protoc wrote is none."""
    return {each.parent.name for each in package.glob("[!_]*/__init__.py")}


def layers(repository: Path) -> list[list[str]]:
    """Return the rooms of each layer, from the top, as import-linter holds them."""
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (rows,) = (each["layers"] for each in contracts if each["name"] == "Imports point one way")
    return [re.findall(r"holdfast\.(\w+)", row) for row in rows]


def _require_true(told: dict[str, Any], package: Path) -> None:
    if differing := packages(package) ^ told["rooms"].keys():
        raise NotTrueError(f"cannot draw the rooms: the packages differ in {sorted(differing)}")
    for each in told["uses"]:
        user, used = _ends(each)
        if used not in _imported(package / user):
            raise NotTrueError(f"cannot draw {each['arrow']}: {user} imports nothing of {used}")
    for each in told["tells"]:
        for room in _ends(each):
            _require_word(each["value"], package / room)
    for each in told["outside"]:
        for word in (each.get("in"), each.get("out")):
            if word:
                _require_word(word, package / each["room"])


def _require_word(word: str, room: Path) -> None:
    if not any(re.search(rf"\b{re.escape(word)}\b", text) for text in _texts(room)):
        raise NotTrueError(f"cannot draw {word} at {room.name}: no module of it has the word")


def _texts(room: Path) -> Iterator[str]:
    return (each.read_text("utf-8") for each in room.rglob("*.py"))


def _imported(room: Path) -> set[str]:
    """Return the packages of holdfast that modules of *room* import."""
    found: set[str] = set()
    for text in _texts(room):
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            found.update(name.split(".")[1] for name in names if name.startswith("holdfast."))
    return found


def _ends(arrow: dict[str, Any]) -> tuple[str, str]:
    start, _, end = arrow["arrow"].partition(" -> ")
    return start, end


def _placed(told: dict[str, Any], rows: list[list[str]]) -> dict[str, Box]:
    column = (_WIDTH - _MARGIN - _LEFT + _GAP) / _COLUMNS
    boxes: dict[str, Box] = {}
    y = float(_MARGIN - _GAP)
    for row in rows:
        rooms = [name for name in row if name in told]
        y += max((told[name].get("above", _GAP) for name in rooms), default=0)
        height = max((24 + 15 * len(told[name]["text"]) for name in rooms), default=0)
        for name in rooms:
            first, last = told[name]["columns"]
            x, width = _LEFT + first * column, (last - first) * column - _GAP
            boxes[name] = Box(x, y, width, height, name, tuple(told[name]["text"]))
        y += height
    return boxes


def _beside(told: dict[str, Any], room: Box) -> Box:
    return Box(_MARGIN, room.y, 110, room.height, told["name"], kind="outside")


def _between(told: dict[str, Any], rooms: dict[str, Box]) -> Arrow:
    start, end = _ends(told)
    return Arrow(
        End(rooms[start], *told["from"]),
        End(rooms[end], *told["to"]),
        label=tuple(told.get("label", [told["value"]] if "value" in told else [])),
        pull=told.get("pull"),
        shift=tuple(told.get("shift", (0, 0))),
        kind="other" if "value" in told else "",
    )


def _across(told: dict[str, Any], outside: Box, room: Box) -> Iterator[Arrow]:
    both = "in" in told and "out" in told
    if "out" not in told or both:
        ends = End(outside, "right", 0.3 if both else 0.5), End(room, "left", 0.3 if both else 0.5)
        yield Arrow(*ends, label=(told["in"],) if "in" in told else ())
    if "out" in told:
        ends = (
            End(room, "left", 0.75 if both else 0.5),
            End(outside, "right", 0.75 if both else 0.5),
        )
        yield Arrow(*ends, label=(told["out"],))
