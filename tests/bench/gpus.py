"""Nodes with GPUs to measure on, and how their GPUs reach each other."""

from itertools import combinations

from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey
from holdfast.model.nvidia import GPU
from holdfast.model.nvidia.gpu import GpuLinks, Link
from holdfast.model.nvidia.placement import GpuTopology

_DOUBLE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
_SINGLE = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}

GpuNode = tuple[Inventory, GpuTopology]


def cube_mesh() -> GpuNode:
    """Return eight GPUs in the hybrid cube mesh of a DGX-1: no two of them are alike."""
    links = {**dict.fromkeys(_DOUBLE, 2), **dict.fromkeys(_SINGLE, 1)}
    nvlinks = {(_id(one), _id(other)): count for (one, other), count in links.items()}
    inventory, pci = _node(8), _pci(8)
    return inventory, GpuTopology(links=GpuLinks(pci=pci, nvlinks=nvlinks))


def switch_pairs(gpus: int) -> GpuNode:
    """Return *gpus* without NVLink at two CPUs, two behind each PCI switch."""
    pairs = {(_id(place), _id(place + 1)): Link.SINGLE_SWITCH for place in range(0, gpus, 2)}
    return _node(gpus), GpuTopology(links=GpuLinks(pci={**_pci(gpus), **pairs}))


def _node(gpus: int) -> Inventory:
    devices = tuple(
        Device(
            name=DeviceName(GPU, DeviceId(_id(place))),
            kind=DeviceKind.DRIVER,
            source="nvidia",
            keys=frozenset({HardwareKey(f"card/{_id(place)}")}),
            nodes=(),
            functions=(),
            numa_node=place * 2 // gpus,
        )
        for place in range(gpus)
    )
    return Inventory(resources=(GPU,), devices=devices)


def _pci(gpus: int) -> dict[tuple[str, str], Link]:
    return {
        (_id(one), _id(other)): (
            Link.SAME_CPU if one * 2 // gpus == other * 2 // gpus else Link.CROSS_CPU
        )
        for one, other in combinations(range(gpus), 2)
    }


def _id(place: int) -> str:
    return f"GPU-{place:08x}-0000-4000-8000-000000000000"
