"""Time as something that is handed in, so that tests can move it, and how long to wait."""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Protocol


class Clock(Protocol):
    """What reads the time and waits."""

    def monotonic(self) -> float:
        """Return seconds since some point in this boot; for durations."""
        ...

    def uptime(self) -> float:
        """Return seconds since the machine booted, sleep included; to compare after a restart."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch; for people alone, because it may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def uptime(self) -> float:
        """Return CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)


def backoff(first: float, last: float) -> Iterator[float]:
    """Yield delays in seconds without end: about *first*, then doubled, never above *last*.

    Each is drawn from the upper half of its step, so that the daemons of a thousand nodes do not
    try again at the same moment.
    """
    step = min(first, last)
    while True:
        yield random.uniform(step / 2, step)  # noqa: S311 - spreads load, guards no secret
        step = min(step * 2, last)
