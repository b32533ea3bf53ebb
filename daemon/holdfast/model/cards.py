"""Cards that can be had in several ways: which of their keys exclude each other.

A key says how its card is had, and names the card behind the first slash: ``card/CARD`` is all of
it, ``part/CARD/PLACE`` a part of it, and ``replica/CARD/0`` the first of its replicas. A part can
have replicas, too: ``replica/CARD/PLACE/0``. Pods on different replicas share the card, or the
part, on purpose. Whoever has the same silicon in any other way excludes all of them. The device
that is all of a card has the card as its id, and a part the end of its place.

Another driver, such as one of VFIO, does not know the card. It gives away the PCI function that the
card is, by the function's own key, and that excludes everything of the card.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName

_CARD, _PART, _REPLICA = "card/", "part/", "replica/"
_OF_CARDS = (_CARD, _PART, _REPLICA)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

Side = tuple[str, bool]
"""Two sides of the same thing exclude each other; these are the things, with what True means.

``CARD``: its replicas, or anything else of it. ``CARD/PLACE``: replicas of that part, or the part.
``CARD/``: replicas of any part, or all of the card. The key of the PCI function that is a card: the
card, or the function.
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


class ReplicaNames(Struct, frozen=True, kw_only=True):
    """How a vendor calls replicas: by their card's id, `mark` and a number.

    Their resource is that of the card, or the same with `suffix`.
    """

    mark: str
    suffix: str

    def replica(self, card: DeviceId, number: int) -> DeviceId:
        """Return what kubelet calls a replica of *card*."""
        return DeviceId(f"{card}{self.mark}{number}")

    def renamed(self, resource: ResourceName) -> ResourceName:
        """Return the name that replicas can have instead of that of their card's resource."""
        return ResourceName(f"{resource}{self.suffix}")

    def unshared(self, resource: ResourceName) -> ResourceName:
        """Return the resource that cards have, whether or not replicas have another."""
        return ResourceName(resource.removesuffix(self.suffix))

    def whole(self, device: DeviceName) -> DeviceName:
        """Return the name of the card of which *device* is a replica; any other as it is."""
        card, number = self.parted(device.id)
        return DeviceName(self.unshared(device.resource), card) if number else device

    def parted(self, id_: DeviceId) -> tuple[DeviceId, str]:
        """Return the id of the card, and the number of its replica; empty for the whole card."""
        card, _, number = id_.partition(self.mark)
        return DeviceId(card), number if _NUMBER.fullmatch(number) else ""


class CardNames(Struct, frozen=True, kw_only=True):
    """How the vendors of a node call replicas; as each of them does, for whatever is its own."""

    vendors: tuple[ReplicaNames, ...] = ()

    def unshared(self, resource: ResourceName) -> ResourceName:
        """Return the resource that cards have, whether or not replicas have another."""
        found = (each.unshared(resource) for each in self.vendors)
        return next((each for each in found if each != resource), resource)

    def whole(self, device: DeviceName) -> DeviceName:
        """Return the name of the card of which *device* is a replica; any other as it is."""
        found = (each.whole(device) for each in self.vendors)
        return next((each for each in found if each != device), device)

    def replicas(self, card: DeviceName, count: int) -> tuple[DeviceName, ...]:
        """Return what the first *count* replicas of *card* would be called, by any vendor."""
        return tuple(
            DeviceName(card.resource, each.replica(card.id, number))
            for each in self.vendors
            for number in range(count)
        )

    def parted(self, id_: DeviceId) -> tuple[DeviceId, str]:
        """Return the id of the card, and the number of its replica; empty for the whole card."""
        found = (each.parted(id_) for each in self.vendors)
        return next((each for each in found if each[0] != id_), (id_, ""))


def card_key(card: str) -> HardwareKey:
    """Return the key of all of *card*."""
    return HardwareKey(f"{_CARD}{card}")


def part_key(card: str, place: str) -> HardwareKey:
    """Return the key of the part of *card* at *place*, which may have slashes."""
    return HardwareKey(f"{_PART}{card}/{place}")


def is_part(key: HardwareKey) -> bool:
    """Tell whether *key* is that of a part of a card."""
    return key.startswith(_PART)


def replica_key(card: str, number: int | str) -> HardwareKey:
    """Return the key of one replica of *card*."""
    return HardwareKey(f"{_REPLICA}{card}/{number}")


def replica_of(whole: HardwareKey, number: int | str) -> HardwareKey:
    """Return the key of one replica of the card, or the part of a card, whose key is *whole*."""
    return replica_key(whole.partition("/")[2], number)


def whole_of(key: HardwareKey) -> HardwareKey:
    """Return the key of what *key* is a replica of; any other as it is."""
    if not is_replica(key):
        return key
    whole = key.removeprefix(_REPLICA).rpartition("/")[0]
    return HardwareKey(f"{_PART if '/' in whole else _CARD}{whole}")


def is_replica(key: HardwareKey) -> bool:
    """Tell whether *key* is that of a replica."""
    return key.startswith(_REPLICA)


def card_of(key: HardwareKey) -> str:
    """Return the card that *key* is of, empty for hardware that is no part of a card."""
    return key.split("/", 2)[1] if key.startswith(_OF_CARDS) else ""


def id_of(key: HardwareKey) -> DeviceId:
    """Return the id of the card or part that *key* is, or is a replica of; empty for no card."""
    return DeviceId(whole_of(key).rpartition("/")[2] if key.startswith(_OF_CARDS) else "")


def replicas_in(keys: Iterable[HardwareKey]) -> tuple[tuple[DeviceId, str], ...]:
    """Return the id of the card or part, and the number, of each replica in *keys*, in order."""
    replicas = sorted(key for key in keys if is_replica(key))
    return tuple((id_of(key), key.rpartition("/")[2]) for key in replicas)


def sides_of(keys: Collection[HardwareKey], places: Places = NOWHERE) -> set[Side]:
    """Return the sides that *keys* are on; none for hardware that can be had in one way only."""
    of, functions = places.of, places.functions
    sides: set[Side] = set()
    for key in keys:
        if key.startswith(_OF_CARDS):
            card = card_of(key)
            sides.update(_sides(key, card))
            if card in of:
                sides.add((of[card], True))
        elif key in functions:
            sides.add((key, False))
    return sides


def _sides(key: HardwareKey, card: str) -> Iterator[Side]:
    """Yield the sides of *card* that *key* is on."""
    whole, every_part = whole_of(key), f"{card}/"
    shared = whole != key
    yield card, shared and not is_part(whole)
    if is_part(whole):
        yield whole.removeprefix(_PART), shared
        if shared:
            yield every_part, True
    elif not shared:
        yield every_part, False


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
    )


def shares(one: frozenset[HardwareKey], other: frozenset[HardwareKey]) -> bool:
    """Tell whether *one* and *other* are different replicas of one card, or of one part."""
    shared, others = ({whole_of(key) for key in keys if is_replica(key)} for keys in (one, other))
    return one.isdisjoint(other) and not shared.isdisjoint(others)
