"""Which devices are kept from their next pod for longer than is usual, and why."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from holdfast.model.book.book import Book
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.gate.gate import belongs_to
from holdfast.model.ids import DeviceName

_HOLDING = frozenset({LockState.RELEASING, LockState.RECLAIMING, LockState.FOREIGN})


class KeptDevice(Struct, frozen=True, kw_only=True):
    """A device that no new pod gets; `text` says who has it, or who asked for that."""

    device: DeviceName
    quarantined: bool
    text: str


def kept_devices(
    book: Book,
    ages: Mapping[DeviceName, float],
    *,
    patience: float,
    obstacle: Callable[[DeviceName], str],
) -> tuple[KeptDevice, ...]:
    """Return each device that is quarantined, or has not been free for *patience* seconds.

    *ages* tells for how many seconds each lock has been in its state. *obstacle* says what was last
    seen to keep a device from its next pod; empty for nothing.
    """
    found: dict[DeviceName, KeptDevice] = {}
    for name, quarantine in book.marks.quarantines.items():
        text = f"{name} is quarantined by hand: {quarantine.mark}"
        found[name] = KeptDevice(device=name, quarantined=True, text=text)
    for name, lock in book.locks.items():
        given_up = lock.state is LockState.QUARANTINED
        lasts = lock.state in _HOLDING and ages.get(name, 0.0) >= patience
        if given_up or (lasts and name not in found):
            text = _text(lock, book, obstacle(name))
            found[name] = KeptDevice(device=name, quarantined=given_up, text=text)
    return tuple(found[name] for name in sorted(found))


def _text(lock: DeviceLock, book: Book, obstacle: str) -> str:
    whose = belongs_to(lock, book)
    return f"{whose}; {obstacle}" if obstacle else whose
