"""Time as something that is handed in, so that tests can move it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What reads the time and waits."""

    def monotonic(self) -> float:
        """Return seconds since some point in this boot; for durations."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch; for people and for the ledger. It may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)
