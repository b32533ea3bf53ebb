"""Finds PCI functions that are granted through their IOMMU groups, and makes devices of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.host.pci.sysfs import PciFunction, Snapshot
from holdfast.model.devices import (
    Device,
    DeviceKind,
    DeviceNode,
    Fault,
    FaultKind,
    Identity,
    pci_key,
)
from holdfast.model.groups import grouped, tied
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.tpu.generations import slot_of
from holdfast.model.vfio import (
    PoolSpec,
    chip_faults,
    function_faults,
    group_faults,
    is_bridge,
    node_faults,
)


class PoolFunction(Struct, frozen=True, kw_only=True):
    """A function that belongs to a resource. `chip_functions` of its slot make one chip."""

    function: PciFunction
    model: str
    chip_functions: int = 1


def vfio_devices(
    snapshot: Snapshot, resource: ResourceName, matches: Sequence[PoolFunction]
) -> tuple[Device, ...]:
    """Return one device for each set of *matches* that cannot be granted apart.

    Functions in one IOMMU group cannot, nor can the functions of one chip.
    """
    return tuple(
        _device(snapshot, resource, sorted(each, key=lambda match: match.function.address))
        for each in tied((match, _ties(match)) for match in matches)
    )


def unreadable(functions: Iterable[PciFunction]) -> tuple[Fault, ...]:
    """Return a fault for each odd value in the kernel's files about *functions*."""
    return tuple(
        Fault(kind=FaultKind.UNREADABLE, text=f"{function.address} cannot be understood: {problem}")
        for function in functions
        for problem in function.problems
    )


def no_group(function: PciFunction) -> Fault:
    """Return the fault of a function that has no IOMMU group."""
    text = f"{function.address} has no IOMMU group; turn the IOMMU on in firmware and kernel"
    return Fault(kind=FaultKind.NO_NODE, text=text)


def _ties(match: PoolFunction) -> Iterator[str]:
    """Yield what *match* cannot be granted without: its IOMMU group and its chip."""
    if match.function.iommu_group is not None:
        yield f"group {match.function.iommu_group}"
    if match.chip_functions > 1:
        yield f"chip {slot_of(match.function.address)}"


def _device(snapshot: Snapshot, resource: ResourceName, matches: Sequence[PoolFunction]) -> Device:
    wanted = [match.function for match in matches]
    groups = sorted({f.iommu_group for f in wanted if f.iommu_group is not None})
    members = {f.address: f for f in wanted}
    for group in groups:
        members |= {member.address: member for member in snapshot.members(group)}
    useful = [f for _, f in sorted(members.items()) if not is_bridge(f.class_code)]
    first = matches[0]
    address = first.function.address
    return Device(
        name=DeviceName(
            resource, DeviceId(slot_of(address) if first.chip_functions > 1 else address)
        ),
        kind=DeviceKind.VFIO,
        keys=frozenset(pci_key(function.address) for function in useful),
        nodes=tuple(node for group in groups for node in _nodes(snapshot, group)),
        functions=tuple(f.address for f in useful if snapshot.grantable(f)),
        numa_node=next((f.numa_node for f in wanted if f.numa_node is not None), None),
        model=first.model,
        identity=Identity(
            indexes=tuple(map(str, groups)), addresses=tuple(f.address for f in wanted)
        ),
        faults=(
            *incomplete_chips(matches),
            *(fault for function in wanted for fault in _function_faults(snapshot, function)),
            *(fault for group in groups for fault in _group_faults(snapshot, group, wanted)),
            *unreadable(members.values()),
        ),
    )


def _nodes(snapshot: Snapshot, group: int) -> tuple[DeviceNode, ...]:
    """Return the group's node. Without a number from sysfs nothing can be recognised by it."""
    node = snapshot.group_node(group)
    return () if node.expected is None else (DeviceNode(path=node.path, rdev=node.expected),)


def incomplete_chips(matches: Sequence[PoolFunction]) -> tuple[Fault, ...]:
    """Return a fault for each chip that shows fewer functions than it is made of."""
    expected = {slot_of(match.function.address): match.chip_functions for match in matches}
    found = Counter(slot_of(match.function.address) for match in matches)
    return tuple(
        fault
        for slot, number in expected.items()
        for fault in chip_faults(slot, found[slot], number)
    )


def _function_faults(snapshot: Snapshot, function: PciFunction) -> tuple[Fault, ...]:
    if (group := function.iommu_group) is not None:
        return function_faults(snapshot.facts(function), snapshot.group_node(group))
    return function_faults(snapshot.facts(function), None) or (no_group(function),)


def _group_faults(
    snapshot: Snapshot, group: int, wanted: Sequence[PciFunction]
) -> tuple[Fault, ...]:
    members = snapshot.members(group)
    faults = group_faults(group, (snapshot.facts(f) for f in members if f not in wanted))
    if any(snapshot.grantable(member) for member in members):
        return *faults, *node_faults(snapshot.group_node(group), f"IOMMU group {group}")
    return faults  # without a driver there is no node, and the driver is the fault to name


def pool_devices(snapshot: Snapshot, pools: Sequence[PoolSpec]) -> tuple[Device, ...]:
    """Return one device for each IOMMU group with a function that a pool takes.

    Pools that name the same resource are one pool. A function that two resources take is a device
    of both; their keys exclude each other.
    """
    devices: list[Device] = []
    for resource, specs in grouped((pool.resource, pool) for pool in pools).items():
        devices += vfio_devices(snapshot, resource, pool_matches(snapshot, specs))
    return tuple(devices)


def pool_matches(snapshot: Snapshot, specs: Sequence[PoolSpec]) -> list[PoolFunction]:
    """Return the functions of *snapshot* that any of *specs* takes."""
    return [
        PoolFunction(function=function, model=f"{function.vendor:04x}:{function.device:04x}")
        for function in snapshot.functions.values()
        if any(_takes(spec, function) for spec in specs)
    ]


def _takes(spec: PoolSpec, function: PciFunction) -> bool:
    return not is_bridge(function.class_code) and spec.matches(
        function.address, function.vendor, function.device, function.class_code
    )
