"""Prints answers: tables and lines for people, JSON for programs."""

import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from holdfast.model.text import printable, sized

Row = dict[str, Any]
Rows = list[Row]

_TIMES = frozenset({"at", "since"})
_SIZES = frozenset({"limit", "usage", "headroom", "memlock"})
_RESOURCE = ("name", "devices", "healthy", "offered", "locked")
_CLAIM = ("claim", "phase", "pods", "devices", "adminDevices", "waits")
CLAIM_COLUMNS = ("claim", "claimPhase", "claimPods")
_WIDTH = 100
_NO_BREAK = "\u00a0"


_TAKEN_UP = {
    "live": "in use now",
    "restart": "in use after a restart in the same process, which begins now; locks stay",
}


def reload_lines(answer: Row) -> list[str]:
    """Return a line for each key that differs, with how it is taken up."""
    if not (answer["changed"] or answer["problem"]):
        return ["configuration unchanged"]
    # A restart takes up everything, and with a problem nothing is.
    how = "restart" if "restart" in answer["changed"] else ""
    return [
        f"{path}: {'not in use' if answer['problem'] else _TAKEN_UP[how or each]}"
        for each, paths in answer["changed"].items()
        for path in paths
    ]


def show(rows: Rows, columns: Sequence[str], output: str) -> None:
    """Print *rows*: their *columns* as a table, or everything as JSON.

    The columns of claims are left out where no row has one.
    """
    if output == "json":
        show_json(rows)
    else:
        if not any(row.get("claim") for row in rows):
            columns = [each for each in columns if each not in CLAIM_COLUMNS]
        say(*table(rows, columns).split("\n"))


def show_json(content: object) -> None:
    """Print *content* as JSON."""
    import json  # noqa: PLC0415 - --help does without

    click.echo(json.dumps(content, indent=2))


def say(*lines: str, error: bool = False) -> None:
    """Print each of *lines* as one line, control characters escaped; *error*: to stderr."""
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


def status_lines(report: Row, *, every: bool = False) -> list[str]:
    """Return the status as lines: what is wrong first, then the devices, then what is well.

    The checks that pass share a paragraph; *every* gives each a line, with its age.
    """
    from holdfast.telemetry.readyz import check_line  # noqa: PLC0415 - no other command needs it

    failed = [each for each in report["checks"] if not each["passes"]]
    passed = [each for each in report["checks"] if each["passes"]]
    lines = [_heading(report, failed=len(failed))]
    lines += map(check_line, failed)
    lines += map(_mark_line, report["byHand"])
    lines += map(_drift_line, report["drift"])
    lines += map(_rule_line, report["rules"])
    if report["noDevices"]:
        lines.append("NO DEVICES on this node: `holdfast doctor` looks for the cause")
    lines += table(report["resources"], _RESOURCE).split("\n")
    if report["claims"]:
        administrators = any(row["adminDevices"] for row in report["claims"])
        columns = [each for each in _CLAIM if each != "adminDevices" or administrators]
        lines += table(report["claims"], columns).split("\n")
    if every:
        lines += map(check_line, passed)
    elif passed:
        lines += passing(each["name"] for each in passed)
    return lines


def passing(names: Iterable[str]) -> list[str]:
    """Return the names of what is well as one paragraph, broken between names only."""
    text = ", ".join(printable(each).replace(" ", _NO_BREAK) for each in names)
    wrapped = textwrap.wrap(
        f"ok     {text}", width=_WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in wrapped]


def _heading(report: Row, *, failed: int) -> str:
    count = len(report["checks"])
    state = f"NOT READY, {failed} of {count} checks fail" if failed else f"ready, {count} checks"
    if report["pid"] is None:
        return f"holdfast is down: {state}"
    return f"holdfast {report['version']}, pid {report['pid']}: {state}"


def _drift_line(each: Row) -> str:
    """Return one line for a disagreement between the ledger, kubelet and the kernel."""
    text = f"{each['subject']}: {each['one']}, but {each['other']}; {each['advice']}"
    return f"drift  {each['kind']}: {_cell('drift', text)}"


def _rule_line(rule: Row) -> str:
    """Return one line for a device that a rule leaves out, or for a rule that does nothing."""
    what = f"{rule['device']}: {rule['reason']}" if rule["device"] else rule["reason"]
    return f"rule   {_cell('reason', what)}"


def _mark_line(mark: Row) -> str:
    """Return one line for a quarantine or a drain by hand: since when, who asked, and why."""
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
