"""From the node's devices to its ResourceSlices, and from what is stored to what is written."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.counters import Counters, Exclusive, apart, counted
from holdfast.model.dra.resourceslice import (
    AttributeValue,
    Quantity,
    ResourceSlice,
    SliceContent,
    SliceDevice,
    SlicePool,
    SliceSpec,
    Taint,
)
from holdfast.model.dra.taints import together
from holdfast.model.ids import DeviceName, PciAddress

T = TypeVar("T")

MOST_DEVICES = 64
"""Devices of a slice. The API allows 128 as long as none has a taint or a counter; with this limit
a taint moves no device to another slice."""
MOST_SETS = 8
"""Sets of counters of a slice."""
MOST_ATTRIBUTES = 32
"""Attributes and capacities of a device together."""

_LONGEST_NAME = 253
_DIGEST = 12
_STANDARD = "resource.kubernetes.io"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_KIB = 1024


class PoolFacts(Struct, frozen=True, kw_only=True):
    """All that the slices are made of.

    `advertised` are in the order that the adapters give, single devices before those that contain
    them; one whose devices are not all in `devices` is left out. `pcie_roots` has the root port of
    each function where it is known. `taints_kept`, `counters_kept`: whether the API server knows
    taints and counters, or drops them.
    """

    devices: Mapping[DeviceName, Device]
    advertised: tuple[Advertised, ...]
    taints: Mapping[DeviceName, tuple[Taint, ...]] = field(default_factory=dict)
    pcie_roots: Mapping[PciAddress, str] = field(default_factory=dict)
    taints_kept: bool = True
    counters_kept: bool = True


class Accepted(Struct, frozen=True, kw_only=True):
    """What a slice was sent with, and what the server made of it."""

    sent: SliceContent
    stored: SliceContent


class Writes(Struct, frozen=True, kw_only=True):
    """What makes the server's slices those that are wanted, in this order."""

    delete: tuple[ResourceSlice, ...] = ()
    update: tuple[tuple[ResourceSlice, SliceSpec], ...] = ()
    create: tuple[tuple[str, SliceSpec], ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the slices that are written."""
        return frozenset(
            (
                *(each.metadata.name for each in self.delete),
                *(each.metadata.name for each, _ in self.update),
                *(name for name, _ in self.create),
            )
        )


def contents(facts: PoolFacts) -> tuple[SliceContent, ...]:
    """Return what each slice of the pool has; one empty slice says that there is nothing.

    Slices of counters come after those of devices, whose places they then do not change.
    """
    offered: dict[str, Advertised] = {}
    for each in facts.advertised:
        if _offered(each, facts):
            offered.setdefault(each.name, each)
    exclusive = [
        Exclusive(name=name, keys=frozenset().union(*(facts.devices[n].keys for n in each.devices)))
        for name, each in offered.items()
    ]
    kept, counters = (
        counted(exclusive) if facts.counters_kept else (apart(exclusive), Counters(uses={}))
    )
    devices = [_device(offered[each.name], facts, counters) for each in kept]
    return (
        *(SliceContent(devices=part) for part in _parts(devices, MOST_DEVICES)),
        *(SliceContent(shared_counters=part) for part in _parts(counters.sets, MOST_SETS)),
    ) or (SliceContent(),)


def writes(
    wanted: Sequence[SliceContent],
    stored: Mapping[str, ResourceSlice],
    *,
    driver: str,
    node: str,
    accepted: Mapping[str, Accepted],
    generation: int = 0,
) -> Writes:
    """Return what to write so that the slices that the server has *stored* are as *wanted*.

    *accepted* are the former writes by name: what the server changed then is no difference now.
    Where more than one slice changes, all get a new generation, above *generation* and above every
    one that is stored: the scheduler then uses none of them before it has them all.
    """
    names = [slice_name(driver, node, place) for place in range(len(wanted))]
    highest = max([generation, *(each.spec.pool.generation for each in stored.values())])
    pool = SlicePool(
        name=node, generation=max(highest, 1), resource_slice_count=max(len(wanted), 1)
    )
    changed = [
        place
        for place, name in enumerate(names)
        if not _is_as(wanted[place], stored.get(name), pool, accepted.get(name))
    ]
    if len(changed) > 1:
        # Counters first: without them the devices that share hardware must not be offered.
        changed = sorted(range(len(wanted)), key=lambda place: not wanted[place].shared_counters)
        pool = replace(pool, generation=highest + 1)
    specs = {
        names[place]: SliceSpec(
            driver=driver,
            pool=pool,
            node_name=node,
            devices=wanted[place].devices,
            shared_counters=wanted[place].shared_counters,
        )
        for place in changed
    }
    return Writes(
        delete=tuple(each for name, each in sorted(stored.items()) if name not in names),
        update=tuple(
            (stored[name], _with_times(spec, stored[name].spec))
            for name, spec in specs.items()
            if name in stored
        ),
        create=tuple((name, spec) for name, spec in specs.items() if name not in stored),
    )


def dropped(sent: SliceContent, stored: SliceContent) -> tuple[bool, bool]:
    """Return whether the server left out taints, and whether it left out counters."""
    left = {each.name: each for each in stored.devices}
    taints = any(
        each.taints and not (each.name in left and left[each.name].taints) for each in sent.devices
    )
    uses = any(
        each.consumes_counters and not (each.name in left and left[each.name].consumes_counters)
        for each in sent.devices
    )
    return taints, uses or bool(sent.shared_counters and not stored.shared_counters)


def slice_name(driver: str, node: str, place: int) -> str:
    """Return the name of the pool's slice number *place*; a second slice cannot have it too."""
    name = f"{place:05x}-{driver}-{node}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST_NAME - _DIGEST - 1].rstrip('-.')}-{digest}"


def quantity(amount: int) -> Quantity:
    """Return *amount* as the API server writes it: ``80Gi``, ``1500Mi``, ``1000``."""
    power = 0
    while amount and amount % _KIB == 0 and power + 1 < len(_BINARY):
        amount, power = amount // _KIB, power + 1
    return Quantity(value=f"{amount}{_BINARY[power]}")


def _offered(each: Advertised, facts: PoolFacts) -> bool:
    if any(name not in facts.devices for name in each.devices):
        return False
    return facts.taints_kept or not any(facts.taints.get(name) for name in each.devices)


def _device(each: Advertised, facts: PoolFacts, counters: Counters) -> SliceDevice:
    use = counters.uses.get(each.name)
    attributes = {**dict(_standard(each, facts)), **each.attributes}
    capacity = {name: quantity(amount) for name, amount in each.capacity.items()}
    room = MOST_ATTRIBUTES - len(capacity)
    return SliceDevice(
        name=each.name,
        attributes=dict(list(attributes.items())[:room]),
        capacity=capacity,
        taints=together(facts.taints.get(name, ()) for name in each.devices),
        consumes_counters=() if use is None else (use,),
    )


def _standard(each: Advertised, facts: PoolFacts) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes that all drivers call the same."""
    if each.address is not None:
        yield f"{_STANDARD}/pciBusID", AttributeValue(text=each.address)
        if root := facts.pcie_roots.get(each.address):
            yield f"{_STANDARD}/pcieRoot", AttributeValue(text=root)
    nodes = {facts.devices[name].numa_node for name in each.devices}
    node = nodes.pop()
    if not nodes and node is not None:
        yield f"{_STANDARD}/numaNode", AttributeValue(number=node)


def _is_as(
    wanted: SliceContent, stored: ResourceSlice | None, pool: SlicePool, accepted: Accepted | None
) -> bool:
    if stored is None or stored.spec.pool != pool:
        return False
    content = stored.spec.content
    if accepted is not None and accepted.sent == wanted and accepted.stored == content:
        return True
    return content == wanted


def _with_times(spec: SliceSpec, before: SliceSpec) -> SliceSpec:
    """Return *spec* with the times of the taints that were there *before*."""
    known = {
        (device.name, taint.what): taint.time_added
        for device in before.devices or ()
        for taint in device.taints
    }

    def timed(device: SliceDevice) -> SliceDevice:
        taints = tuple(
            replace(each, time_added=known.get((device.name, each.what), ""))
            for each in device.taints
        )
        return replace(device, taints=taints)

    return replace(spec, devices=tuple(map(timed, spec.devices or ())))


def _parts(items: Iterable[T], most: int) -> Iterator[tuple[T, ...]]:
    every = tuple(items)
    return (every[start : start + most] for start in range(0, len(every), most))
