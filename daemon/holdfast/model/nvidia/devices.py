"""From what is known of the GPUs to the devices that kubelet can grant."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.cards import Shared, is_part, part_key, whole_of
from holdfast.model.devices import (
    Device,
    DeviceKind,
    DeviceNode,
    Fault,
    FaultKind,
    Identity,
)
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.gpu import NOWHERE, DriverState, Gpu, GpuLinks, GpuTraits
from holdfast.model.nvidia.mig import GpuLayout, GpuPart
from holdfast.model.nvidia.placement import GpuTopology
from holdfast.model.nvidia.sharing import advertised

_TOLERATED = frozenset({"memory", "name", "PCI address"})
"""What a GPU can fail to tell and work all the same."""
_LEAVING = "gpu.migStrategy does not advertise it: it goes from the list once no pod has it"


class GpuFacts(Struct, frozen=True, kw_only=True):
    """All that decides what is advertised of the GPUs.

    `layout` is what the last reading that had any showed: while the driver is away its parts stay
    on the list, Unhealthy, and `reason` says why. `nodes` are the GPUs' device nodes by minor
    number, `drm` those by which programs draw on a GPU, by its UUID, `caps` those that a slice
    needs as well, `control` the host paths of those that every GPU user needs; `no_nodes` says why
    there are none at all. `version` is the driver's. `traits` are by the UUID of the whole GPU.

    `imex` is the host path of the node of IMEX channel 0, empty where there is none;
    `no_imex` says why there is none although no container is to start without it.
    """

    state: DriverState = DriverState.ABSENT
    reason: str = ""
    layout: GpuLayout = field(default_factory=GpuLayout)
    nodes: Mapping[int, DeviceNode] = field(default_factory=dict)
    drm: Mapping[str, tuple[DeviceNode, ...]] = field(default_factory=dict)
    caps: Mapping[DeviceId, tuple[DeviceNode, ...]] = field(default_factory=dict)
    control: tuple[str, ...] = ()
    no_nodes: str = ""
    version: str = ""
    traits: Mapping[str, GpuTraits] = field(default_factory=dict)
    imex: str = ""
    no_imex: str = ""


def gpu_devices(
    facts: GpuFacts,
    locks: Mapping[DeviceName, frozenset[HardwareKey]] | None = None,
    shared: Shared | None = None,
    taken: Callable[[Device], bool] = lambda _device: False,
) -> tuple[Device, ...]:
    """Return one device for each part of the layout, in its order, or its replicas.

    What is *taken* by a rule of the settings, into another resource or out of all, is not shared.

    What is among *locks* and no more, a slice or a GPU that has been divided since, still excludes
    the whole GPU and the slices that have its place: its pod may open what these are reached by.
    So does what had been shared.

    What a pod has and is there, and is not advertised any more, stays until the pod lets it go.

    The node of a slice is its GPU's. A GPU that does not tell where its node is or how it is
    divided has a fault, and so have its slices; the others have none of it.
    """
    parts = facts.layout.parts
    names = {part.name for part in parts}
    had = locks or {}
    former = {REPLICAS.whole(each) for each in had} - names
    kept = tuple(
        replace(part, name=name)
        for part in facts.layout.there
        for name in part.every_name
        if name in former and _was_given(part, had.get(name, frozenset()))
    )
    # But not of the whole of a divided GPU: its pod excludes all slices, those of today too.
    names |= {part.name for part in kept if part.slice is not None}
    # A lock of what is there has taken over such keys, and must not keep them alive.
    left = (keys for name, keys in had.items() if name not in names)
    locked: frozenset[HardwareKey] = frozenset().union(*left)

    def offered(part: GpuPart) -> Iterable[Device]:
        return advertised(part, _device(part, facts, locked), shared or {}, taken)

    leaving = (each for part in kept for each in offered(part) if each.name in had)
    return (
        *(each for part in parts for each in offered(part)),
        *(replace(each, leaving=_LEAVING) for each in leaving),
    )


def gpu_topology(layout: GpuLayout, links: GpuLinks) -> GpuTopology:
    """Return what preferred allocation goes by; it changes only with *layout* and *links*."""
    parents = {part.name.id: part.gpu.uuid for part in layout.parts if part.slice is not None}
    return GpuTopology(links=links, parents=parents)


def _was_given(part: GpuPart, had: frozenset[HardwareKey]) -> bool:
    """Tell whether *had* are the keys of *part* as it is: not of a GPU that was divided since."""
    return part.slice is not None or not part.gpu.mig or any(map(is_part, had))


def _inherited(part: GpuPart, locked: frozenset[HardwareKey]) -> frozenset[HardwareKey]:
    """Return those of *locked* by whose nodes *part* can be reached, though its GPU has changed."""
    gpu, piece = part.gpu, part.slice
    today = {gpu.key_of(each) for each in gpu.slices}
    place = part_key(gpu.uuid, "" if piece is None else f"{piece.gi}/")
    return frozenset(
        whole
        for key in locked
        if (whole := whole_of(key)) not in today and (key == gpu.key or whole.startswith(place))
    )


def _device(part: GpuPart, facts: GpuFacts, locked: frozenset[HardwareKey]) -> Device:
    gpu = part.gpu
    node = facts.nodes.get(gpu.minor) if gpu.minor is not None else None
    model = gpu.name if part.slice is None else f"{gpu.name} MIG {part.slice.profile}".strip()
    return Device(
        name=part.name,
        kind=DeviceKind.DRIVER,
        keys=part.keys | _inherited(part, locked),
        nodes=() if node is None else (node,),
        functions=(),
        # Nothing draws on a slice.
        other_nodes=facts.drm.get(gpu.uuid, ()) if part.slice is None else (),
        numa_node=gpu.numa_node,
        model=model,
        identity=_identity(part),
        faults=_faults(gpu, node, facts),
    )


def _identity(part: GpuPart) -> Identity:
    gpu = part.gpu
    index = () if gpu.index == NOWHERE else (str(gpu.index),)
    own = () if part.slice is None else (part.slice.uuid,)
    return Identity(
        indexes=(part.index, *index) if own else index,
        uuids=(*own, gpu.uuid),
        addresses=() if gpu.pci is None else (gpu.pci,),
    )


def _faults(gpu: Gpu, node: DeviceNode | None, facts: GpuFacts) -> tuple[Fault, ...]:
    if facts.state is not DriverState.READY:
        text = f"its driver is away: {facts.reason}"
        return (Fault(kind=FaultKind.NO_DRIVER, text=text),)
    called = gpu.uuid if gpu.index == NOWHERE else f"GPU {gpu.index} ({gpu.uuid})"
    faults = [
        Fault(
            kind=FaultKind.ILL if problem.lost else FaultKind.UNREADABLE,
            text=f"{called}: {problem}",
        )
        for problem in gpu.problems
        if problem.asked not in _TOLERATED and not problem.once
    ]
    if node is None and gpu.minor is not None:
        text = facts.no_nodes or f"there is no device node nvidia{gpu.minor}"
        faults.append(Fault(kind=FaultKind.NO_NODE, text=text))
    if facts.no_imex:
        faults.append(Fault(kind=FaultKind.NO_NODE, text=facts.no_imex))
    return tuple(faults)
