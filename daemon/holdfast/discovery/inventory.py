"""Puts what the finders found into one inventory, in the order that everybody relies on."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.discovery.pools import pool_devices
from holdfast.discovery.snapshot import Snapshot
from holdfast.discovery.tpu import tpu_devices
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import ResourceName
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.model.vfio.pools import PoolSpec


class Offered(Struct, frozen=True, kw_only=True):
    """What this node advertises. `tpu` None: TPU chips are not advertised."""

    tpu: ResourceName | None = TPU_RESOURCE
    pools: Sequence[PoolSpec] = ()

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """The resource names, each once, TPU chips first."""
        names = [] if self.tpu is None else [self.tpu]
        return tuple(dict.fromkeys([*names, *(pool.resource for pool in self.pools)]))


class Besides(Struct, frozen=True, kw_only=True):
    """What others found: `devices` of `resources`; `unread`, `unseen`: as `Inventory` says."""

    resources: tuple[ResourceName, ...] = ()
    devices: tuple[Device, ...] = ()
    unread: frozenset[ResourceName] = frozenset()
    unseen: frozenset[ResourceName] = frozenset()

    def added_to(self, found: Inventory) -> Inventory:
        """Return *found* with all of it at the end."""
        return replace(
            found,
            resources=(*found.resources, *self.resources),
            devices=(*found.devices, *self.devices),
            unread=self.unread,
            unseen=self.unseen,
        )


def take_inventory(snapshot: Snapshot, offered: Offered, *, generation: int) -> Inventory:
    """Return all devices of *snapshot* that are *offered*, ordered as `Inventory` promises."""
    found = () if offered.tpu is None else tpu_devices(snapshot, offered.tpu)
    resources = offered.resources
    devices = {
        device.name: device
        # A pool of the TPU resource's own name adds to it; the chip's own view of itself wins.
        for device in (*pool_devices(snapshot, offered.pools), *found)
    }
    rank = {resource: place for place, resource in enumerate(resources)}
    return Inventory(
        generation=generation,
        resources=resources,
        devices=tuple(
            sorted(
                devices.values(), key=lambda device: (rank[device.name.resource], *_order(device))
            )
        ),
    )


def _order(device: Device) -> tuple[int, tuple[int, ...], str]:
    node = -1 if device.numa_node is None else device.numa_node
    return node, _numbers(device.name.id), device.name.id


def _numbers(address: str) -> tuple[int, ...]:
    """Return the parts of a PCI address as numbers: domains grow beyond four digits."""
    try:
        return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))
    except ValueError:
        return ()
