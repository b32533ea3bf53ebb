"""A Clock that stands still until a test moves it."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from waiting import until

SLEPT = 500_000.0
"""How much longer the machine has been up than awake, in seconds."""


class ManualClock:
    """Its readings move only by `advance`; sleepers wake in the order of their times.

    Each counts from another beginning, so that two of them that are compared show.
    """

    def __init__(self) -> None:
        self._monotonic = 1000.0
        self._wall = 1_700_000_000.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._order = itertools.count()

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep."""
        return len(self._sleepers)

    def monotonic(self) -> float:
        return self._monotonic

    def uptime(self) -> float:
        return self._monotonic + SLEPT

    def wall(self) -> float:
        return self._wall

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        entry = (self._monotonic + seconds, next(self._order), asyncio.Event())
        heapq.heappush(self._sleepers, entry)
        try:
            await entry[2].wait()
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    def shift(self, seconds: float) -> None:
        """Move time on without running anybody: for tests that have no loop."""
        self._monotonic += seconds
        self._wall += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            heapq.heappop(self._sleepers)[2].set()

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an operator does."""
        self._wall += seconds

    async def advance(self, seconds: float) -> None:
        """Move time on, stopping at each sleeper on the way to let it, and what it wakes, run."""
        end = self._monotonic + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.shift(max(0.0, self._sleepers[0][0] - self._monotonic))
            await _settle()
        self.shift(end - self._monotonic)
        await _settle()

    async def run_until(self, predicate: Callable[[], object]) -> None:
        """Move time on, second by second, until *predicate* is true.

        For those that begin to sleep only after something real, as an answer, has come to them.
        """

        def passed() -> object:
            self.shift(1.0)
            return predicate()

        await until(passed)


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
