"""Finds the devices of configured pools: any PCI functions that are granted through VFIO."""

from collections.abc import Sequence

from holdfast.host.pci.snapshot import Snapshot
from holdfast.host.pci.sysfs import PciFunction
from holdfast.model.devices import Device
from holdfast.model.ids import ResourceName
from holdfast.model.vfio.pools import PoolSpec
from holdfast.model.vfio.viability import is_bridge
from holdfast.vendors.vfio.groups import Match, vfio_devices


def pool_devices(snapshot: Snapshot, pools: Sequence[PoolSpec]) -> tuple[Device, ...]:
    """Return one device for each IOMMU group with a function that a pool takes.

    Pools that name the same resource are one pool. A function that two resources take is a device
    of both; their keys exclude each other.
    """
    rules: dict[ResourceName, list[PoolSpec]] = {}
    for pool in pools:
        rules.setdefault(pool.resource, []).append(pool)
    devices: list[Device] = []
    for resource, specs in rules.items():
        devices += vfio_devices(snapshot, resource, pool_matches(snapshot, specs))
    return tuple(devices)


def pool_matches(snapshot: Snapshot, specs: Sequence[PoolSpec]) -> list[Match]:
    """Return the functions of *snapshot* that any of *specs* takes."""
    return [
        Match(function=function, model=f"{function.vendor:04x}:{function.device:04x}")
        for function in snapshot.functions.values()
        if any(_takes(spec, function) for spec in specs)
    ]


def _takes(spec: PoolSpec, function: PciFunction) -> bool:
    return not is_bridge(function.class_code) and spec.matches(
        function.address, function.vendor, function.device, function.class_code
    )
