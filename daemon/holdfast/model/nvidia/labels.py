"""The node labels of GPUs, with the keys and values of NVIDIA's GPU feature discovery (v0.20)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from holdfast.model.cards import NOT_SHARED, Shared, Sharing
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.nvidia import GPU
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import DriverState, Gpu, MigSlice
from holdfast.model.nvidia.mig import GpuPart, MigStrategy, resource_of

_STATUS, _HAS_LIST = 0x06, 0x10
_FIRST = 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE, _RECORDS = b"VF", 5
"""What is behind the capability's id, the next one's place and its length; then come records."""
_DRIVER, _HEADER, _LENGTH = 0, 2, 10
"""The kind of the record with the host's driver; a kind and a length are before each record's data,
and both of its texts have this length."""
_CUDA = "nvidia.com/cuda"
_VGPU = "nvidia.com/vgpu"
_PARTS = (("major", "major"), ("minor", "minor"), ("revision", "rev"))
"""The parts of a version: in the names of labels, and in NVIDIA's older names of the same."""
_FAMILIES: Mapping[str, str] = {
    "3": "kepler",
    "5": "maxwell",
    "6": "pascal",
    "7": "volta",
    "8": "ampere",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell",
    "13": "rubin",
}
"""By the first number of the compute capability, where `_LATER` does not have the whole."""
_LATER: Mapping[str, str] = {"7.5": "turing", "8.9": "ada-lovelace"}
_MODES: Mapping[str, str] = {"0x030000": "graphics", "0x030200": "compute"}
"""By the PCI class."""
_UNKNOWN = "unknown"
_NOT_GRANTED = Sharing(replicas=0)


class VgpuHost(Struct, frozen=True, kw_only=True):
    """The driver on the hypervisor, such as ``550.54.16`` of ``r550_40``; empty: not told."""

    version: str = ""
    branch: str = ""


def vgpu_host(config: bytes) -> VgpuHost | None:
    """Return what *config* shows of the hypervisor; None if it is not that of a virtual GPU.

    Only the first 64 bytes can be read without the right to administer the system. They have no
    capabilities.
    """
    for capability in _vendor_specific(config):
        if capability[3:_RECORDS] == _SIGNATURE:
            return _host(capability)
    return None


def _vendor_specific(config: bytes) -> Iterator[bytes]:
    if len(config) <= _FIRST or not config[_STATUS] & _HAS_LIST:
        return
    place, seen = config[_FIRST], set[int]()
    while place and place not in seen and place + 2 < len(config):
        seen.add(place)
        kind, following, length = config[place : place + 3]
        if kind == _VENDOR_SPECIFIC:
            yield config[place : place + length]
        place = following


def _host(capability: bytes) -> VgpuHost:
    place = _RECORDS
    while place + _HEADER <= len(capability):
        kind, length = capability[place : place + _HEADER]
        if kind == _DRIVER:
            data = capability[place + _HEADER : place + length]
            return VgpuHost(version=_text(data[:_LENGTH]), branch=_text(data[_LENGTH:]))
        if length < _HEADER:
            break
        place += length
    return VgpuHost()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", "replace")


class GpuLabelFacts(Struct, frozen=True, kw_only=True):
    """All that the labels say.

    `gpus` are those of the last reading that found the driver ready, `facts` what is advertised of
    them. `machine` is the product's name in DMI, `classes` are the PCI classes by address, as sysfs
    has them (``0x030200``), `configs` the configuration spaces, as far as they can be read, and
    `since` is the time in seconds since the epoch at which they began.
    `sharing` is by the resource's own name. `left_out` are the GPUs and slices that no pod is
    given, by the settings.
    """

    gpus: tuple[Gpu, ...]
    facts: GpuFacts
    strategy: MigStrategy
    machine: str = ""
    classes: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, bytes] = field(default_factory=dict)
    since: int = 0
    sharing: Shared = field(default_factory=dict)
    left_out: frozenset[DeviceId] = frozenset()


def gpu_labels(known: GpuLabelFacts) -> dict[str, str]:
    """Return the labels; none without a GPU.

    A GPU that is lost, or left out by the settings, does not count. While the driver is away, the
    labels of its version go; those of the hardware stay, as do the devices on kubelet's list.
    """
    gpus = [gpu for gpu in known.gpus if _counts(gpu, known)]
    if not gpus:
        return {}
    uuids = {gpu.uuid for gpu in gpus}
    parts = [
        part
        for part in known.facts.layout.parts
        if part.gpu.uuid in uuids and part.name.id not in known.left_out
    ]
    return {
        "nvidia.com/gfd.timestamp": str(known.since),
        "nvidia.com/gpu.machine": known.machine or _UNKNOWN,
        **_versions(known.facts),
        **_of_node(gpus, known),
        **_of_fabric(gpus),
        **_of_hypervisor(gpus, known),
        **_of_gpus(_labelled(gpus, parts, known.strategy), known),
        **_of_slices(gpus, parts, known),
    }


def _counts(gpu: Gpu, known: GpuLabelFacts) -> bool:
    if any(problem.lost for problem in gpu.problems):
        return False
    parts = {part.name.id for part in known.facts.layout.parts if part.gpu.uuid == gpu.uuid}
    return not parts or not parts <= known.left_out


def _versions(facts: GpuFacts) -> dict[str, str]:
    if facts.state is not DriverState.READY:
        return {}
    cuda = next((each.cuda_driver for each in facts.traits.values() if each.cuda_driver), "")
    found = (
        ("driver", facts.version, (*facts.version.split("."), "", "")),
        ("runtime", cuda, cuda.split(".")),
    )
    labels = {}
    for of, version, numbers in found:
        if version:
            labels[f"{_CUDA}.{of}-version.full"] = version
            for (part, older), number in zip(_PARTS, numbers, strict=False):
                labels |= {f"{_CUDA}.{of}-version.{part}": number, f"{_CUDA}.{of}.{older}": number}
    return labels


def _of_node(gpus: Sequence[Gpu], known: GpuLabelFacts) -> dict[str, str]:
    traits = known.facts.traits
    capable = any(gpu.uuid in traits and traits[gpu.uuid].mig_capable for gpu in gpus)
    classes = {known.classes.get(gpu.pci or "", "") for gpu in gpus}
    pci_class = classes.pop() if len(classes) == 1 else ""
    labels = {
        "nvidia.com/gpu.mode": _MODES.get(pci_class, _UNKNOWN),
        "nvidia.com/mig.capable": "true" if capable else "false",
        "nvidia.com/mps.capable": "false",
    }
    if known.strategy is not MigStrategy.NONE:
        labels["nvidia.com/mig.strategy"] = known.strategy.value
    return labels


def _of_fabric(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the clique that GPUs of this node are in; nothing where they are in several."""
    cliques = {gpu.clique for gpu in gpus if gpu.clique}
    return {f"{GPU}.clique": cliques.pop()} if len(cliques) == 1 else {}


def _of_hypervisor(gpus: Sequence[Gpu], known: GpuLabelFacts) -> dict[str, str]:
    """Return whether there are virtual GPUs, and what they show of the driver outside."""
    told = [vgpu_host(known.configs.get(gpu.pci or "", b"")) for gpu in gpus]
    hosts = [each for each in told if each is not None]
    traits = (known.facts.traits.get(gpu.uuid) for gpu in gpus)
    if not hosts and not any(each.virtual for each in traits if each):
        return {f"{_VGPU}.present": "false"}
    labels = {f"{_VGPU}.present": "true"}
    for host in hosts:
        labels |= {f"{_VGPU}.host-driver-version": host.version} if host.version else {}
        labels |= {f"{_VGPU}.host-driver-branch": host.branch} if host.branch else {}
    return labels


def _labelled(
    gpus: Sequence[Gpu], parts: Sequence[GpuPart], strategy: MigStrategy
) -> Sequence[Gpu]:
    """Return the GPUs that nvidia.com/gpu.* is about.

    These are all, also those in MIG mode, unless strategy single leaves some out.
    """
    advertised = {part.gpu.uuid for part in parts}
    some = [gpu for gpu in gpus if gpu.uuid in advertised]
    return some if strategy is MigStrategy.SINGLE and some else gpus


def _of_gpus(gpus: Sequence[Gpu], known: GpuLabelFacts) -> dict[str, str]:
    """Return the labels of the model that most of *gpus* are, on a tie of the first."""
    models = Counter(gpu.name for gpu in gpus)
    model, count = models.most_common(1)[0]
    alike = [gpu for gpu in gpus if gpu.name == model]
    whole = not all(gpu.mig for gpu in alike)
    sharing = known.sharing.get(GPU, NOT_SHARED) if whole else _NOT_GRANTED
    labels = _of_resource(GPU, model, count, sharing)
    memory = next((gpu.memory for gpu in alike if gpu.memory), None)
    if memory is not None:
        labels[f"{GPU}.memory"] = str(memory >> 20)
    traits = (known.facts.traits.get(gpu.uuid) for gpu in alike)
    capability = next((each.capability for each in traits if each and each.capability), "")
    if capability:
        major, _, minor = capability.partition(".")
        labels[f"{GPU}.family"] = _LATER.get(capability) or _FAMILIES.get(major, "undefined")
        labels[f"{GPU}.compute.major"] = major
        labels[f"{GPU}.compute.minor"] = minor
    return labels


def _of_slices(
    gpus: Sequence[Gpu], parts: Sequence[GpuPart], known: GpuLabelFacts
) -> dict[str, str]:
    """Return the labels of each kind of slice that is advertised.

    Under strategy single its keys are those of whole GPUs; where nothing is advertised although
    GPUs are in MIG mode, the labels say so as NVIDIA's do. Under mixed, NVIDIA's tell of compute
    slices, too, which are not advertised.
    """
    kinds: dict[ResourceName, list[tuple[Gpu, MigSlice]]] = {}
    for part in parts:
        if part.slice is not None:
            kinds.setdefault(part.name.resource, []).append((part.gpu, part.slice))
    if known.strategy is MigStrategy.MIXED:
        for gpu in gpus:
            for piece in gpu.slices:
                resource = resource_of(piece)
                if resource is not None and piece.slices[0] != piece.slices[1]:
                    kinds.setdefault(resource, []).append((gpu, piece))
    labels: dict[str, str] = {}
    for resource, found in kinds.items():
        gpu, piece = found[0]
        product = f"{gpu.name} MIG {piece.profile.replace('+', '.')}"
        sharing = known.sharing.get(resource, NOT_SHARED)
        labels |= _of_resource(resource, product, len(found), sharing)
        labels |= {f"{resource}.{name}": str(value) for name, value in _amounts(piece).items()}
    if known.strategy is MigStrategy.SINGLE and not parts and any(gpu.mig for gpu in gpus):
        labels = _of_resource(GPU, f"{gpus[0].name} MIG INVALID", 0, _NOT_GRANTED)
        labels[f"{GPU}.memory"] = "0"
    return labels


def _of_resource(
    resource: ResourceName, product: str, count: int, sharing: Sharing
) -> dict[str, str]:
    shared = sharing.replicas > 1
    return {
        f"{resource}.product": f"{product} SHARED" if shared and not sharing.renamed else product,
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(sharing.replicas),
        f"{resource}.sharing-strategy": "time-slicing" if shared else "none",
    }


def _amounts(piece: MigSlice) -> dict[str, int]:
    engines = piece.engines
    return {
        "memory": 0 if piece.memory is None else piece.memory >> 20,
        "multiprocessors": engines.multiprocessors,
        "slices.gi": piece.slices[0],
        "slices.ci": piece.slices[1],
        "engines.copy": engines.copy,
        "engines.decoder": engines.decoder,
        "engines.encoder": engines.encoder,
        "engines.jpeg": engines.jpeg,
        "engines.ofa": engines.ofa,
    }
