"""Writes the table of what was measured into a page, between its two marks.

python -m bench.page build/bench.json docs/decisions/speed.md
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_BEGIN, _END = "<!-- make bench writes this table -->\n", "<!-- until here -->\n"
_HEAD = "| figure | median | 99 of 100 | reach | floor | |\n|---|---|---|---|---|---|\n"


def with_table(page: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return *page* with the table of *figures*, as `bench.figures.save` writes them."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page lacks the lines {_BEGIN.strip()} and {_END.strip()}")
    return "".join([before, begin, _HEAD, *_rows(figures), end, after])


def _rows(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, figure in figures.items():
        if "error" in figure:
            yield f"| `{name}` | not measured | | | | |\n"
            continue
        unit = f" {figure['unit']}".rstrip()
        cells = [f"{_short(figure[each])}{unit}" for each in ("p50", "p99")]
        if figure["n"] == 1:
            cells[1] = ""
        cells += [
            "" if figure["reach"] is None else f"{figure['judged']} {_short(figure['reach'])}",
            "" if figure["floor"] is None else _short(figure["floor"]),
            {None: "", True: "met", False: "missed"}[figure["within"]],
        ]
        yield f"| `{name}` | {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |")


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def main(figures: Path, page: Path) -> None:
    """Write the table of the file *figures* into the file *page*."""
    page.write_text(with_table(page.read_text("utf-8"), json.loads(figures.read_text("utf-8"))))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
