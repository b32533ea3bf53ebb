"""Shows rows as a table for people, or as JSON for programs."""

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from holdfast.model.node.memory import sized
from holdfast.model.text import printable

Row = dict[str, Any]
Rows = list[Row]

_TIMES = frozenset({"at", "since"})
_SIZES = frozenset({"limit", "usage", "headroom", "memlock"})


def show(rows: Rows, columns: Sequence[str], output: str) -> None:
    """Print *rows*: the *columns* of them as a table, or all that they say as JSON."""
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        say(*table(rows, columns).split("\n"))


def say(*lines: str, error: bool = False) -> None:
    """Print each of *lines* as one line, whatever the names in it are; *error*: to stderr."""
    for line in lines:
        click.echo(printable(line), err=error)


def table(rows: Rows, columns: Sequence[str]) -> str:
    """Return *columns* of *rows*, aligned, under a line of headings."""
    cells = [[column.upper() for column in columns]]
    cells += [[_cell(column, row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def drift_line(each: Row) -> str:
    """Return one line for a disagreement between the ledger, kubelet and the kernel."""
    text = f"{each['subject']}: {each['one']}, but {each['other']}; {each['advice']}"
    return f"drift  {each['kind']}: {_cell('drift', text)}"


def mark_line(mark: Row) -> str:
    """Return one line for what a person withholds: what, since when, who asked, and why."""
    what = f"QUARANTINED {mark['device']} by hand" if mark["device"] else "DRAINING"
    asked = f"since {_cell('since', mark['since'])}, asked by uid {mark['uid']}, pid {mark['pid']}"
    return f"{what} {asked}" + (f": {_cell('reason', mark['reason'])}" if mark["reason"] else "")


def _cell(column: str, value: object) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column in _TIMES and isinstance(value, (int, float)):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if column in _SIZES and isinstance(value, int):
        return sized(value)
    if isinstance(value, list):
        return printable(", ".join(map(str, value)))
    return printable(str(value))
