"""Draws curves over time into a PNG, one panel below the other."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from PIL import Image, ImageDraw

_WIDTH, _PANEL, _TOP = 900, 150, 34
_LEFT, _RIGHT, _GAP = 70, 20, 34
_INK, _GRID, _CURVE = (40, 40, 40), (220, 220, 220), (31, 119, 180)


class Panel(Struct, frozen=True, kw_only=True):
    """One curve: `points` are (seconds, value)."""

    label: str
    points: Sequence[tuple[float, float]]


def draw(path: Path, *, title: str, panels: Sequence[Panel]) -> None:
    """Write a PNG with *panels*, whose values all begin at zero and share one axis of time."""
    image = Image.new("RGB", (_WIDTH, _TOP + len(panels) * (_PANEL + _GAP)), "white")
    pen = ImageDraw.Draw(image)
    pen.text((_LEFT, 10), title, fill=_INK)
    for place, panel in enumerate(panels):
        _draw(pen, panel, top=_TOP + place * (_PANEL + _GAP))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def _draw(pen: ImageDraw.ImageDraw, panel: Panel, *, top: int) -> None:
    most = max((value for _, value in panel.points), default=0.0) * 1.1 or 1.0
    until = max((at for at, _ in panel.points), default=0.0) or 1.0
    width = _WIDTH - _LEFT - _RIGHT
    pen.text((_LEFT, top), panel.label, fill=_INK)
    bottom = top + _PANEL
    height = _PANEL - 18
    for quarter in range(5):
        y = bottom - height * quarter / 4
        pen.line([(_LEFT, y), (_LEFT + width, y)], fill=_GRID)
        pen.text((6, y - 6), f"{most * quarter / 4:.1f}", fill=_INK)
        pen.text(
            (_LEFT + width * quarter / 4 - 8, bottom + 4), _clock(until * quarter / 4), fill=_INK
        )
    curve = [
        (_LEFT + width * at / until, bottom - height * value / most) for at, value in panel.points
    ]
    if len(curve) > 1:
        pen.line(curve, fill=_CURVE, width=2)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
