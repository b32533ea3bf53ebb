"""Whether a person withholds hardware from new pods, by whatever name or driver it is asked for."""

from holdfast.model.book.book import Book
from holdfast.model.book.marks import Quarantine
from holdfast.model.cards import overlap
from holdfast.model.ids import HardwareKey


def quarantines_on(book: Book, keys: frozenset[HardwareKey]) -> tuple[Quarantine, ...]:
    """Return every quarantine of hardware of *keys*.

    What is quarantined is broken as a whole card, as each of its parts and as a PCI function.
    """
    places = book.holdings.places
    return tuple(
        each for each in book.marks.quarantines.values() if overlap(each.keys, keys, places)
    )


def why_withheld(
    book: Book, keys: frozenset[HardwareKey], started: frozenset[HardwareKey] = frozenset()
) -> str | None:
    """Return why a start on *keys* has to wait for a person, or None when it has not.

    *started* is the hardware that a container of the same pod has started on before. A pod that
    runs is not stopped by either mark: its containers may start again on what they had, and under
    a drain the rest of its containers may follow.
    """
    for quarantine in quarantines_on(book, keys - started):
        return f"{quarantine.device} is quarantined by hand: {quarantine.mark}"
    if book.marks.drain is not None and not started:
        return f"holdfast is draining: {book.marks.drain}"
    return None
