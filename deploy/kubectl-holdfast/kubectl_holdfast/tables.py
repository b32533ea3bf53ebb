"""Lays out tables of at most 100 columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubectl_holdfast.text import printable

WIDTH = 100

_GAP = "  "
_CUT = "\u2026"
_LEAST = 30
"""Columns that a free text keeps before names are cut."""
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its key in the rows, and what of a long cell is cut off.

    The key is its heading as well. A `text` loses its end, a name its beginning: names of nodes and
    devices differ at their ends.
    """

    key: str
    text: bool = False


def table(
    columns: Sequence[Column], rows: Iterable[dict[str, str]], width: int | None = WIDTH
) -> list[str]:
    """Return *rows* as lines below a line of headings, at most *width* wide; None: not cut."""
    cells = [[each.key.upper() for each in columns]]
    cells += [[printable(row.get(each.key, "")) or "-" for each in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        widths = _fitted(columns, widths, width - len(_GAP) * (len(columns) - 1))
    return [
        _GAP.join(
            cut(cell, most, end=column.text or number == 0).ljust(most)
            for cell, most, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for number, line in enumerate(cells)
    ]


def cut(text: str, most: int, *, end: bool = True) -> str:
    """Return *text* in *most* characters: without its end, or without its beginning."""
    if len(text) <= most:
        return text
    return text[: most - 1] + _CUT if end else _CUT + text[len(text) - most + 1 :]


def age(seconds: float) -> str:
    """Return a duration for people: ``4 s``, ``3 h``."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Return the widths in *room*: texts give way first, then the widest names."""
    texts = [number for number, each in enumerate(columns) if each.text]
    widths = _shrunk(widths, texts, room, least=_LEAST)
    return _shrunk(widths, range(len(widths)), room, least=1)


def _shrunk(widths: list[int], which: Iterable[int], room: int, *, least: int) -> list[int]:
    """Return *widths* with the widest of *which* made narrower until all fit, or have *least*."""
    which, widths = list(which), list(widths)
    while sum(widths) > room and which:
        widest = max(which, key=lambda number: widths[number])
        if widths[widest] <= least:
            break
        widths[widest] -= 1
    return widths
