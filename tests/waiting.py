"""Waiting for a condition, with a limit that is generous because only a failure meets it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

_SHORTEST, _LONGEST = 0.005, 0.05
"""Seconds between two looks."""


async def until(predicate: Callable[[], object], *, limit: float = 60.0, what: str = "") -> None:
    """Return once *predicate* is true; fail after *limit* seconds, saying *what* did not come."""
    deadline, looks = time.monotonic() + limit, pauses()
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(limit, what))
        await asyncio.sleep(next(looks))


def wait_until(
    predicate: Callable[[], object],
    *,
    limit: float = 60.0,
    what: str = "",
    longest: float = _LONGEST,
) -> None:
    """Do as `until` does, where there is no loop; look at least every *longest* seconds."""
    deadline, looks = time.monotonic() + limit, pauses(longest=longest)
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(limit, what))
        time.sleep(next(looks))


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Have *work* run beside the block, and cancel it at its end; raise what it failed with."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


def pauses(shortest: float = _SHORTEST, longest: float = _LONGEST) -> Iterator[float]:
    """Yield the seconds until the next look: a tenth of what was waited already, within bounds.

    To look takes time from whoever is to make the condition true.
    """
    began = time.monotonic()
    while True:
        yield min(max(shortest, (time.monotonic() - began) / 10), longest)


def _complaint(limit: float, what: str) -> str:
    return f"waited {limit:g} s in vain for {what or 'a condition'}"
