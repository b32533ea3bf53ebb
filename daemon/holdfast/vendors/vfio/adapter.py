"""Advertises pools: PCI functions that the configuration names, granted through VFIO."""

from collections.abc import Iterable, Sequence

from holdfast.discovery.source import Source
from holdfast.host.pci.sysfs import Snapshot
from holdfast.model.devices import Device, Inventory
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ResourceName
from holdfast.model.vfio import PoolSpec, pool_variables
from holdfast.vendors.context import Context
from holdfast.vendors.vfio.groups import pool_devices


class Pools(Source):
    """The devices of pools."""

    name = "vfio"

    def __init__(self, pools: Sequence[PoolSpec]) -> None:
        """Advertise *pools*; those of one resource are one pool."""
        self._pools = pools

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Return the resources of the pools, each once."""
        return tuple(dict.fromkeys(pool.resource for pool in self._pools))

    def scan(self, snapshot: Snapshot) -> Iterable[Device]:
        """Return one device for each set of functions that cannot be granted apart."""
        return pool_devices(snapshot, self._pools)

    def grant(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        inventory: Inventory,
        *,
        by_claim: bool,
    ) -> ContainerGrant:
        """Return the variable that names the PCI addresses."""
        del inventory, by_claim
        addresses = [address for device in devices for address in device.functions]
        return ContainerGrant(envs=pool_variables(resource, addresses))


def pools(on: Context) -> Source:
    """Return the adapter of the pools that the settings name, but for the TPU adapter's."""
    settings = on.settings.value
    tpu = settings.tpu
    return Pools(
        [
            pool.spec()
            for pool in settings.pools
            if not (tpu.enabled and pool.resource_name == tpu.resource_name)
        ]
    )
