"""Time as something that is handed in, so that tests can move it, and turns of regular looks."""

import asyncio
import math
import random
import time
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T", bound=Hashable)


class Clock(Protocol):
    """What reads the time and waits."""

    def monotonic(self) -> float:
        """Return seconds since some point in this boot; for durations."""

    def uptime(self) -> float:
        """Return seconds since the machine booted, sleep included; to compare after a restart."""

    def wall(self) -> float:
        """Return seconds since the epoch; for people alone, because it may jump."""

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""


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


class Turns(Generic[T]):
    """Tells whose turn it is, so that the cost of one look does not grow with the number of things.

    With *n* things that are asked about every *s* seconds, each has its turn after *pause* seconds
    or ``n / at_most * s``, whichever is longer.
    """

    def __init__(self, clock: Clock, *, at_most: int, pause: float = 0.0) -> None:
        """Give *at_most* things their turn at once, each of them every *pause* seconds at most."""
        self._clock = clock
        self._at_most = at_most
        self._pause = pause
        self._had: dict[T, float] = {}
        """When each had its turn, in monotonic seconds."""

    def next(self, things: Iterable[T]) -> list[T]:
        """Return those of *things* whose turn it is, who waited longest first, and note it.

        What is not among *things* is forgotten.
        """
        now, wanted = self._clock.monotonic(), dict.fromkeys(things)
        had = {each: self._had.get(each, -math.inf) for each in wanted}
        longest = sorted(wanted, key=had.__getitem__)[: self._at_most]
        due = [each for each in longest if now - had[each] >= self._pause]
        self._had = had | dict.fromkeys(due, now)
        return due
