"""Finds the TPU chips of this host, behind VFIO groups or accel nodes."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.host.pci.sysfs import PciFunction, Snapshot
from holdfast.model.devices import Device, DeviceKind, Fault, FaultKind, pci_key
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.tpu.generations import TPU_RESOURCE, generation_of
from holdfast.model.vfio import node_faults, removal
from holdfast.vendors.vfio.groups import PoolFunction, unreadable, vfio_devices


class TpuMatches(Struct, frozen=True, kw_only=True):
    """The functions of TPU chips, by how the kernel lets them be reached."""

    vfio: tuple[PoolFunction, ...] = ()
    accel: tuple[PoolFunction, ...] = ()


def tpu_devices(snapshot: Snapshot, resource: ResourceName = TPU_RESOURCE) -> tuple[Device, ...]:
    """Return the chips of *snapshot* under *resource*, in no particular order."""
    found = tpu_matches(snapshot)
    return (
        *vfio_devices(snapshot, resource, found.vfio),
        *(_accel_device(snapshot, resource, match) for match in found.accel),
    )


def tpu_matches(snapshot: Snapshot) -> TpuMatches:
    """Return the functions of *snapshot* that belong to TPU chips.

    How a chip is reached is what the kernel shows. Its generation decides only while the chip has
    no driver.
    """
    found = grouped(_matches(snapshot))
    return TpuMatches(vfio=found.get(DeviceKind.VFIO, ()), accel=found.get(DeviceKind.ACCEL, ()))


def _matches(snapshot: Snapshot) -> Iterator[tuple[DeviceKind, PoolFunction]]:
    for each in snapshot.functions.values():
        known = generation_of(each.vendor, each.device, each.subsystem_device)
        if known is not None:
            kind = known.kind
            if snapshot.grantable(each):
                kind = DeviceKind.VFIO
            elif each.address in snapshot.accel:
                kind = DeviceKind.ACCEL
            chip_functions = known.functions_per_chip
            yield kind, PoolFunction(function=each, model=known.name, chip_functions=chip_functions)


def _accel_device(snapshot: Snapshot, resource: ResourceName, match: PoolFunction) -> Device:
    function = match.function
    accel = snapshot.accel.get(function.address)
    return Device(
        name=DeviceName(resource, DeviceId(function.address)),
        kind=DeviceKind.ACCEL,
        keys=frozenset({pci_key(function.address)}),
        nodes=() if accel is None else (accel,),
        functions=(),
        numa_node=function.numa_node,
        model=match.model,
        faults=(*accel_faults(snapshot, function), *unreadable((function,))),
    )


def accel_faults(snapshot: Snapshot, function: PciFunction) -> tuple[Fault, ...]:
    """Return what keeps a chip with a node of the TPU's own driver from being used."""
    accel = snapshot.accel.get(function.address)
    if accel is None:
        bound = f"is bound to {function.driver}" if function.driver else "has no driver"
        text = (
            f"{function.address} cannot be used: it {bound} and has no accel node;"
            " load the TPU's driver"
        )
        return (Fault(kind=FaultKind.NO_DRIVER, text=text),)
    node = snapshot.node(accel.path, accel.rdev)
    if function.driver is None and node.exists:
        return (removal(function.address, node),)
    return node_faults(node, function.address)
