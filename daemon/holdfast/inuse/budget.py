"""What looks may cost that nothing but time calls for, and whose come first."""

from enum import Enum

from holdfast.host.use.look import Look
from holdfast.runtime.watched import Watched


class Share(Enum):
    """The part of one CPU that such looks may take, however many processes there are.

    In the order of who comes first. A look that has to prove a device free is never put off, one
    that a change calls for by a second at most.
    """

    EXITS = 0.1
    """A holder has ended soon after the last look: its pod may have a new one all the time."""
    START = 0.005
    """Somebody waits for a device that is in use by nobody who can be seen."""
    HOLDERS = 0.001
    """Known holders may have let go and live on."""
    CLOCK = 0.0005
    """Whatever else may have changed without a sign."""


_LONGEST_FOR_START = 60.0
_AFTER_GAPS = 10.0
_SOON = 1.0
_LATEST = 5.0
_LATEST_OF_MANY = 60.0
"""Seconds between two looks at what known holders have: while somebody waits, otherwise, and where
so many devices are held by living pods that looking takes more than its share of CPU time."""


class Budget:
    """Turns what looks have cost into the pauses between them; all pauses are in seconds."""

    def __init__(self, look: Look, *, rescan: Watched[float]) -> None:
        """Go by what *look* has cost; by the clock alone no more often than each *rescan* s."""
        self._look = look
        self._rescan = rescan
        self.holders = _LATEST
        """The pause between two looks at the known holders of a device."""

    @property
    def start(self) -> float:
        """Return the pause between two looks at all processes for the sake of a start."""
        return min(_LONGEST_FOR_START, self._whole(Share.START))

    @property
    def exits(self) -> float:
        """Return the pause between a look at all processes and one because a holder has ended."""
        return min(_SOON, self._whole(Share.EXITS))

    @property
    def clock(self) -> float:
        """Return the pause between two looks at all processes that nobody waits for.

        One at thousands of processes takes a second of CPU time: the more, the rarer it is. While
        looks have gaps, which on a busy node may be over in a moment, they come sooner: after 10 s,
        then after twice as long each time.
        """
        pause, gaps_for = max(self._rescan.value, self._whole(Share.CLOCK)), self._look.gaps_for
        return pause if gaps_for is None else min(pause, _AFTER_GAPS + gaps_for)

    def holders_cost(self, seconds: float) -> None:
        """Hear that one look at each device's holders takes so many *seconds* of CPU time."""
        pause = seconds / Share.HOLDERS.value
        self.holders = max(_LATEST, min(_LATEST_OF_MANY, pause))

    @staticmethod
    def holders_to_free(seconds: float) -> float:
        """Return the pause as `holders` does, for one device that is to be freed.

        A look at its holders takes so many *seconds* of CPU time.
        """
        return min(_LATEST, max(_SOON, seconds / Share.HOLDERS.value))

    def _whole(self, share: Share) -> float:
        return self._look.full_scan_cpu_seconds / share.value
