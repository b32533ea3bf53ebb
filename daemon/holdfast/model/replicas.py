"""Replicas: a card that is shared counts as several devices, and has a key for each.

A key names its card behind the first slash: ``gpu/CARD`` is all of it, ``mig/CARD/...`` a slice of
it, and ``replica/CARD/0`` the first of its replicas. Pods on different replicas share the card on
purpose. Whoever has anything else of the card excludes all of them.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.model.ids import DeviceId, HardwareKey, ResourceName

_CARD, _REPLICA = "gpu/", "replica/"
_OF_CARDS = (_CARD, "mig/", _REPLICA)
_MARK, _SHARED = "::", ".shared"
"""What NVIDIA's plugin has before the number of a replica, and after the name of a resource."""

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

Side = tuple[str, bool]
"""A card, and whether its replicas are meant, or anything else of it."""


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
    """Return the card that *key* is of, empty for hardware that is never shared."""
    return key.split("/", 2)[1] if key.startswith(_OF_CARDS) else ""


def sides_of(keys: Iterable[HardwareKey]) -> set[Side]:
    """Return the sides of cards that *keys* are on; none for hardware that is never shared."""
    return {(card_of(key), is_replica(key)) for key in keys if key.startswith(_OF_CARDS)}


def rivals(keys: Iterable[HardwareKey]) -> set[Side]:
    """Return the sides of cards that *keys* exclude."""
    return {(card, not replica) for card, replica in sides_of(keys)}


def clash(one: frozenset[HardwareKey], other: frozenset[HardwareKey]) -> bool:
    """Tell whether two pods must not have *one* and *other* at the same time."""
    return not one.isdisjoint(other) or not sides_of(one).isdisjoint(rivals(other))


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


def parted(id_: DeviceId) -> tuple[DeviceId, str]:
    """Return the id of the card, and the number of its replica; empty for the whole card."""
    card, _, number = id_.partition(_MARK)
    return DeviceId(card), number if _NUMBER.fullmatch(number) else ""
