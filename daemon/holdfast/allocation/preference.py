"""GetPreferredAllocation: devices that are free before those that are released or quarantined."""

from collections.abc import Collection

from holdfast.ledger.ledger import Ledger
from holdfast.model.book.offers import kept_back
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.gate.placement import preferred
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.nvidia.placement import GpuBoard, GpuTopology
from holdfast.model.nvidia.slice_placement import SlicePolicy, preferred_slices
from holdfast.runtime.watched import Watched


class Preference:
    """Answers from the latest inventory, topology and book; nothing is read, nothing can fail."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        topology: Watched[GpuTopology] | None = None,
        slices: SlicePolicy = SlicePolicy.DISTRIBUTED,
    ) -> None:
        """Prefer among the devices of *inventory* those without a lock in *ledger*.

        *topology* says which GPUs are near each other, and which slices are of one GPU; without it
        their NUMA nodes do. *slices* says from which GPU the next MIG slice is taken.
        """
        self._slices = slices
        self._ledger = ledger
        self._inventory = inventory
        self._topology = topology or Watched(GpuTopology())
        self._boards: dict[ResourceName, tuple[tuple[Device, ...], GpuTopology, GpuBoard]] = {}
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
            if book.lock_on(device.keys) is not None or book.marks.on(device.keys)
        }
        parents = self._topology.value.parents
        if any(device.name.id in parents for device in devices):
            return preferred_slices(
                [each.name.id for each in devices],
                parents,
                self._slices,
                available=available,
                must_include=must_include,
                size=size,
                avoid=avoid,
            )
        if devices and all(device.kind is DeviceKind.DRIVER for device in devices):
            board = self._board(resource, devices)
            return board.preferred(available, must_include, size, avoid=avoid)
        return preferred(devices, available, must_include, size, avoid=avoid)

    def _board(self, resource: ResourceName, devices: tuple[Device, ...]) -> GpuBoard:
        """Return the board of *devices*, made anew only when they or the topology changed."""
        topology = self._topology.value
        known = self._boards.get(resource)
        if known is None or known[0] != devices or known[1] is not topology:
            known = (devices, topology, GpuBoard.of(devices, topology))
            self._boards[resource] = known
        return known[2]
