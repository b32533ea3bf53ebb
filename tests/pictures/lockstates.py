"""Draws the states of a lock and the moves between them, from the daemon's own table."""

import tomllib
from pathlib import Path
from typing import Any

from holdfast.model.book.book import NEXT, LockState
from pictures.drawing import Arrow, Box, End, svg

_BOX = (130, 50)


def draw(layout: Path) -> str:
    """Return the picture of NEXT; *layout* says where the states are and what a move is called.

    Raise ValueError where the layout has not exactly the states and the moves of the table.
    """
    told = tomllib.loads(layout.read_text("utf-8"))
    moves = {f"{before.value} -> {after.value}" for before in NEXT for after in NEXT[before]}
    wanted = {*moves, *(state.value for state in LockState)}
    if differing := wanted ^ {*told["moves"], *told["states"]}:
        raise ValueError(
            f"cannot draw {layout.name}: it differs from the code: {sorted(differing)}"
        )
    boxes = {LockState(name): Box(at[0], at[1], *_BOX, name) for name, at in told["states"].items()}
    arrows = [
        _arrow(boxes[before], boxes[after], told["moves"][f"{before.value} -> {after.value}"])
        for before in NEXT
        for after in sorted(NEXT[before], key=lambda state: state.value)
    ]
    return svg(
        boxes.values(),
        arrows,
        title="The states of a device's lock, and every move between them",
        width=960,
        height=420,
    )


def _arrow(before: Box, after: Box, told: dict[str, Any]) -> Arrow:
    return Arrow(
        End(before, *told["from"]),
        End(after, *told["to"]),
        label=tuple(told.get("label", ())),
        pull=told.get("pull"),
        shift=tuple(told.get("shift", (0, 0))),
        kind="other" if told.get("back") else "",
    )
