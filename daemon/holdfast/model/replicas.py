"""Replicas: a card that is shared counts as several devices, and has a key for each.

A key names its card behind the first slash: ``gpu/CARD`` is all of it, ``mig/CARD/...`` a slice of
it, and ``replica/CARD/0`` the first of its replicas. Pods on different replicas share the card on
purpose. Whoever has anything else of the card excludes all of them.
"""

from collections.abc import Iterable

from holdfast.model.ids import DeviceId, HardwareKey

_REPLICA = "replica/"
_OF_CARDS = ("gpu/", "mig/", _REPLICA)
_MARK = "::"
"""What NVIDIA's plugin has between the id of a card and the number of a replica."""

Side = tuple[str, bool]
"""A card, and whether its replicas are meant, or anything else of it."""


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


def parted(id_: DeviceId) -> tuple[DeviceId, str]:
    """Return the id of the card, and the number of its replica; empty for the whole card."""
    card, _, number = id_.partition(_MARK)
    return DeviceId(card), number
