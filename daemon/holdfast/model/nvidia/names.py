"""The CDI names of GPUs: what a runtime finds by each, and whether an old answer still holds."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from holdfast.model.devices import Device
from holdfast.model.gate.cdi import told_twice
from holdfast.model.gate.promise import Breach, listed
from holdfast.model.ids import DeviceId
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.grant import CDI_VENDOR, MODES

GPU_KIND = f"{CDI_VENDOR}/gpu"
IMEX_KIND = f"{CDI_VENDOR}/imex-channel"
GPU_KINDS = (GPU_KIND, IMEX_KIND, *(f"{CDI_VENDOR}/{mode}" for mode in MODES))
"""All kinds that answers for GPUs may name."""


class NodeSpecs(Struct, frozen=True, kw_only=True):
    """The specs of a node's GPUs, by the end of the files' names, and the names they explain.

    `devices` has the device behind each name of a GPU or slice; `beside` are the other names.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, DeviceId] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()


class GpuNames(Struct, frozen=True, kw_only=True):
    """What a runtime can look up: the device behind each GPU's name, and the names `beside` them.

    `problem` says why there is less than there should be; empty when there is all.
    """

    devices: Mapping[str, DeviceId] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def modes(self) -> frozenset[str]:
        """Return the modes that can be handed over by name."""
        return frozenset(mode for mode in MODES if f"{CDI_VENDOR}/{mode}=all" in self.beside)


def found_in(described: NodeSpecs, rivals: Mapping[str, str]) -> GpuNames:
    """Return what a runtime finds, once the files of *described* are on disk.

    *rivals* are names that files of others explain too, each with such a file: a runtime takes no
    explanation when there are two.
    """
    return GpuNames(
        devices={name: id_ for name, id_ in described.devices.items() if name not in rivals},
        beside=described.beside - rivals.keys(),
        problem=told_twice(described.devices.keys() | described.beside, rivals),
    )


def unexplained(
    answers: Mapping[DeviceId, str | None], names: GpuNames, *, imex: bool
) -> Mapping[DeviceId, str]:
    """Return why devices cannot be handed over by name; nothing for those that can.

    *answers* is what answers would call each, within its kind; a replica is called as its GPU.
    With *imex* each of them names channel 0 as well.
    """
    channel = not imex or f"{IMEX_KIND}=0" in names.beside
    why = names.problem or "the driver does not have all of the nodes that it needs"
    return {
        id_: f"no CDI spec describes it: {why}"
        for id_, name in answers.items()
        if not channel or names.devices.get(f"{GPU_KIND}={name}") != REPLICAS.parted(id_)[0]
    }


def gpu_breach(
    entry: CheckpointEntry,
    devices: Sequence[Device],
    *,
    names: GpuNames,
    indexes: Mapping[DeviceId, str],
) -> Breach | None:
    """Return why *entry*'s answer leads elsewhere than to *devices*, None where it leads there.

    CDI names must be among *names*, and theirs. Indexes must be theirs by *indexes*, which has what
    NVIDIA's runtime calls each GPU and slice today.
    """
    promised = gpu_names_in(entry)
    broken = _names(promised, devices, names) if promised else None
    return broken or _indexes(entry, devices, indexes)


def gpu_names_in(entry: CheckpointEntry) -> frozenset[str]:
    """Return the CDI names in *entry*'s answer that only the specs of GPUs can explain."""
    return frozenset(name for name in entry.promised_names if name.startswith(f"{CDI_VENDOR}/"))


def _names(names: frozenset[str], devices: Sequence[Device], found: GpuNames) -> Breach | None:
    unknown = {name for name in names if name not in found.devices and name not in found.beside}
    if unknown:
        why = f": {found.problem}" if found.problem else ""
        return Breach(
            reason=f"the pod was promised {listed(unknown)} by name, and no CDI spec says what "
            f"that is{why}",
            final=False,
        )
    led = {found.devices[name] for name in names if name in found.devices}
    own = {REPLICAS.parted(device.name.id)[0] for device in devices}
    if led == own:
        return None
    # Indexes, unlike UUIDs, are given again at each boot.
    return Breach(
        reason=f"the pod was promised {listed(names)}, which is now {listed(led)}, but what it has "
        f"is {listed(own)}; delete the pod",
        final=True,
    )


def _indexes(
    entry: CheckpointEntry, devices: Sequence[Device], indexes: Mapping[DeviceId, str]
) -> Breach | None:
    if not entry.promised_ids:
        return None
    promised = frozenset(entry.promised_ids)
    own = {indexes.get(REPLICAS.parted(device.name.id)[0], "unknown") for device in devices}
    if promised == own:
        return None
    # NVML counts again at each start of the driver, and leaves out the GPUs that are lost then.
    return Breach(
        reason=f"the pod was promised index {listed(promised)}, but {listed(entry.devices)} is now "
        f"{listed(own)}; delete the pod",
        final=True,
    )
