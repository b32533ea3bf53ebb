"""From the node's devices to its ResourceSlices, and from what is stored to what is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.health import worst_taints
from holdfast.model.dra.resourceslice import (
    AttributeValue,
    Capacity,
    CounterSet,
    CounterUse,
    Quantity,
    RequestPolicy,
    ResourceSlice,
    SliceContent,
    SliceDevice,
    SlicePool,
    SliceSpec,
    Taint,
    ValidRange,
    fitted,
)
from holdfast.model.groups import grouped, tied
from holdfast.model.ids import DeviceName, HardwareKey, PciAddress

MOST_COUNTERS = 32
"""Counters of one set, by the API's rules."""

_ONE = Quantity(value="1")
T = TypeVar("T")

MOST_DEVICES = 64
"""Devices of a slice. The API allows 128 as long as none has a taint or a counter; with this limit
a taint moves no device to another slice."""
MOST_SETS = 8
"""Sets of counters of a slice."""
MOST_ATTRIBUTES = 32
"""Attributes and capacities of a device, counted together."""

_LONGEST_NAME = 253
_SALT = 8
"""Characters that tell a slice whose name somebody else has from that one."""
_DIGEST = 12
_STANDARD = "resource.kubernetes.io"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_KIB = 1024


SHARES = "shares"
"""The capacity of a shared device of which each claim takes one."""
_ONE_SHARE = RequestPolicy(default="1", valid_values=("1",))
_NONE_UNLESS_ASKED = RequestPolicy(default="0", valid_range=ValidRange(min="0"))
"""Without a policy the first claim would take all of the capacity, and no second one would fit."""

Hardware = Mapping[str, frozenset[HardwareKey]]
"""What each device for the scheduler consists of, by its name."""


class Counters(Struct, frozen=True, kw_only=True):
    """The sets, and what each device takes of them. A device without an entry takes nothing."""

    sets: tuple[CounterSet, ...] = ()
    uses: Mapping[str, CounterUse]


def apart(devices: Hardware) -> tuple[str, ...]:
    """Return those of *devices* that have no hardware of an earlier one."""
    taken: set[HardwareKey] = set()
    kept = []
    for name, keys in devices.items():
        if taken.isdisjoint(keys):
            kept.append(name)
            taken |= keys
    return tuple(kept)


def counted(devices: Hardware) -> tuple[tuple[str, ...], Counters]:
    """Return which of *devices* can be offered side by side, and the counters for that.

    All of them, unless so much hardware is entangled that one set cannot hold its counters: of
    that the earlier devices stay.
    """
    kept: set[str] = set()
    sets: list[CounterSet] = []
    uses: dict[str, CounterUse] = {}
    order = {name: place for place, name in enumerate(devices)}
    for members in tied(devices.items()):
        entangled = {name: devices[name] for name in sorted(members, key=order.__getitem__)}
        parts = _parts_of(entangled)
        if len(parts) > MOST_COUNTERS:
            kept.update(apart(entangled))
            continue
        kept.update(entangled)
        if len(entangled) == 1:
            continue
        first = next(iter(entangled))
        names = {part: f"part-{place}" for place, part in enumerate(parts)}
        sets.append(CounterSet(name=first, counters=dict.fromkeys(names.values(), _ONE)))
        for name in entangled:
            mine = [names[part] for part in parts if name in part]
            uses[name] = CounterUse(counter_set=first, counters=dict.fromkeys(mine, _ONE))
    return tuple(name for name in devices if name in kept), Counters(sets=tuple(sets), uses=uses)


def _parts_of(devices: Hardware) -> list[tuple[str, ...]]:
    """Return the pieces of hardware that several of *devices* have, each by their names.

    Keys that the same devices have are one piece.
    """
    owners = grouped((key, name) for name, keys in devices.items() for key in sorted(keys))
    return list(dict.fromkeys(names for names in owners.values() if len(names) > 1))


class SliceFields(Struct, frozen=True, kw_only=True):
    """Which fields of ResourceSlices the API server keeps; it drops those that it does not know.

    `shares` are what lets several claims have a device.
    """

    taints: bool = True
    counters: bool = True
    shares: bool = True


class PoolFacts(Struct, frozen=True, kw_only=True):
    """All that the slices are made of.

    `advertised` are in the order that the adapters give, single devices before those that contain
    them; one whose devices are not all in `devices` is left out. None is shared where the API
    server does not keep that. `pcie_roots` has the root port of each function where it is known.
    """

    devices: Mapping[DeviceName, Device]
    advertised: tuple[AdvertisedDevice, ...]
    taints: Mapping[DeviceName, tuple[Taint, ...]] = field(default_factory=dict)
    pcie_roots: Mapping[PciAddress, str] = field(default_factory=dict)
    kept: SliceFields = SliceFields()


class SentSlice(Struct, frozen=True, kw_only=True):
    """What a slice was sent with, and what the server made of it."""

    sent: SliceContent
    stored: SliceContent


class Writes(Struct, frozen=True, kw_only=True):
    """What makes the server's slices those that are wanted, in this order.

    `put` has the spec of each slice that is made, or is given another one, by its name. Where a
    slice of that name is among those to `delete`, it is made.
    """

    delete: tuple[ResourceSlice, ...] = ()
    put: Mapping[str, SliceSpec] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the slices that are written."""
        return frozenset((*(each.metadata.name for each in self.delete), *self.put))


def contents(facts: PoolFacts) -> tuple[SliceContent, ...]:
    """Return what each slice of the pool has; one empty slice says that there is nothing.

    Slices of counters come after those of devices, whose places they then do not change.
    """
    offered = {each.name: each for each in facts.advertised if _offered(each, facts)}
    hardware: Hardware = {
        name: frozenset().union(*(facts.devices[part].keys for part in each.devices))
        for name, each in offered.items()
    }
    offerable, counters = (
        counted(hardware) if facts.kept.counters else (apart(hardware), Counters(uses={}))
    )
    devices = [_device(offered[name], facts, counters) for name in offerable]
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
    accepted: Mapping[str, SentSlice],
    generation: int = 0,
    others: Mapping[str, str],
) -> Writes:
    """Return what to write so that the slices that the server has *stored* are as *wanted*.

    *accepted* are the former writes by name: what the server changed then is no difference now.
    Where more than one slice changes, all get a new generation, above *generation* and above every
    one that is stored: the scheduler then uses none of them before it has them all. A slice of
    another pool has no say in that, and is deleted, also where one of this pool is to have its
    name: the API server lets no slice change its pool.

    *others* has what slices are called instead whose name is taken by a slice of somebody else,
    which is not among those *stored*.
    """
    ours = {name: each for name, each in stored.items() if each.spec.pool.name == node}
    names = [_called(slice_name(driver, node, place), ours, others) for place in range(len(wanted))]
    highest = max([generation, *(each.spec.pool.generation for each in ours.values())])
    pool = SlicePool(
        name=node, generation=max(highest, 1), resource_slice_count=max(len(wanted), 1)
    )
    changed = [
        place
        for place, name in enumerate(names)
        if not _is_as(wanted[place], ours.get(name), pool, accepted.get(name))
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
        delete=tuple(
            each for name, each in sorted(stored.items()) if name not in ours or name not in names
        ),
        put={
            name: _with_times(spec, ours[name].spec) if name in ours else spec
            for name, spec in specs.items()
        },
    )


def kept_of(sent: SliceContent, stored: SliceContent) -> SliceFields:
    """Return what the server has kept of a slice that was *sent*."""
    left = {each.name: each for each in stored.devices}
    pairs = [(each, left.get(each.name, SliceDevice(name=each.name))) for each in sent.devices]
    counters = bool(stored.shared_counters or not sent.shared_counters)
    return SliceFields(
        taints=not any(was.taints and not now.taints for was, now in pairs),
        counters=counters
        and not any(was.consumes_counters and not now.consumes_counters for was, now in pairs),
        shares=not any(
            was.allow_multiple_allocations and not now.allow_multiple_allocations
            for was, now in pairs
        ),
    )


def slice_name(driver: str, node: str, place: int) -> str:
    """Return the name of the pool's slice number *place*; a second slice cannot have it too."""
    name = f"{place:05x}-{driver}-{node}"
    return fitted(name, name, longest=_LONGEST_NAME, digits=_DIGEST)


def another_name(name: str, salt: str) -> str:
    """Return what a slice is called whose *name* is taken; nobody knows *salt* beforehand."""
    return f"{_stem(name)}-{salt[:_SALT]}"


def _stem(name: str) -> str:
    return name[: _LONGEST_NAME - _SALT - 1].rstrip("-.")


def _called(name: str, stored: Mapping[str, ResourceSlice], others: Mapping[str, str]) -> str:
    """Return what the slice is called that should have *name*: as it is stored, if it is."""
    if name in stored:
        return name
    known = min((each for each in stored if each.startswith(f"{_stem(name)}-")), default=name)
    return known if known != name else others.get(name, name)


def quantity(amount: int) -> str:
    """Return *amount* as the API server writes it: ``80Gi``, ``1500Mi``, ``1000``."""
    power = 0
    while amount and amount % _KIB == 0 and power + 1 < len(_BINARY):
        amount, power = amount // _KIB, power + 1
    return f"{amount}{_BINARY[power]}"


def _offered(each: AdvertisedDevice, facts: PoolFacts) -> bool:
    if any(name not in facts.devices for name in each.devices):
        return False
    return facts.kept.taints or not _taints(each, facts)


def _taints(each: AdvertisedDevice, facts: PoolFacts) -> tuple[Taint, ...]:
    """Return what keeps *each* from new claims; a shared one only where no share of it is left."""
    if each.shared and _shares(each, facts):
        return ()
    return worst_taints(facts.taints.get(name, ()) for name in each.devices)


def _shares(each: AdvertisedDevice, facts: PoolFacts) -> int:
    """Return how many claims can have *each*: no claim can have what is withheld."""
    return sum(not facts.taints.get(name) for name in each.devices)


def _device(each: AdvertisedDevice, facts: PoolFacts, counters: Counters) -> SliceDevice:
    use = counters.uses.get(each.name)
    attributes = {**dict(_standard(each, facts)), **each.attributes}
    capacity = _capacity(each, facts)
    room = MOST_ATTRIBUTES - len(capacity)
    return SliceDevice(
        name=each.name,
        attributes=dict(list(attributes.items())[:room]),
        capacity=capacity,
        allow_multiple_allocations=each.shared,
        taints=_taints(each, facts),
        consumes_counters=() if use is None else (use,),
    )


def _capacity(each: AdvertisedDevice, facts: PoolFacts) -> dict[str, Capacity]:
    policy = _NONE_UNLESS_ASKED if each.shared else None
    found = {
        name: Capacity(value=quantity(amount), request_policy=policy)
        for name, amount in each.capacity.items()
    }
    if each.shared:
        # A policy has to fit the value, so that is 1 at least: a taint says that none is left.
        shares = max(_shares(each, facts), 1)
        found[SHARES] = Capacity(value=str(shares), request_policy=_ONE_SHARE)
    return found


def _standard(each: AdvertisedDevice, facts: PoolFacts) -> Iterator[tuple[str, AttributeValue]]:
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
    wanted: SliceContent, stored: ResourceSlice | None, pool: SlicePool, accepted: SentSlice | None
) -> bool:
    if stored is None or stored.spec.pool != pool:
        return False
    content = stored.spec.content
    return content == wanted or accepted == SentSlice(sent=wanted, stored=content)


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
