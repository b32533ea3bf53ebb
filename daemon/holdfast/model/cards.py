"""Cards that can be had in several ways: which of their keys exclude each other.

A key names its card behind the first slash: ``gpu/CARD`` is all of it, ``mig/CARD/...`` a slice of
it, and ``replica/CARD/0`` the first of its replicas. Pods on different replicas share the card on
purpose. Whoever has anything else of the card excludes all of them.

Another driver, such as one of VFIO, does not know the card. It gives away the PCI function that the
card is, by the function's own key, and that excludes everything of the card.
"""

import re
from collections.abc import Collection, Mapping
from functools import cached_property

from msgspec import Struct, field

from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName

_CARD, _REPLICA = "gpu/", "replica/"
_OF_CARDS = (_CARD, "mig/", _REPLICA)
_MARK, _SHARED = "::", ".shared"
"""What NVIDIA's plugin has before the number of a replica, and after the name of a resource."""

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

Side = tuple[str, bool]
"""A card, and whether its replicas are meant, or anything else of it.

Or the key of the PCI function that is a card, and whether the card is meant, or the function.
"""


class Places(Struct, frozen=True, kw_only=True, dict=True):
    """The key of the PCI function that each card is, as far as that is known."""

    of: Mapping[str, HardwareKey] = field(default_factory=dict)

    @cached_property
    def functions(self) -> frozenset[HardwareKey]:
        """Return the keys of all functions that are cards."""
        return frozenset(self.of.values())


NOWHERE = Places()


class Sharing(Struct, frozen=True, kw_only=True):
    """How many pods may share each device of a resource; `renamed`: by another resource name.

    `single`: a container may have one replica, and no more.
    """

    replicas: int = 1
    renamed: bool = False
    single: bool = False


NOT_SHARED = Sharing()

Shared = Mapping[ResourceName, Sharing]
"""How the devices of each resource are shared, by its name before any is shared."""


def card_key(card: str) -> HardwareKey:
    """Return the key of all of *card*."""
    return HardwareKey(f"{_CARD}{card}")


def replica_key(card: str, number: int | str) -> HardwareKey:
    """Return the key of one replica of *card*."""
    return HardwareKey(f"{_REPLICA}{card}/{number}")


def is_replica(key: HardwareKey) -> bool:
    """Tell whether *key* is that of a replica."""
    return key.startswith(_REPLICA)


def card_of(key: HardwareKey) -> str:
    """Return the card that *key* is of, empty for hardware that is no part of a card."""
    return key.split("/", 2)[1] if key.startswith(_OF_CARDS) else ""


def sides_of(keys: Collection[HardwareKey], places: Places = NOWHERE) -> set[Side]:
    """Return the sides that *keys* are on; none for hardware that can be had in one way only."""
    of, functions = places.of, places.functions
    sides: set[Side] = set()
    for key in keys:
        if key.startswith(_OF_CARDS):
            card = card_of(key)
            sides.add((card, is_replica(key)))
            if card in of:
                sides.add((of[card], True))
        elif key in functions:
            sides.add((key, False))
    return sides


def rivals(keys: Collection[HardwareKey], places: Places = NOWHERE) -> set[Side]:
    """Return the sides that *keys* exclude."""
    sides = sides_of(keys, places)
    # Each beat asks this of every device, and most can be had in one way only.
    return {(what, not which) for what, which in sides} if sides else sides


def clash(
    one: frozenset[HardwareKey], other: frozenset[HardwareKey], places: Places = NOWHERE
) -> bool:
    """Tell whether two pods must not have *one* and *other* at the same time."""
    if not one.isdisjoint(other):
        return True
    return not sides_of(one, places).isdisjoint(rivals(other, places))


def same_functions(
    one: frozenset[HardwareKey], other: frozenset[HardwareKey], places: Places
) -> list[HardwareKey]:
    """Return the functions that one of *one* and *other* has as such, and the other as cards."""
    met = sides_of(one, places) & rivals(other, places)
    return sorted(places.functions.intersection(what for what, _ in met))


def overlap(
    one: frozenset[HardwareKey], other: frozenset[HardwareKey], places: Places = NOWHERE
) -> bool:
    """Tell whether *one* and *other* have hardware in common: all of a card has each part of it."""
    if clash(one, other, places):
        return True
    return any(
        card_key(card) in whole
        for whole, parts in ((one, other), (other, one))
        for card in map(card_of, parts)
        if card
    )


def shares(one: frozenset[HardwareKey], other: frozenset[HardwareKey]) -> bool:
    """Tell whether *one* and *other* are different replicas of one card."""
    replicas = {side for side in sides_of(one) if side[1]}
    return one.isdisjoint(other) and not replicas.isdisjoint(sides_of(other))


def replica_id(card: DeviceId, number: int) -> DeviceId:
    """Return what kubelet calls a replica, as NVIDIA's plugin does: ``GPU-...::0``."""
    return DeviceId(f"{card}{_MARK}{number}")


def renamed(resource: ResourceName) -> ResourceName:
    """Return the name that replicas can have instead of that of their card's resource."""
    return ResourceName(f"{resource}{_SHARED}")


def unshared(resource: ResourceName) -> ResourceName:
    """Return the name of the resource that cards have, whether or not replicas have another."""
    return ResourceName(resource.removesuffix(_SHARED))


def whole(device: DeviceName) -> DeviceName:
    """Return the name of the card of which *device* is a replica; that of any other as it is."""
    card, number = parted(device.id)
    return DeviceName(unshared(device.resource), card) if number else device


def parted(id_: DeviceId) -> tuple[DeviceId, str]:
    """Return the id of the card, and the number of its replica; empty for the whole card."""
    card, _, number = id_.partition(_MARK)
    return DeviceId(card), number if _NUMBER.fullmatch(number) else ""
