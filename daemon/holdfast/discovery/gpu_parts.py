"""Turns whole GPUs and MIG slices, as they are advertised, into devices of the inventory."""

import os
from collections.abc import Iterable

from holdfast.model.devices import Device, DeviceKind, DeviceNode, Fault, FaultKind
from holdfast.model.gpu import Gpu, GpuLinks
from holdfast.model.gpu_placement import GpuTopology
from holdfast.model.mig import GpuLayout, GpuPart

_MAJOR = 195
"""Of /dev/nvidiaN, whose minor number is N: the one number of NVIDIA's that the kernel fixes."""
_TOLERATED = frozenset({"memory", "name", "PCI address"})
"""What a GPU can fail to tell and work all the same."""


def gpu_devices(layout: GpuLayout) -> tuple[Device, ...]:
    """Return one device for each part of *layout*, in its order.

    The node of a slice is its GPU's. A GPU that does not tell who it is, where its node is or how
    it is divided has a fault, and so have its slices; the others have none of it.
    """
    return tuple(map(_device, layout.parts))


def gpu_topology(layout: GpuLayout, links: GpuLinks) -> GpuTopology:
    """Return what preferred allocation goes by; it changes only with *layout* and *links*."""
    parents = {part.name.id: part.gpu.uuid for part in layout.parts if part.slice is not None}
    return GpuTopology(links=links, parents=parents)


def _device(part: GpuPart) -> Device:
    gpu = part.gpu
    model = gpu.name if part.slice is None else f"{gpu.name} MIG {part.slice.profile}".strip()
    return Device(
        name=part.name,
        kind=DeviceKind.GPU,
        keys=part.keys,
        nodes=tuple(_nodes(gpu)),
        functions=(),
        numa_node=gpu.numa_node,
        model=model,
        faults=tuple(
            Fault(kind=FaultKind.UNREADABLE, text=f"GPU {gpu.index} ({gpu.uuid}): {problem}")
            for problem in gpu.problems
            if problem.asked not in _TOLERATED
        ),
    )


def _nodes(gpu: Gpu) -> Iterable[DeviceNode]:
    if gpu.minor is not None:
        yield DeviceNode(path=f"/dev/nvidia{gpu.minor}", rdev=os.makedev(_MAJOR, gpu.minor))
