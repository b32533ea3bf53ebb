"""What a pod's status says of the health of the devices that its claims have."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState
from holdfast.model.book.withheld import why_withheld
from holdfast.model.cards import whole
from holdfast.model.devices import Inventory
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.names import label
from holdfast.model.gate.gate import belongs_to
from holdfast.model.ids import DeviceName, ResourceName
from holdfast.model.text import printable

LONGEST_MESSAGE = 1024
"""Bytes; kubelet cuts what is longer."""

_MORE = "..."


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """One device of the pool, by its name in ResourceSlices.

    `message` says who has it or what is wrong with it; empty for a device that is free and well.
    """

    name: str
    healthy: bool
    message: str = ""


def healths(
    advertised: Iterable[Advertised],
    inventory: Inventory,
    book: Book,
    *,
    serves: Callable[[ResourceName], bool],
    obstacle: Callable[[DeviceName], str],
) -> tuple[DeviceHealth, ...]:
    """Return the health of everything *advertised*, and of what is gone and still has a lock.

    Devices of which there are no resources that the driver *serves* are left out. *obstacle* says
    what was last seen to keep a device from its next pod; empty for nothing.
    """
    found = {
        each.name: _health(
            each.name, each.devices, inventory, book, obstacle, enough=any if each.shared else all
        )
        for each in advertised
    }
    for name in book.locks:
        if serves(name.resource) and inventory.get(name) is None:
            gone = label(whole(name))
            found.setdefault(gone, _health(gone, (name,), inventory, book, obstacle))
    return tuple(found[name] for name in sorted(found))


def _health(
    name: str,
    devices: Sequence[DeviceName],
    inventory: Inventory,
    book: Book,
    obstacle: Callable[[DeviceName], str],
    *,
    enough: Callable[[Iterable[bool]], bool] = all,
) -> DeviceHealth:
    """Return the health of *devices* that are given together: that of the worst of them.

    Of one that is shared it is that of the best: what keeps one share is nothing to the others.
    *enough* says which.
    """
    found = [_one(each, inventory, book, obstacle) for each in devices]
    told = dict.fromkeys(message for _, message in found if message)
    healthy = enough(well for well, _ in found)
    return DeviceHealth(name=name, healthy=healthy, message=_cut("; ".join(told)))


def _one(
    name: DeviceName, inventory: Inventory, book: Book, obstacle: Callable[[DeviceName], str]
) -> tuple[bool, str]:
    device = inventory.get(name)
    if device is None:
        lock = book.locks.get(name)
        whose = "" if lock is None else f"; {belongs_to(lock, book)}"
        return False, f"{name} is not there any more{whose}"
    if device.faults:
        return False, "; ".join(fault.text for fault in device.faults)
    locks = book.locks_on(device.keys)
    for lock in locks:
        if lock.state is not LockState.HELD:
            known = obstacle(lock.device)
            told = belongs_to(lock, book, device.keys)
            return False, told + (f"; {known}" if known else "")
    for lock in locks:
        return True, belongs_to(lock, book, device.keys)
    return True, why_withheld(book, device.keys) or ""


def _cut(message: str) -> str:
    message = printable(message, LONGEST_MESSAGE)
    encoded = message.encode()
    if len(encoded) <= LONGEST_MESSAGE:
        return message
    return encoded[: LONGEST_MESSAGE - len(_MORE)].decode(errors="ignore") + _MORE
