"""Draws a recording as a terminal in SVG, in which each line appears when it was written.

A viewer without animations shows the whole story at once.
"""

import re
import textwrap
from collections.abc import Iterator
from html import escape

from pictures.recording import Recording

_SIZE = 13
_COLUMN = 7.8
_ROW = 19
_MARGIN = 18
_BAR = 34

# The time at the start of a line, the names of devices, and processes are set apart by colour.
_TIME = re.compile(r"\s*\d+\.\d\d s\s+")
_SPOKEN = re.compile(
    r"(?P<device>(?:[\w.]+/[\w.]+/)?[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
    r"|(?P<pid>\bpid \d+)"
)

_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       fill: #d7dde5; white-space: pre }
.time { fill: #8b949e } .device { fill: #79c0ff } .pid { fill: #f0b35b }
.prompt { fill: #7ee787 }
.line { animation: appear 0.2s both }
@keyframes appear { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }
""".strip()


def svg(recording: Recording, *, title: str) -> str:
    """Return the picture of *recording*; *title* is read out by a screen reader."""
    parts: list[str] = []
    row = 1
    for at, text in recording.lines:
        rows = list(_wrapped(text, recording.columns))
        drawn = "".join(_row(each, row + offset) for offset, each in enumerate(rows))
        parts.append(f'<g class="line" style="animation-delay:{at:.2f}s">{drawn}</g>')
        row += len(rows)
    width = round(recording.columns * _COLUMN + 2 * _MARGIN)
    height = _BAR + row * _ROW + _MARGIN
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="9" fill="#161b22" stroke="#444c56"/>',
            *(f'<circle cx="{20 + 18 * n}" cy="17" r="5" fill="#444c56"/>' for n in range(3)),
            _text("$", "prompt", column=0, row=0)
            + _text(recording.command, "told", column=2, row=0),
            *parts,
            "</svg>\n",
        ]
    )


def _wrapped(text: str, columns: int) -> Iterator[tuple[int, str]]:
    """Yield the rows of a line with the column of each; what follows stands below what is told."""
    started = _TIME.match(text)
    indent = started.end() if started else len(text) - len(text.lstrip())
    for row in textwrap.wrap(
        text, columns, subsequent_indent=" " * indent, break_on_hyphens=False
    ) or [""]:
        told = row.lstrip()
        yield len(row) - len(told), told


def _row(row: tuple[int, str], number: int) -> str:
    column, text = row
    started = _TIME.match(text)
    end = started.end() if started else 0
    parts = [_text(text[:end], "time", column=column, row=number)]
    for found in _SPOKEN.finditer(text, end):
        parts.append(_text(text[end : found.start()], "told", column=column + end, row=number))
        parts.append(
            _text(found[0], found.lastgroup or "", column=column + found.start(), row=number)
        )
        end = found.end()
    return "".join((*parts, _text(text[end:], "told", column=column + end, row=number)))


def _text(text: str, kind: str, *, column: int, row: int) -> str:
    """Return text that begins at *column*; each part is as wide as it has characters in any font.

    One element per colour: not every viewer spreads an element that has several.
    """
    shown = text.strip()
    if not shown:
        return ""
    x = _MARGIN + (column + len(text) - len(text.lstrip())) * _COLUMN
    y = _BAR + row * _ROW + _SIZE
    width = len(shown) * _COLUMN
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y}" textLength="{width:.1f}">'
        f"{escape(shown, quote=False)}</text>\n"
    )
