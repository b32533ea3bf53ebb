"""The board of checks that the probes read from another thread, and how it is shown."""

import json
import time
from collections.abc import Collection, Iterable
from typing import Any

from msgspec import Struct

from holdfast.model.node.readiness import ReadinessCheck, check_openly
from holdfast.model.text import printable

Row = dict[str, Any]
_UP = "up"
"""The only check while the daemon starts or stops."""


class CheckState(Struct, frozen=True, kw_only=True):
    """One check, and since when it passes or fails (monotonic seconds)."""

    check: ReadinessCheck
    since: float


class Readiness(Struct, frozen=True, kw_only=True):
    """All checks, as published at `at` (monotonic seconds)."""

    posted: tuple[CheckState, ...]
    at: float


class Board:
    """The loop's heartbeat and the readiness checks. Only the loop writes them."""

    def __init__(self) -> None:
        """Start with a fresh heartbeat and nothing ready."""
        self._beat = time.monotonic()
        self.readiness = Readiness(posted=(), at=self._beat)
        """The latest checks."""
        self.down("the daemon is starting")

    def beat(self) -> None:
        """Record that the loop runs."""
        self._beat = time.monotonic()

    @property
    def silent_for(self) -> float:
        """Return the seconds since the last heartbeat."""
        return time.monotonic() - self._beat

    def down(self, reason: str) -> None:
        """Publish that the daemon is starting or stopping, and its current step."""
        self.publish((check_openly(_UP, reason),))

    def renew(self, checks: tuple[ReadinessCheck, ...]) -> None:
        """As `publish`, but leave it at what `down` said while that stands."""
        if all(each.check.name != _UP for each in self.readiness.posted):
            self.publish(checks)

    def publish(self, checks: tuple[ReadinessCheck, ...]) -> None:
        """Replace the checks; a check whose result is the same keeps its age."""
        now = time.monotonic()
        before = {each.check.name: each for each in self.readiness.posted}
        posted = []
        for check in checks:
            was = before.get(check.name)
            same = was is not None and was.check.passes == check.passes
            posted.append(CheckState(check=check, since=was.since if was and same else now))
        self.readiness = Readiness(posted=tuple(posted), at=now)


def check_rows(readiness: Readiness) -> list[Row]:
    """Return one row for each check.

    ``forSeconds``: how long it has passed or failed; ``seenSecondsAgo``: the age of its fact, null
    for a fact that is always current.
    """
    now = time.monotonic()
    return [_row(each.check, now, since=each.since) for each in readiness.posted]


def public_rows(readiness: Readiness) -> list[Row]:
    """Return the same rows, with only the public part of each reason."""
    both = zip(check_rows(readiness), readiness.posted, strict=True)
    return [{**row, "reason": _public(each.check)} for row, each in both]


def freshness(board: Board, stall: float) -> Row:
    """Return the check that the other checks are not outdated: whoever makes them runs."""
    silent = board.silent_for
    reason = "" if silent <= stall else f"the event loop has not run for {silent:.1f} s"
    seen = board.readiness.at
    return _row(check_openly("checks up to date", reason, seen=seen), time.monotonic(), since=None)


def as_text(rows: Iterable[Row], unknown: Collection[str] = ()) -> str:
    """Return one line for each row: `ok     ledger (for 312 s, seen 4 s ago): reason`.

    *unknown* are checks that were to be excluded and are not there.
    """
    lines = [check_line(row) for row in rows]
    lines += [f"exclude: there is no check {each!r} now" for each in sorted(unknown)]
    return "".join(f"{line}\n" for line in lines)


def as_json(rows: Iterable[Row], unknown: Collection[str] = ()) -> str:
    """Return the same as an object, with whether all pass."""
    checks = list(rows)
    ready = all(row["passes"] for row in checks)
    unknowns = {"unknownExcludes": sorted(unknown)} if unknown else {}
    return json.dumps({"ready": ready, "checks": checks, **unknowns}) + "\n"


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


def _public(check: ReadinessCheck) -> str:
    if check.reason == check.public:
        return check.public
    more = "`holdfast status` on the node has the details"
    return f"{check.public}; {more}" if check.public else more


def _row(check: ReadinessCheck, now: float, *, since: float | None) -> Row:
    return {
        "name": check.name,
        "passes": check.passes,
        "reason": check.reason,
        "forSeconds": None if since is None else round(max(0.0, now - since), 1),
        "seenSecondsAgo": None if check.seen is None else round(max(0.0, now - check.seen), 1),
    }
