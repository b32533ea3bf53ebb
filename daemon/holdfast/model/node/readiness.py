"""Readiness checks: what each part says of itself, and the ways in which most of them are made."""

from msgspec import Struct

_SLACK = 60.0
"""More than the deadlines of all lanes that a scan needs: a later result means it hangs."""


class ReadinessCheck(Struct, frozen=True, kw_only=True):
    """One readiness check; `reason` says what is wrong, or what was seen.

    `public` is the part of the reason that the HTTP port may show to anybody: fixed texts and
    numbers. The rest can name processes, pods and paths. `seen` is when the fact was last learned
    (monotonic seconds), None for a fact that is always current.
    """

    name: str
    passes: bool
    reason: str = ""
    public: str = ""
    seen: float | None = None


def check(
    name: str, problem: str, *, public: str = "", seen: float | None = None
) -> ReadinessCheck:
    """Return the check that fails for any *problem*, of which everybody may know *public*."""
    return ReadinessCheck(name=name, passes=not problem, reason=problem, public=public, seen=seen)


def check_openly(name: str, problem: str, *, seen: float | None = None) -> ReadinessCheck:
    """Return the check that fails for any *problem*, all of which is public."""
    return check(name, problem, public=problem, seen=seen)


def check_result(
    name: str, problem: str, *, at: float | None, now: float, within: float
) -> ReadinessCheck:
    """Return the check of a part that repeats something: its latest *problem*, empty for none.

    *at* is when it last had a result, None before the first. A result more than *within* seconds
    old means that the part has stopped.
    """
    if problem:
        return check(name, problem, seen=at)
    if at is None:
        return check_openly(name, "no result yet")
    old = f"the last result is {now - at:.0f} s old, which is too old"
    return check_openly(name, old if now - at > within else "", seen=at)


def longest_wait(interval: float) -> float:
    """Return after how many seconds something that is done at every *interval* must be done."""
    return 2 * interval + _SLACK
