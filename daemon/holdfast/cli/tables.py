"""Prints answers: tables and lines for people, JSON and YAML for programs."""

import os
import re
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from holdfast.model.text import printable, sized

Row = dict[str, Any]
Rows = list[Row]
Column = tuple[str, Callable[[Row], str]]
"""A heading, and what a row has below it."""

PROGRAMS = frozenset({"json", "yaml"})
"""The forms that are for programs."""
WIDTH = 100
"""The columns of a terminal that a table for people takes at the most."""

_TIMES = frozenset({"at", "since"})
_SIZES = frozenset({"limit", "usage", "headroom", "memlock"})
_CLAIMS = frozenset({"claim", "claimUid", "claimPhase", "claimPods"})
_NO_BREAK = "\u00a0"
_GAP = "  "
_CUT = "…"
_UID = "[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"
_NAMED = re.compile(r"(?P<name>[^\s/]+/\S+) \((?P<uid>[^\s()]+)\)")
_UNKNOWN = re.compile(rf"(?<=\S) \({_UID}\)")
_AGES = ((172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
_COLOURS = {
    **dict.fromkeys(("free", "ready", "ok", "Healthy"), "green"),
    **dict.fromkeys(("queued", "releasing", "reclaiming", "DRAINING", "WARN"), "yellow"),
    **dict.fromkeys(("quarantined", "foreign", "QUARANTINED", "FAILED", "FAIL"), "red"),
    **dict.fromkeys(("NOT READY", "Unhealthy", "NO DEVICES"), "red"),
}
_WORD = f"(?:{'|'.join(_COLOURS)})"
_SIGN = re.compile(rf"^{_WORD}(?=[ :,]|$)|(?<=  ){_WORD}(?=  |$)|(?<=: ){_WORD}(?=[ ,]|$)")
"""Those words at the start of a line, alone in a cell, or after a colon."""


def show(rows: Rows, output: str | None, short: Callable[[Rows], list[str]]) -> None:
    """Print *rows*: as *short* shows them, in full, or everything for programs."""
    show_report(rows, output, lambda: table(rows) if output and rows else short(rows))


def show_report(report: object, output: str | None, lines: Callable[[], Iterable[str]]) -> None:
    """Print *report* for programs if *output* is a form of theirs, or else *lines* for people."""
    if output in PROGRAMS:
        show_document(report, output)
    else:
        say(*lines())


def show_document(content: object, output: str | None) -> None:
    """Print *content* as YAML, or else as JSON; both are read as the same value."""
    if output == "yaml":
        import yaml  # noqa: PLC0415 - as below

        click.echo(yaml.safe_dump(content, sort_keys=False), nl=False)
        return
    import json  # noqa: PLC0415 - --help does without

    click.echo(json.dumps(content, indent=2))


def say(*lines: str, error: bool = False) -> None:
    """Print each of *lines* as one line, control characters escaped; *error*: to stderr.

    On a terminal the words that say how something stands have a colour.
    """
    coloured = not error and _coloured()
    for line in lines:
        text = printable(line)
        click.echo(_SIGN.sub(_paint, text) if coloured else text, err=error)


def table(rows: Rows) -> list[str]:
    """Return all that *rows*, one at least, have: in full and aligned, under a line of headings."""
    claims = any(row.get("claim") for row in rows)
    columns = [name for name in rows[0] if claims or name not in _CLAIMS]
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    return _lines([[name.upper() for name in columns], *cells], None)


def short_table(rows: Rows, columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table of at most `WIDTH` columns; cells that are cut end with `…`.

    The longest cells are cut first.
    """
    cells = [[printable(cell(row)) or "-" for _, cell in columns] for row in rows]
    return _lines([[heading for heading, _ in columns], *cells], WIDTH)


def aged(seconds: float) -> str:
    """Return a length of time for people: `4 s`, `5 min`, `3 h`, `6 d`."""
    passed = max(0.0, seconds)
    _, size, unit = next(each for each in _AGES if passed >= each[0])
    return f"{int(passed / size)} {unit}"


def ago(moment: object) -> str:
    """Return how long ago a time was; empty where there is none."""
    return aged(time.time() - moment) if isinstance(moment, (int, float)) else ""


class Names:
    """What the pods, claims and devices of one answer are called in the short form."""

    def __init__(self, rows: Rows) -> None:
        """Learn the names from *rows*; each may lack any field."""
        found: dict[str, str] = {}
        for row in rows:
            found |= {row["pod"]: row["podName"]} if row.get("pod") and row.get("podName") else {}
            told = [row.get("claim"), *(row.get("claimPods") or ()), *(row.get("pods") or ())]
            for match in filter(None, map(_NAMED.fullmatch, filter(None, told))):
                found[match["uid"]] = match["name"]
        self._known = found
        alike: dict[str, set[str]] = {}
        for device in {device for row in rows for device in _devices_in(row)}:
            alike.setdefault(device_id(device), set()).add(device)
        self._short = {device: id_ for id_, of in alike.items() if len(of) == 1 for device in of}
        full = {f"{name} ({uid})": name for uid, name in found.items()}
        self._spelled = self._short | found | full
        each = "|".join(re.escape(text) for text in sorted(self._spelled, key=len, reverse=True))
        self._long = re.compile(rf"(?<![\w/-])(?:{each})(?![\w-])" if each else r"(?!)")

    def text(self, text: object) -> str:
        """Return *text* with the names of pods and claims without UIDs, and the ids of devices."""
        named = self._long.sub(lambda found: self._spelled[found[0]], str(text or ""))
        return _UNKNOWN.sub("", named)

    def texts(self, texts: object) -> str:
        """Return each of *texts* so."""
        return ", ".join(map(self.text, texts)) if isinstance(texts, (list, tuple)) else ""

    def pod(self, row: Row) -> str:
        """Return the row's pod: its name, or its UID where the name is not known."""
        return str(row.get("podName") or self._known.get(str(row.get("pod")), row.get("pod") or ""))

    def claim(self, row: Row) -> str:
        """Return the row's claim."""
        found = _NAMED.fullmatch(str(row.get("claim") or ""))
        return found["name"] if found else self.text(row.get("claim"))

    def device(self, row: Row) -> str:
        """Return the row's device: its id, or the full name where two have the same id."""
        return self.called(device_of(row))

    def called(self, device: object) -> str:
        """Return *device* so."""
        return self._short.get(str(device or ""), str(device or ""))

    def owner_columns(self, rows: Rows) -> list[Column]:
        """Return the columns of pods and claims; that of claims only where a row has one."""
        claims = any(row.get("claim") for row in rows)
        return [("POD", self.pod), *([("CLAIM", self.claim)] if claims else [])]


def field(name: str) -> Callable[[Row], str]:
    """Return what gives the field of a row as a cell."""
    return lambda row: _cell(name, row.get(name))


def passing(names: Iterable[str]) -> list[str]:
    """Return the names of what is well as one paragraph, broken between names only."""
    text = ", ".join(printable(each).replace(" ", _NO_BREAK) for each in names)
    wrapped = textwrap.wrap(
        f"ok     {text}", width=WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in wrapped]


def utc(moment: float) -> str:
    """Return a time as UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(moment))


def device_of(row: Row) -> str:
    """Return the full name of the row's device; empty where it has none."""
    if row.get("device") is None and row.get("resource") is not None:
        return f"{row['resource']}/{row.get('id')}"
    return str(row.get("device") or "")


def _devices_in(row: Row) -> list[str]:
    told = row.get("devices")
    listed = told if isinstance(told, list) else ()
    return [device_of(row), *listed, *(row.get("adminDevices") or ())]


def device_id(device: str) -> str:
    """Return the id of a device; its resource has one slash."""
    return device.split("/", 2)[-1]


def _lines(cells: list[list[str]], most: int | None) -> list[str]:
    """Return *cells* as aligned lines, cut so that none is wider than *most*."""
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    if most is not None:
        widths = _fitting(widths, most - len(_GAP) * (len(widths) - 1))
    fitted = [
        [_cut(text, width) for text, width in zip(line, widths, strict=True)] for line in cells
    ]
    return [
        _GAP.join(
            text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in fitted
    ]


def _fitting(widths: list[int], most: int) -> list[int]:
    """Return *widths*, the largest made smaller until their sum is at most *most*."""
    left, fitted = most, list(widths)
    by_size = sorted(range(len(widths)), key=lambda each: widths[each])
    for place, each in enumerate(by_size):
        fitted[each] = min(widths[each], left // (len(widths) - place))
        left -= fitted[each]
    return fitted


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept, room = "", width - _width(_CUT)
    for character in text:
        room -= _width(character)
        if room < 0:
            break
        kept += character
    return kept.rstrip() + _CUT


def _width(text: str) -> int:
    """Return how many columns of a terminal *text* takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _coloured() -> bool:
    """Tell whether to write colours: on a terminal, and where NO_COLOR does not forbid it."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _paint(found: re.Match[str]) -> str:
    return click.style(found[0], fg=_COLOURS[found[0]])


def _cell(column: str, value: object) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column in _TIMES and isinstance(value, (int, float)):
        return utc(value)
    if column in _SIZES and isinstance(value, int):
        return sized(value)
    if isinstance(value, list):
        return printable(", ".join(map(str, value)))
    return printable(str(value))
