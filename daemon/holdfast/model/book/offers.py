"""The device lists for kubelet: the devices of each resource, and whether each is Healthy."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.model.book.book import Book, LockState
from holdfast.model.book.standing import FreeFor, Standing
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.kubelet import CheckpointEntry


class OfferedDevice(Struct, frozen=True, kw_only=True, order=True):
    """One line of a ListAndWatch message."""

    id: DeviceId
    healthy: bool
    numa_node: int | None = None


class Offers(Struct, frozen=True, kw_only=True):
    """The device lists of all resources.

    `resend` grows when an unchanged list must be sent once more, which makes kubelet write its
    checkpoint. `by_claims` are the resources that are served by DRA, listed or not; of those that
    are `ungated` kubelet is not to ask before a container starts.
    """

    devices: Mapping[ResourceName, tuple[OfferedDevice, ...]] = field(default_factory=dict)
    resend: int = 0
    by_claims: frozenset[ResourceName] = frozenset()
    ungated: frozenset[ResourceName] = frozenset()

    def of(self, resource: ResourceName) -> tuple[OfferedDevice, ...]:
        """Return the devices of *resource*; none when it is not advertised."""
        return self.devices.get(resource, ())

    def healthy(self) -> tuple[DeviceName, ...]:
        """Return the devices that kubelet may give to a pod."""
        return tuple(
            DeviceName(resource, each.id)
            for resource, devices in self.devices.items()
            for each in devices
            if each.healthy
        )


def names_had(
    book: Book, entries: Iterable[CheckpointEntry]
) -> dict[DeviceName, frozenset[HardwareKey]]:
    """Return the names under which pods and claims have devices or await them, with the hardware.

    What only the *entries* of kubelet's checkpoint name is without keys. What is called foreign was
    given to nobody.
    """
    found = {
        DeviceName(entry.resource, id_): frozenset[HardwareKey]()
        for entry in entries
        for id_ in entry.devices
    }
    for allocation in book.allocations.values():
        found |= allocation.names()
    for lock in book.locks.values():
        if lock.state is not LockState.FOREIGN:
            found[lock.device] = lock.keys
    for claim in book.claims.values():
        found |= claim.admin
    return found


def kept_back(available: Iterable[DeviceId], standings: Iterable[Standing]) -> frozenset[DeviceId]:
    """Return which devices of a resource kubelet could grant and does not call available.

    Under a topology policy kubelet names only the devices of some NUMA nodes, so its answer counts
    only for those nodes.
    """
    named = frozenset(available)
    there = [(each, device) for each in standings if (device := each.device) is not None]
    nodes = {device.numa_node for each, device in there if each.name.id in named}
    return frozenset(
        each.name.id
        for each, device in there
        if each.free_for is FreeFor.ANY and each.name.id not in named and device.numa_node in nodes
    )
