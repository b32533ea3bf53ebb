"""The time that a simulated kubelet waits by; tests hand in one that they turn."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What tells durations and waits."""

    def monotonic(self) -> float:
        """Return seconds since some point."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        ...


class RealClock:
    """The machine's."""

    def monotonic(self) -> float:
        """Return seconds since some point in this boot."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)
