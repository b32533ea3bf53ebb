"""Since when each lock has been in its state, by a clock that nobody sets."""

from holdfast.model.book.book import Book
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.ids import DeviceName
from holdfast.runtime.clock import Clock

_Entry = tuple[LockState, float]


class LockAges:
    """Remembers when this daemon first saw each lock in the state that it is in.

    What the ledger keeps is the time of day, which may be set; here it only tells one entry into a
    state from the next. After a restart every age begins anew.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure by *clock*'s uptime."""
        self._clock = clock
        self._seen: dict[DeviceName, tuple[_Entry, float]] = {}

    def note(self, book: Book) -> None:
        """See the locks of *book*, and forget those that are gone."""
        before, now = self._seen, self._clock.uptime()
        self._seen = {}
        for lock in book.locks.values():
            entry = _entry(lock)
            known = before.get(lock.device)
            self._seen[lock.device] = (entry, now) if known is None or known[0] != entry else known

    def since(self, lock: DeviceLock) -> float:
        """Return since when *lock*, which was noted, is in its state: seconds since the boot."""
        known = self._seen.get(lock.device)
        return self._clock.uptime() if known is None or known[0] != _entry(lock) else known[1]

    def age(self, lock: DeviceLock) -> float:
        """Return for how many seconds *lock*, which was noted, has been in its state."""
        return self._clock.uptime() - self.since(lock)


def _entry(lock: DeviceLock) -> _Entry:
    return (lock.state, lock.since)
