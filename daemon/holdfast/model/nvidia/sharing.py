"""How GPUs are shared by time slicing: which replicas each counts as, and what one pod may ask."""

from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec.structs import replace

from holdfast.model.cards import NOT_SHARED, Shared, replica_key, replicas_in
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceName
from holdfast.model.nvidia.mig import GpuPart
from holdfast.model.nvidia.replicas import REPLICAS


def advertised(
    part: GpuPart, device: Device, shared: Shared, taken: Callable[[Device], bool]
) -> Iterator[Device]:
    """Yield *device*, which is *part*, or its replicas where it is shared.

    What is in MIG mode is not, neither a GPU nor a slice: what runs on such a GPU is on its slices.
    Nor is what is *taken*, into another resource, which is shared by nobody.
    """
    name = device.name
    sharing = shared.get(name.resource, NOT_SHARED)
    if sharing.replicas == 1 or part.gpu.mig or taken(device):
        yield device
        return
    resource = REPLICAS.renamed(name.resource) if sharing.renamed else name.resource
    for number in range(sharing.replicas):
        yield replace(
            device,
            name=DeviceName(resource, REPLICAS.replica(name.id, number)),
            keys=frozenset({replica_key(name.id, number)}),
        )


def why_too_many(devices: Collection[Device], shared: Shared) -> str:
    """Return why a container is not given all of *devices*, in the words of NVIDIA's plugin."""
    singles = any(each.single for each in shared.values())
    if singles and len(devices) > 1 and any(replicas_in(each.keys) for each in devices):
        return f"maximum request size for shared resources is 1; found {len(devices)}"
    return ""


def why_not_shared(parts: Iterable[GpuPart], shared: Shared) -> str:
    """Return what the settings share and this node cannot, and what to do; empty: nothing."""
    resources = {part.name.resource for part in parts if part.gpu.mig}
    names = sorted(each for each in resources if shared.get(each, NOT_SHARED).replicas > 1)
    if not names:
        return ""
    return (
        f"{', '.join(names)}: GPUs in MIG mode and their slices are not shared, so "
        "sharing.timeSlicing has no effect on them; divide the GPUs into more slices"
    )
