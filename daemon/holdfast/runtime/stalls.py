"""How long the turns of the event loop take: while one lasts, nothing else in the loop goes on."""

import asyncio
import selectors
import time
from collections.abc import Callable

_WINDOW = 60.0
"""Seconds for which turns are compared before the longest of them becomes the former one."""


class Stalls:
    """The longest turn of a loop within the last minute or two. Any thread may ask for it.

    A turn is all that the loop does between two waits. It begins when the wait was due to end, so
    that a process which gets no CPU shows too. It is timed where the loop waits anyway: a loop that
    has nothing to do is not woken for it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take the time from *monotonic*, in seconds."""
        self._monotonic = monotonic
        self._began: float | None = None
        self._seen = (monotonic(), 0.0, 0.0)
        """Since when turns are compared, the longest since then, and the longest before."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop whose turns are timed."""
        return asyncio.SelectorEventLoop(TimedSelector(self, self._monotonic))

    def turn_began(self, at: float) -> None:
        """Note that a turn began; only the loop's thread calls this."""
        self._began = at

    def turn_ended(self, at: float) -> None:
        """Note that the turn ended, if one had begun; only the loop's thread calls this."""
        if self._began is None:
            return
        took, self._began = at - self._began, None
        since, longest, former = self._seen
        if at - since >= _WINDOW:
            self._seen = (at, took, longest if at - since < 2 * _WINDOW else 0.0)
        elif took > longest:
            self._seen = (since, took, former)

    def longest(self) -> float:
        """Return the seconds of the longest turn, of the present one those so far."""
        now, began = self._monotonic(), self._began
        since, longest, former = self._seen
        return max(
            0.0 if began is None else now - began,
            longest if now - since < 2 * _WINDOW else 0.0,
            former if now - since < _WINDOW else 0.0,
        )


class TimedSelector(selectors.DefaultSelector):
    """Waits for the loop, and notes when the turns between the waits begin and end."""

    def __init__(self, stalls: Stalls, monotonic: Callable[[], float]) -> None:
        """Tell *stalls* of the turns, in the time of *monotonic*."""
        super().__init__()
        self._stalls = stalls
        self._monotonic = monotonic

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as the selector does, *timeout* seconds at most; raise what it raises."""
        began = self._monotonic()
        self._stalls.turn_ended(began)
        events = super().select(timeout)
        due = None if events or timeout is None else began + max(timeout, 0.0)
        self._stalls.turn_began(self._monotonic() if due is None else due)
        return events
