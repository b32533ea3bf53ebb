"""Which leftovers were ended: from the moves of locks to what Events say about them."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState, Move
from holdfast.model.ids import DeviceName

REMEMBERED = 600.0
"""Seconds for which an Event about a reclaimed device is tried to be written."""

_RECLAIM = frozenset({LockState.RECLAIMING, LockState.QUARANTINED})


class Reclaimed(Struct, frozen=True, kw_only=True):
    """A device that is free again after a leftover was ended; `at` in monotonic seconds."""

    device: DeviceName
    text: str
    at: float


class Reclaims(Struct, frozen=True, kw_only=True):
    """What is done about each device that is being reclaimed, and what came to an end lately."""

    begun: Mapping[DeviceName, str] = field(default_factory=dict)
    done: Mapping[DeviceName, Reclaimed] = field(default_factory=dict)

    def followed(self, moves: Iterable[Move], book: Book, now: float) -> "Reclaims":
        """Return the same after *moves*, the last of which led to *book*, at *now*."""
        begun, done = dict(self.begun), dict(self.done)
        for move in moves:
            if move.after in _RECLAIM:
                text = f"{move.evidence}, left over from {book.pod(move.pod)}"
                begun.setdefault(move.device, text)
            elif (text := begun.pop(move.device, "")) and move.after is LockState.FREE:
                told = f"{move.device} is free again after {text}: {move.evidence}"
                done[move.device] = Reclaimed(device=move.device, text=told, at=now)
        return Reclaims(begun=begun, done=done)

    def lately(self, now: float) -> "Reclaims":
        """Return the same without what came to an end too long before *now*."""
        kept = {name: each for name, each in self.done.items() if now - each.at < REMEMBERED}
        return Reclaims(begun=self.begun, done=kept)


def reclaims_in(book: Book) -> Reclaims:
    """Return what *book* says is being reclaimed, as a daemon that just started finds it."""
    return Reclaims(
        begun={
            lock.device: f"{lock.evidence}, left over from {book.pod(lock.pod)}"
            for lock in book.locks.values()
            if lock.state in _RECLAIM
        }
    )
