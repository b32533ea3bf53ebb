"""Counters that keep the scheduler from giving one piece of hardware to two claims.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#partitionable-devices

A chip and a group of chips are both devices for the scheduler. Each takes one of a counter for
every piece of hardware that another device has too, and there is one of each.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from holdfast.model.dra.resourceslice import CounterSet, CounterUse, Quantity
from holdfast.model.ids import HardwareKey

MOST_COUNTERS = 32
"""Counters of one set, by the API's rules."""

_ONE = Quantity(value="1")


class Exclusive(Struct, frozen=True, kw_only=True):
    """A device for the scheduler, by its name, and the hardware that it consists of."""

    name: str
    keys: frozenset[HardwareKey]


class Counters(Struct, frozen=True, kw_only=True):
    """The sets, and what each device takes of them. A device without an entry takes nothing."""

    sets: tuple[CounterSet, ...] = ()
    uses: Mapping[str, CounterUse]


def apart(devices: Iterable[Exclusive]) -> tuple[Exclusive, ...]:
    """Return those of *devices* that have no hardware of an earlier one."""
    taken: set[HardwareKey] = set()
    kept = []
    for each in devices:
        if taken.isdisjoint(each.keys):
            kept.append(each)
            taken |= each.keys
    return tuple(kept)


def counted(devices: Sequence[Exclusive]) -> tuple[tuple[Exclusive, ...], Counters]:
    """Return which of *devices* can be offered side by side, and the counters for that.

    All of them, unless so much hardware is entangled that one set cannot hold its counters: of
    that the earlier devices stay.
    """
    kept: list[Exclusive] = []
    sets: list[CounterSet] = []
    uses: dict[str, CounterUse] = {}
    order = {each.name: place for place, each in enumerate(devices)}
    for members in _entangled(devices):
        entangled = sorted(members, key=lambda each: order[each.name])
        parts = _parts(entangled)
        if len(parts) > MOST_COUNTERS:
            kept += apart(entangled)
            continue
        kept += entangled
        if len(entangled) == 1:
            continue
        name = entangled[0].name
        names = {part: f"part-{place}" for place, part in enumerate(parts)}
        sets.append(CounterSet(name=name, counters=dict.fromkeys(names.values(), _ONE)))
        for each in entangled:
            mine = [names[part] for part in parts if each.name in part]
            uses[each.name] = CounterUse(counter_set=name, counters=dict.fromkeys(mine, _ONE))
    kept.sort(key=lambda each: order[each.name])
    return tuple(kept), Counters(sets=tuple(sets), uses=uses)


def _entangled(devices: Iterable[Exclusive]) -> list[list[Exclusive]]:
    """Split *devices* into sets that have no hardware in common, each in any order."""
    found: list[tuple[set[HardwareKey], list[Exclusive]]] = []
    for each in devices:
        keys, members = set(each.keys), [each]
        others = []
        for former in found:
            if former[0].isdisjoint(keys):
                others.append(former)
            else:
                keys |= former[0]
                members = [*former[1], *members]
        found = [*others, (keys, members)]
    return [members for _, members in found]


def _parts(devices: Sequence[Exclusive]) -> list[tuple[str, ...]]:
    """Return the pieces of hardware that several of *devices* have, each by their names.

    Keys that the same devices have are one piece.
    """
    owners: dict[HardwareKey, tuple[str, ...]] = {}
    for each in devices:
        for key in sorted(each.keys):
            owners[key] = (*owners.get(key, ()), each.name)
    return list(dict.fromkeys(names for names in owners.values() if len(names) > 1))
