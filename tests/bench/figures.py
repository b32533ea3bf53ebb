"""What was measured: samples, their percentiles, and the budget they are held against."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

_COLUMNS = ("figure", "unit", "n", "p50", "p99", "budget", "")


class Figure(Struct, frozen=True, kw_only=True):
    """One quantity. `budget` has a limit for p50, for p99, for both, or for neither."""

    name: str
    samples: Sequence[float]
    unit: str = "ms"
    budget: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def p50(self) -> float:
        return percentile(self.samples, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.samples, 0.99)

    @property
    def within(self) -> bool | None:
        """Tell whether every limit is kept; None where there is none."""
        if not self.budget:
            return None
        seen = {"p50": self.p50, "p99": self.p99}
        return all(seen[which] <= limit for which, limit in self.budget.items())


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
            text.ljust(width) if place in {0, 1, 5} else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    notes = [f"{each.name}: {each.note}" for each in figures if each.note]
    return "\n".join([*lines, "", *notes])


def save(figures: Sequence[Figure], path: Path) -> None:
    """Write the figures for programs, as a map by name."""
    content: dict[str, dict[str, Any]] = {
        each.name: {
            "unit": each.unit,
            "n": len(each.samples),
            "p50": round(each.p50, 4),
            "p99": round(each.p99, 4),
            "budget": {which: round(limit, 4) for which, limit in each.budget.items()} or None,
        }
        | ({"note": each.note} if each.note else {})
        for each in figures
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _row(figure: Figure) -> tuple[str, ...]:
    verdict = {None: "", True: "met", False: "MISSED"}[figure.within]
    budget = ", ".join(f"{which} {limit:.3g}" for which, limit in figure.budget.items())
    return (
        figure.name,
        figure.unit,
        str(len(figure.samples)),
        f"{figure.p50:.3f}",
        f"{figure.p99:.3f}",
        budget,
        verdict,
    )
