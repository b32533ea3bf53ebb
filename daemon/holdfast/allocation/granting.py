"""What a container is given: the nodes of its devices, and what else its programs expect."""

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.discovery.source import Sources
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.gate.cdi import Published, cdi_name
from holdfast.model.grants import VFIO_CONTAINER, ContainerGrant, GrantedNode
from holdfast.model.ids import ResourceName


class Granting:
    """Builds answers to Allocate; it asks nobody and never waits."""

    def __init__(
        self, sources: Sources, *, published: Callable[[], Published] | None = None
    ) -> None:
        """Give what *sources* say for their devices.

        `published` is what the CDI spec files say; None: devices are never handed over by name.
        """
        self._sources = sources
        self._published = published

    def grant(
        self, resource: ResourceName, devices: tuple[Device, ...], inventory: Inventory
    ) -> ContainerGrant:
        """Return exactly the granted nodes, the VFIO container's where needed, and variables.

        With a spec that has them all it returns CDI names for the nodes. Without one the nodes
        themselves: the container then runs as it would, and only a reboot may take it its chip.
        """
        if not devices:
            return ContainerGrant()
        own = self._sources.of(devices).grant(resource, devices, inventory)
        ours = [device for device in devices if device.kind is not DeviceKind.DRIVER]
        if ours and self._published is not None and all(map(self._published().covers, ours)):
            names = (cdi_name(device.name) for device in ours)
            return replace(own, cdi_devices=(*own.cdi_devices, *names))
        nodes = [
            GrantedNode(host_path=node.path, container_path=node.path)
            for device in ours
            for node in device.nodes
        ]
        if any(device.kind is DeviceKind.VFIO for device in ours):
            nodes.append(GrantedNode(host_path=VFIO_CONTAINER, container_path=VFIO_CONTAINER))
        return replace(own, nodes=tuple(dict.fromkeys((*own.nodes, *nodes))))
