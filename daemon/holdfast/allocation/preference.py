"""GetPreferredAllocation: devices that are free before those that are released or quarantined."""

from collections.abc import Collection

from holdfast.discovery.source import Sources
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.offers import kept_back
from holdfast.model.book.withheld import quarantines_on
from holdfast.model.devices import Inventory
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.runtime.watched import Watched


class Preference:
    """Answers from the latest inventory, topology and book; nothing is read, nothing can fail."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        sources: Sources,
    ) -> None:
        """Prefer among the devices of *inventory* those without a lock in *ledger*."""
        self._ledger = ledger
        self._inventory = inventory
        self._sources = sources
        self.kept_back: dict[ResourceName, frozenset[DeviceId]] = {}
        """What kubelet left out of its last question for each resource, without our knowing why."""

    def preferred(
        self,
        resource: ResourceName,
        available: tuple[DeviceId, ...],
        must_include: tuple[DeviceId, ...],
        size: int,
    ) -> tuple[DeviceId, ...]:
        """Return *size* of *available*, with all of *must_include*, close together."""
        inventory, book = self._inventory.value, self._ledger.book.value
        self.kept_back[resource] = kept_back(resource, available, inventory, book)
        devices = inventory.of(resource)
        avoid: Collection[DeviceId] = {
            device.name.id
            for device in devices
            if book.lock_on(device.keys) is not None or quarantines_on(book, device.keys)
        }
        choice = Choice(available=available, must_include=must_include, size=size, avoid=avoid)
        # Where a device is on the node does not change with its name, or when others are left out.
        beside = inventory.beside(*devices)
        return self._sources.of(devices).preferred(beside, choice)
