"""Puts what the adapters found into one inventory, in the order that everybody relies on."""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.discovery.source import Source, stamped
from holdfast.host.pci.snapshot import Snapshot
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import DeviceName, ResourceName


def take_inventory(snapshot: Snapshot, sources: Iterable[Source], *, generation: int) -> Inventory:
    """Return all devices that *sources* see in *snapshot*, ordered as `Inventory` promises."""
    resources: dict[ResourceName, int] = {}
    devices: dict[DeviceName, Device] = {}
    for source in sources:
        for resource in source.resources:
            resources.setdefault(resource, len(resources))
        for device in stamped(source.scan(snapshot), source):
            resources.setdefault(device.name.resource, len(resources))
            devices.setdefault(device.name, device)
    return Inventory(
        generation=generation,
        resources=tuple(resources),
        devices=tuple(
            sorted(
                devices.values(),
                key=lambda device: (resources[device.name.resource], *_order(device)),
            )
        ),
    )


def with_found(inventory: Inventory, sources: Iterable[Source]) -> Inventory:
    """Return *inventory* with what drivers told *sources* at the end, in its own order."""
    for source in sources:
        found = source.found()
        inventory = replace(
            inventory,
            resources=tuple(dict.fromkeys((*inventory.resources, *found.resources))),
            devices=(*inventory.devices, *stamped(found.devices, source)),
            unseen=inventory.unseen | found.unseen,
        )
    return inventory


def _order(device: Device) -> tuple[int, tuple[int, ...], str]:
    node = -1 if device.numa_node is None else device.numa_node
    return node, _numbers(device.name.id), device.name.id


def _numbers(address: str) -> tuple[int, ...]:
    """Return the parts of a PCI address as numbers: domains grow beyond four digits."""
    try:
        return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))
    except ValueError:
        return ()
