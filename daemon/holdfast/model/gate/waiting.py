"""What starts, claims and Allocations wait for, to be told to people."""

from msgspec import Struct

from holdfast.model.book.book import Allocation, Book, same_holder
from holdfast.model.book.queue import waits_behind
from holdfast.model.book.withheld import why_withheld
from holdfast.model.gate.gate import belongs_to
from holdfast.model.ids import HardwareKey, PodUid


class Waiting(Struct, frozen=True, kw_only=True):
    """A container start, or a claim, that has waited for `seconds`: for which device, and why."""

    pods: frozenset[PodUid]
    what: str
    why: str
    seconds: float


def missing(
    book: Book, allocation: Allocation, keys: frozenset[HardwareKey]
) -> frozenset[HardwareKey]:
    """Return which of *keys* neither *allocation* nor another of its holder has a lock on."""
    own = (
        lock.keys
        for lock in book.locks_on(keys)
        if lock.allocation == allocation.id or same_holder(lock, allocation)
    )
    return keys.difference(*own)


def why_queued(book: Book, allocation: Allocation, keys: frozenset[HardwareKey]) -> str:
    """Return what *allocation* waits for to get *keys*, which are missing."""
    withheld = why_withheld(book, keys, book.started(allocation))
    if withheld is not None:
        return withheld
    lock = book.lock_on(keys)
    return waits_behind(book, allocation, keys) if lock is None else belongs_to(lock, book, keys)
