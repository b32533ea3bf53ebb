"""Boxes and arrows as SVG, readable on a light page and on a dark one."""

from collections.abc import Iterable
from html import escape
from math import hypot
from typing import Literal, NamedTuple

Side = Literal["top", "bottom", "left", "right"]
# Where a side of a box is, in parts of its width and height, and which way is out of the box.
_SIDES: dict[Side, tuple[float, float, int, int]] = {
    "top": (0, 0, 0, -1),
    "bottom": (0, 1, 0, 1),
    "left": (0, 0, -1, 0),
    "right": (1, 0, 1, 0),
}
_LINE = 15

_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif;
       fill: #24292f; text-anchor: middle }
text.name { font-weight: 600; font-size: 14px }
.card { fill: #ffffff; stroke: #d0d7de }
.box { fill: #eef4fb; stroke: #6c8ebf; stroke-width: 1.4 }
.outside { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 4 3 }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#head) }
.other { stroke: #b35900; stroke-dasharray: 5 4; marker-end: url(#other) }
.head { fill: #57606a } .head.other { fill: #b35900; stroke: none }
text.label { stroke: #ffffff; stroke-width: 4; paint-order: stroke; font-size: 11.5px }
text.label.other { fill: #8a4500; stroke-dasharray: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.card { fill: #0d1117; stroke: #30363d }
.box { fill: #16263d; stroke: #6c8ebf }
.outside { fill: #161b22 }
.arrow { stroke: #9aa4af } .other { stroke: #e0913f }
.head { fill: #9aa4af } .head.other { fill: #e0913f }
text.label { stroke: #0d1117 } text.label.other { fill: #f0b072 }
}
""".strip()


class Box(NamedTuple):
    """A named box with lines of text below its name; *kind* is `box` or `outside`."""

    x: float
    y: float
    width: float
    height: float
    name: str
    text: tuple[str, ...] = ()
    kind: str = "box"

    def at(self, side: Side, part: float) -> tuple[float, float]:
        """Return the point on *side*, *part* of the way along it."""
        right, down, out_x, _ = _SIDES[side]
        across, along = (right, part) if out_x else (part, down)
        return self.x + across * self.width, self.y + along * self.height


class End(NamedTuple):
    """Where an arrow meets a box: on which side, and how far along it."""

    box: Box
    side: Side
    part: float = 0.5


class Arrow(NamedTuple):
    """A curve from one box to another; *pull* is how far it leaves the boxes before it turns.

    *shift* moves the label from the middle of the curve. *kind* is empty or `other`.
    """

    start: End
    end: End
    label: tuple[str, ...] = ()
    pull: float | None = None
    shift: tuple[float, float] = (0, 0)
    kind: str = ""


def svg(
    boxes: Iterable[Box], arrows: Iterable[Arrow], *, title: str, width: int, height: int
) -> str:
    """Return the picture; *title* is read out by a screen reader."""
    drawn = [_arrow(arrow) for arrow in arrows]
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "<defs>",
            *(_head(name) for name in ("head", "other")),
            "</defs>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9"/>',
            *map(_box, boxes),
            *(path for path, _ in drawn),
            *(label for _, label in drawn if label),
            "</svg>\n",
        ]
    )


def _head(name: str) -> str:
    kind = "head" if name == "head" else "head other"
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
        f' markerHeight="7" orient="auto"><path class="{kind}" d="M0,0 L10,5 L0,10 z"/></marker>'
    )


def _box(box: Box) -> str:
    middle = box.x + box.width / 2
    top = box.y + box.height / 2 - len(box.text) * _LINE / 2 + 5
    size = f'width="{box.width:g}" height="{box.height:g}"'
    drawn = [f'<rect class="{box.kind}" x="{box.x:g}" y="{box.y:g}" {size} rx="7"/>']
    for number, line in enumerate((box.name, *box.text)):
        kind = "" if number else ' class="name"'
        y = top + number * _LINE
        drawn.append(f'<text{kind} x="{middle:g}" y="{y:g}">{escape(line)}</text>')
    return "\n".join(drawn)


def _arrow(arrow: Arrow) -> tuple[str, str]:
    """Return the curve, and its label, which is drawn over all curves."""
    (x1, y1), (x2, y2) = (end.box.at(end.side, end.part) for end in (arrow.start, arrow.end))
    pull = hypot(x2 - x1, y2 - y1) / 3 if arrow.pull is None else arrow.pull
    (_, _, right1, down1), (_, _, right2, down2) = _SIDES[arrow.start.side], _SIDES[arrow.end.side]
    ax, ay, bx, by = x1 + pull * right1, y1 + pull * down1, x2 + pull * right2, y2 + pull * down2
    kinds = [arrow.kind] if arrow.kind else []
    curve = f"M{x1:g},{y1:g} C{ax:g},{ay:g} {bx:g},{by:g} {x2:g},{y2:g}"
    ends = f'data-from="{arrow.start.box.name}" data-to="{arrow.end.box.name}"'
    path = f'<path {ends} class="{" ".join(("arrow", *kinds))}" d="{curve}"/>'
    middle = (x1 + 3 * ax + 3 * bx + x2) / 8 + arrow.shift[0]
    first = (y1 + 3 * ay + 3 * by + y2) / 8 + arrow.shift[1] + 4 - _LINE * len(arrow.label[1:]) / 2
    label = "\n".join(
        f'<text class="{" ".join(("label", *kinds))}" x="{middle:g}"'
        f' y="{first + number * _LINE:g}">{escape(line)}</text>'
        for number, line in enumerate(arrow.label)
    )
    return path, label
