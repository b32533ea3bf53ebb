"""Spreads regular looks at many things over time: a few at once, each in its turn."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from holdfast.runtime.clock import Clock

T = TypeVar("T", bound=Hashable)


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
        """When each had its turn, in monotonic seconds, in this order."""

    def next(self, things: Iterable[T]) -> list[T]:
        """Return those of *things* whose turn it is, who waited longest first, and note it.

        What is not among *things* is forgotten.
        """
        now, had, wanted = self._clock.monotonic(), self._had, dict.fromkeys(things)
        for gone in had.keys() - wanted.keys():
            del had[gone]
        due: list[T] = []
        if len(had) < len(wanted):
            due = [each for each in wanted if each not in had][: self._at_most]
        for each, at in had.items():
            if len(due) >= self._at_most or now - at < self._pause:
                break
            due.append(each)
        for each in due:
            had.pop(each, None)
            had[each] = now
        return due
