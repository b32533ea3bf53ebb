"""GetPreferredAllocation: devices that are free before those still being released."""

from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.placement import preferred
from holdfast.runtime.watched import Watched


class Preference:
    """Answers from the latest inventory and book; nothing is read, nothing can fail."""

    def __init__(self, *, ledger: Ledger, inventory: Watched[Inventory]) -> None:
        """Prefer among the devices of *inventory* those without a lock in *ledger*."""
        self._ledger = ledger
        self._inventory = inventory

    def preferred(
        self,
        resource: ResourceName,
        available: tuple[DeviceId, ...],
        must_include: tuple[DeviceId, ...],
        size: int,
    ) -> tuple[DeviceId, ...]:
        """Return *size* of *available*, with all of *must_include*, close together."""
        devices = self._inventory.value.of(resource)
        locked = frozenset().union(*(each.keys for each in self._ledger.book.value.locks.values()))
        avoid = {device.name.id for device in devices if device.keys & locked}
        return preferred(devices, available, must_include, size, avoid=avoid)
