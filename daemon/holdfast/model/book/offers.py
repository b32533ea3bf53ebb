"""The device lists for kubelet: the devices of each resource, and whether each is Healthy."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.model.book.book import Book
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.withheld import why_withheld
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.kubelet import CheckpointEntry, KubeletView


class OfferedDevice(Struct, frozen=True, kw_only=True, order=True):
    """One line of a ListAndWatch message."""

    id: DeviceId
    healthy: bool
    numa_node: int | None = None


class Offers(Struct, frozen=True, kw_only=True):
    """The device lists of all resources.

    `resend` grows when an unchanged list must be sent once more, which makes kubelet write its
    checkpoint.
    """

    devices: Mapping[ResourceName, tuple[OfferedDevice, ...]] = field(default_factory=dict)
    resend: int = 0

    def of(self, resource: ResourceName) -> tuple[OfferedDevice, ...]:
        """Return the devices of *resource*; none when it is not advertised."""
        return self.devices.get(resource, ())


class OfferFacts(Struct, frozen=True, kw_only=True):
    """What decides whether a device is reported to kubelet as Healthy.

    `lock` is any lock on its keys. `has_or_awaits`: a pod that kubelet counts, or will count, has
    the device or waits for it under this resource name and id. `owner_counted`: kubelet counts the
    lock's pod, under any name. `releasing_for` are the seconds the lock has been RELEASING,
    `uncommitted_for` those in which the ledger could not commit. `withheld`: a person withholds it.
    `leaving`: the settings leave the device out, or give it another name, once no pod has it.
    """

    healthy: bool
    name: DeviceName
    lock: DeviceLock | None = None
    has_or_awaits: bool = False
    owner_counted: bool = False
    releasing_for: float = 0.0
    uncommitted_for: float = 0.0
    withhold_after: float
    withheld: bool = False
    leaving: bool = False


def offered(facts: OfferFacts) -> bool:
    """Return whether the device is shown Healthy.

    Reluctant on purpose: Unhealthy for the seconds between two pods makes kubelet refuse the second
    one for good, and Unhealthy under a pod that has the device makes it refuse its re-admission.
    """
    if not facts.healthy:
        return False
    if facts.has_or_awaits:
        return True
    if facts.withheld or facts.leaving or facts.uncommitted_for > facts.withhold_after:
        return False
    lock = facts.lock
    if lock is None:
        return True
    if lock.device != facts.name or lock.claim is not None:
        return False
    if lock.state is LockState.HELD:
        # No pod has it under this id: its pod has it under a former plugin's, or has just ended.
        return not facts.owner_counted
    return lock.state is LockState.RELEASING and facts.releasing_for <= facts.withhold_after


def has_or_awaits(name: DeviceName, book: Book, view: KubeletView) -> bool:
    """Return whether a pod that kubelet counts, or will count, has *name* or waits for it.

    While kubelet's checkpoint cannot be read, every pod whose Allocation has not ended may be one.
    """
    naming = book.holdings.naming(name.resource, [name.id])
    ours = [each for each in naming if each.claim is None]
    if not view.readable:
        return bool(ours)
    return bool(view.pods_with(name)) or any(each.pod is None for each in ours)


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
    return found


def kept_back(
    resource: ResourceName, available: Iterable[DeviceId], inventory: Inventory, book: Book
) -> frozenset[DeviceId]:
    """Return the devices that kubelet could grant but does not call available.

    Under a topology policy kubelet names only the devices of some NUMA nodes, so its answer counts
    only for those nodes.
    """
    named = frozenset(available)
    devices = inventory.of(resource)
    nodes = {device.numa_node for device in devices if device.name.id in named}
    return frozenset(
        device.name.id
        for device in devices
        if device.healthy
        and device.name.id not in named
        and device.numa_node in nodes
        and book.lock_on(device.keys) is None
        and why_withheld(book, device.keys) is None
    )
