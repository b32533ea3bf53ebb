"""Formats the readiness checks: lines for people, JSON for programs."""

import json
import time
from collections.abc import Iterable
from typing import Any

from holdfast.model.node.readiness import Check
from holdfast.model.text import printable
from holdfast.telemetry.board import Readiness

Row = dict[str, Any]


def check_rows(readiness: Readiness, now: float | None = None) -> list[Row]:
    """Return one row for each check.

    ``forSeconds``: how long it has passed or failed; ``seenSecondsAgo``: the age of its fact, null
    for a fact that is always current.
    """
    now = time.monotonic() if now is None else now
    return [_row(each.check, now, since=each.since) for each in readiness.posted]


def public_rows(readiness: Readiness, now: float | None = None) -> list[Row]:
    """Return the same rows, with only the public part of each reason."""
    rows = check_rows(readiness, now)
    return [
        {**row, "reason": _public(each.check)}
        for row, each in zip(rows, readiness.posted, strict=True)
    ]


def freshness(readiness: Readiness, stall: float, now: float | None = None) -> Row:
    """Return the check that the other checks are not outdated."""
    now = time.monotonic() if now is None else now
    age = now - readiness.at
    reason = "" if age <= stall else f"the event loop last updated them {age:.1f} s ago"
    check = Check(
        name="checks up to date",
        passes=age <= stall,
        reason=reason,
        public=reason,
        seen=readiness.at,
    )
    return _row(check, now, since=None)


def as_text(rows: Iterable[Row]) -> str:
    """Return one line for each row: `ok     ledger (for 312 s, seen 4 s ago): reason`."""
    return "".join(f"{check_line(row)}\n" for row in rows)


def as_json(rows: Iterable[Row]) -> str:
    """Return the rows as an object, with whether all pass."""
    checks = list(rows)
    ready = all(row["passes"] for row in checks)
    return json.dumps({"ready": ready, "checks": checks}) + "\n"


def check_line(row: Row) -> str:
    """Return a row as a line for people."""
    ages = []
    if row.get("forSeconds") is not None:
        ages.append(f"for {row['forSeconds']:.0f} s")
    if row.get("seenSecondsAgo") is not None:
        ages.append(f"seen {row['seenSecondsAgo']:.0f} s ago")
    sign = "ok    " if row["passes"] else "FAILED"
    age = f" ({', '.join(ages)})" if ages else ""
    line = f"{sign} {row['name']}{age}" + (f": {row['reason']}" if row["reason"] else "")
    return printable(line)


def _public(check: Check) -> str:
    if check.reason == check.public:
        return check.public
    more = "`holdfast status` on the node has the details"
    return f"{check.public}; {more}" if check.public else more


def _row(check: Check, now: float, *, since: float | None) -> Row:
    return {
        "name": check.name,
        "passes": check.passes,
        "reason": check.reason,
        "forSeconds": None if since is None else round(max(0.0, now - since), 1),
        "seenSecondsAgo": None if check.seen is None else round(max(0.0, now - check.seen), 1),
    }
