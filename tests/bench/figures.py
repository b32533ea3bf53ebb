"""What was measured: samples, their percentiles, and the reach and the floor beside them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

_COLUMNS = ("figure", "unit", "n", "p50", "p99", "reach", "floor", "")
_LEFT = {0, 1, 7}


class Floor(Struct, frozen=True, kw_only=True):
    """What no program can do without, measured in the same run: `what` it is, and its samples."""

    what: str
    samples: Sequence[float]

    @property
    def p50(self) -> float:
        """Return the median."""
        return percentile(self.samples, 0.50)


class Figure(Struct, frozen=True, kw_only=True):
    """One quantity. `reach` is what its `judged` percentile should be at most; None: no limit."""

    name: str
    samples: Sequence[float]
    unit: str = "ms"
    reach: float | None = None
    judged: Literal["p50", "p99"] = "p50"
    floor: Floor | None = None
    note: str = ""

    @property
    def p50(self) -> float:
        """Return the median."""
        return percentile(self.samples, 0.50)

    @property
    def p99(self) -> float:
        """Return what 99 of 100 samples do not exceed."""
        return percentile(self.samples, 0.99)

    @property
    def within(self) -> bool | None:
        """Tell whether the reach is kept; None where there is none."""
        if self.reach is None:
            return None
        return (self.p50 if self.judged == "p50" else self.p99) <= self.reach


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least *share* of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def show(figures: Sequence[Figure]) -> str:
    """Return the table for people, with the notes below it."""
    rows = [_COLUMNS, *map(_row, figures)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if place in _LEFT else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    notes: dict[str, list[str]] = {}
    for each in figures:
        notes.setdefault(_note(each), []).append(each.name)
    told = [f"{', '.join(names)}: {text}" for text, names in notes.items() if text]
    return "\n".join([*lines, "", *told])


def brief(figure: Figure) -> str:
    """Return one line that tells how it came out."""
    told = f"{figure.name} {figure.p50:.3f} {figure.unit}".rstrip()
    return told if figure.within is None else f"{told}, {'met' if figure.within else 'MISSED'}"


def save(figures: Sequence[Figure], failures: Mapping[str, str], path: Path) -> None:
    """Write the figures for programs, as a map by name; one that failed has only its `error`."""
    content = {each.name: _row_of_json(each) for each in figures}
    content |= {name: {"error": reason} for name, reason in failures.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _row_of_json(figure: Figure) -> dict[str, Any]:
    floor = figure.floor
    return {
        "unit": figure.unit,
        "n": len(figure.samples),
        "p50": round(figure.p50, 4),
        "p99": round(figure.p99, 4),
        "reach": None if figure.reach is None else round(figure.reach, 4),
        "judged": figure.judged,
        "within": figure.within,
        "floor": None if floor is None else round(floor.p50, 4),
        "floor_is": "" if floor is None else floor.what,
        "note": figure.note,
    }


def _note(figure: Figure) -> str:
    floor = "" if figure.floor is None else f"floor: {figure.floor.what}"
    return "; ".join(filter(None, (figure.note, floor)))


def _row(figure: Figure) -> tuple[str, ...]:
    verdict = {None: "", True: "met", False: "MISSED"}[figure.within]
    reach = "" if figure.reach is None else f"{figure.judged} {figure.reach:.3g}"
    return (
        figure.name,
        figure.unit,
        str(len(figure.samples)),
        f"{figure.p50:.3f}",
        f"{figure.p99:.3f}",
        reach,
        "" if figure.floor is None else f"{figure.floor.p50:.3f}",
        verdict,
    )
