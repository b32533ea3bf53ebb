"""Shares: which of the replicas of a GPU a claim is given, where several claims have it at once.

A claim's result names the GPU, and a share of it by an id that the scheduler makes up. It does not
name a replica: all of them are alike, so a claim is given the first that nobody has. Which ones
it has is in the book. Its shares take these in the order of their ids, so that each call finds the
same without the ids being written down.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.model.book.book import Book
from holdfast.model.book.withheld import quarantines_on, why_withheld
from holdfast.model.cards import parted, whole
from holdfast.model.devices import Device
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.claims import ClaimResult
from holdfast.model.dra.handing import Given
from holdfast.model.gate.gate import belongs_to
from holdfast.model.ids import ClaimUid, DeviceName, HardwareKey

_MOST_TOLD = 3
"""Replicas of which a text says who has them."""


def as_whole(told: Advertised) -> Advertised:
    """Return *told* as a device that one claim at a time can have, all of it."""
    if not told.shared:
        return told
    return replace(told, devices=tuple(dict.fromkeys(map(whole, told.devices))), shared=False)


def meant_by(
    result: ClaimResult, told: Advertised, book: Book, claim: ClaimUid
) -> tuple[DeviceName, ...]:
    """Return the devices that *result* of *claim* means; of a share, every one that it can be.

    Those that the claim has come first, also where the GPU is not shared any more, or by fewer.
    Without a share's id all of the GPU is meant: then the scheduler has given it to nobody else.
    """
    if not result.share_id or result.admin_access:
        return as_whole(told).devices
    card = whole(told.devices[0])
    mine = (name for each in book.holdings.of_claim(claim) for name, _ in each.names())
    had = (name for name in mine if whole(name) == card and parted(name.id)[1])
    return tuple(dict.fromkeys((*sorted(had, key=_number), *(told.devices if told.shared else ()))))


def placed(given: Sequence[Given], book: Book, claim: ClaimUid) -> tuple[Given, ...] | str:
    """Return *given* with one device for each share, or why there is none for one of them yet."""
    taken: set[HardwareKey] = set()
    found: dict[str, Given] = {}
    shares = [each for each in given if each.is_share]
    for each in sorted(shares, key=lambda share: share.result.share_id):
        left = (
            device
            for device in each.devices
            if taken.isdisjoint(device.keys) and _is_left(device, book, claim)
        )
        device = next(left, None)
        if device is None:
            return _why_none(each.devices, book)
        taken |= device.keys
        found[each.result.share_id] = replace(each, devices=(device,))
    return tuple(found[each.result.share_id] if each.is_share else each for each in given)


def _is_left(device: Device, book: Book, claim: ClaimUid) -> bool:
    """Tell whether *claim* has *device*, or nobody has, waits for or withholds it.

    Who has all of the card is waited for in the queue: that decides no less for the other replicas.
    """
    on_it = book.holdings.on(device.keys)
    if any(each.claim == claim for each in on_it):
        return True
    locked = any(lock.keys & device.keys for lock in book.locks_on(device.keys))
    return not (on_it or locked or quarantines_on(book, device.keys))


def _why_none(devices: Iterable[Device], book: Book) -> str:
    every = tuple(devices)
    told = list(dict.fromkeys(_who(each, book) for each in every))
    more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return f"no share of {whole(every[0].name)} is left: {'; '.join(told[:_MOST_TOLD])}{more}"


def _who(device: Device, book: Book) -> str:
    """Return who has *device*, waits for it or withholds it."""
    for lock in book.locks_on(device.keys):
        return belongs_to(lock, book)
    for allocation in book.holdings.on(device.keys):
        return f"{device.name} is waited for by {book.holder(allocation)}"
    withheld = why_withheld(book, device.keys)
    return withheld or f"{device.name} is given to another share of the same claim"


def _number(replica: DeviceName) -> int:
    return int(parted(replica.id)[1])
