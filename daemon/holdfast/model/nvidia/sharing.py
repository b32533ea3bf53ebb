"""How GPUs and MIG slices are shared by time slicing: which replicas each counts as."""

from collections.abc import Callable, Collection, Iterator

from msgspec.structs import replace

from holdfast.model.cards import NOT_SHARED, Shared, replica_of, replicas_in
from holdfast.model.devices import Device, Fault, FaultKind
from holdfast.model.ids import DeviceName
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.mig import GpuPart


def advertised(
    part: GpuPart, device: Device, shared: Shared, taken: Callable[[Device], bool]
) -> Iterator[Device]:
    """Yield *device*, which is *part*, or its replicas where it is shared.

    What is *taken*, into another resource, is shared by nobody. While a pod has what was in the
    place of a slice before its GPU was divided as it is, replicas of the slice are given to nobody:
    with the keys of that pod they would exclude each other, too.
    """
    name = device.name
    sharing = shared.get(name.resource, NOT_SHARED)
    if sharing.replicas == 1 or taken(device):
        yield device
        return
    resource = REPLICAS.renamed(name.resource) if sharing.renamed else name.resource
    # All of the GPU excludes them by the names of the keys.
    occupied = part.slice is not None and device.keys - part.keys - {part.gpu.key}
    faults = (*device.faults, _OCCUPIED) if occupied else device.faults
    for number in range(sharing.replicas):
        yield replace(
            device,
            name=DeviceName(resource, REPLICAS.replica(name.id, number)),
            keys=frozenset({replica_of(part.key, number)}),
            faults=faults,
        )


_OCCUPIED = Fault(
    kind=FaultKind.OCCUPIED,
    text="a pod still has what was in its place before the GPU was divided in another way",
)


def why_too_many(devices: Collection[Device], shared: Shared) -> str:
    """Return why a container is not given all of *devices*, in the words of NVIDIA's plugin."""
    singles = any(each.single for each in shared.values())
    if singles and len(devices) > 1 and any(replicas_in(each.keys) for each in devices):
        return f"maximum request size for shared resources is 1; found {len(devices)}"
    return ""
