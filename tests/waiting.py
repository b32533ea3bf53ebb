"""Waiting for a condition, with a limit that is generous because only a failure meets it."""

import asyncio
import time
from collections.abc import Callable

_STEP = 0.005


async def until(predicate: Callable[[], object], *, limit: float = 60.0, what: str = "") -> None:
    """Return once *predicate* is true; fail after *limit* seconds, saying *what* did not come."""
    deadline = time.monotonic() + limit
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(limit, what))
        await asyncio.sleep(_STEP)


def wait_until(
    predicate: Callable[[], object], *, limit: float = 60.0, what: str = "", step: float = _STEP
) -> None:
    """Do as `until` does, where there is no loop; ask every *step* seconds."""
    deadline = time.monotonic() + limit
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(limit, what))
        time.sleep(step)


def _complaint(limit: float, what: str) -> str:
    return f"waited {limit:g} s in vain for {what or 'a condition'}"
