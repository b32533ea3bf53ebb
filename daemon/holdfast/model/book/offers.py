"""What kubelet is told: the devices of each resource, and whether each may be granted anew."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.model.book.book import Book
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.marks import why_withheld
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import KubeletView


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
    """What decides whether kubelet is told that a device is Healthy.

    `lock` is any lock on its keys. `has_or_awaits`: a pod that kubelet counts, or is about to,
    has the device or waits for it under this very resource name and id. `owner_counted`: kubelet
    counts the lock's pod, under whatever name. `releasing_for` are the
    seconds the lock has been RELEASING, `uncommitted_for` those the ledger could not commit.
    `withheld`: a person keeps it from new pods.
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


def offered(facts: OfferFacts) -> bool:
    """Return whether the device is shown Healthy.

    Reluctant on purpose: Unhealthy for the seconds between two pods makes kubelet refuse the second
    one for good, and Unhealthy under a pod that has the device makes it refuse its re-admission.
    """
    if not facts.healthy:
        return False
    if facts.has_or_awaits:
        return True
    if facts.withheld or facts.uncommitted_for > facts.withhold_after:
        return False
    lock = facts.lock
    if lock is None:
        return True
    if lock.device != facts.name:
        return False
    if lock.state is LockState.HELD:
        # Nobody has it under this id: its pod has it by a former plugin's, or is just over.
        return not facts.owner_counted
    return lock.state is LockState.RELEASING and facts.releasing_for <= facts.withhold_after


def has_or_awaits(name: DeviceName, book: Book, view: KubeletView) -> bool:
    """Tell whether a pod that kubelet counts, or is about to, has *name* or waits for it.

    While kubelet's checkpoint cannot be read, every pod of ours that is not over may be one.
    """
    ours = book.claims.naming(name.resource, [name.id])
    if not view.readable:
        return bool(ours)
    return bool(view.pods_with(name)) or any(each.pod is None for each in ours)


def kept_back(
    resource: ResourceName, available: Iterable[DeviceId], inventory: Inventory, book: Book
) -> frozenset[DeviceId]:
    """Return the devices that kubelet could grant, by our knowledge, and does not call available.

    Under a topology policy kubelet names the devices of some NUMA nodes only: what it says tells
    about those nodes alone.
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
        and why_withheld(book.marks, device.keys) is None
    )
