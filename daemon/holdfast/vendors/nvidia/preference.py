"""Which GPUs or slices kubelet should pick: GPUs near each other, slices spread or packed."""

from collections.abc import Sequence

from holdfast.model.cards import parted
from holdfast.model.devices import Device
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.nvidia.placement import GpuBoard, GpuTopology
from holdfast.model.nvidia.slice_placement import SlicePolicy, preferred_slices
from holdfast.runtime.watched import Watched


class GpuPreference:
    """Answers from the topology that was read last, and asks nobody."""

    def __init__(self, topology: Watched[GpuTopology], slices: Watched[SlicePolicy]) -> None:
        """Prefer by *topology*: which GPUs are near each other, and which slices are of one GPU.

        *slices* says from which GPU the next MIG slice is taken.
        """
        self._topology = topology
        self._slices = slices
        self._boards: dict[ResourceName, tuple[Sequence[Device], GpuTopology, GpuBoard]] = {}

    def preferred(self, devices: Sequence[Device], choice: Choice) -> tuple[DeviceId, ...]:
        """Return GPUs that are near each other, or slices and replicas as the policy says."""
        replicas = {each.name.id: parted(each.name.id) for each in devices}
        parents = {
            **self._topology.value.parents,
            **{id_: card for id_, (card, number) in replicas.items() if number},
        }
        if any(device.name.id in parents for device in devices):
            ids = tuple(device.name.id for device in devices)
            return preferred_slices(ids, parents, self._slices.value, choice)
        return self._board(devices).preferred(choice)

    def _board(self, devices: Sequence[Device]) -> GpuBoard:
        """Return the board of *devices*, made anew only when they or the topology changed."""
        topology, resource = self._topology.value, devices[0].name.resource
        known = self._boards.get(resource)
        if known is None or known[0] != devices or known[1] is not topology:
            known = (devices, topology, GpuBoard.of(devices, topology))
            self._boards[resource] = known
        return known[2]
