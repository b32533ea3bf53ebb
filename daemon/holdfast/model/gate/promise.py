"""Is what a pod was promised still what it gets? Kubelet replays its old answer after a reboot."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from holdfast.model.devices import Device, Inventory
from holdfast.model.gate.cdi import Published, cdi_name
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.nvidia.grant import CDI_VENDOR
from holdfast.model.nvidia.names import GpuNames


class Breach(Struct, frozen=True, kw_only=True):
    """Why a container must not start on the answer that it has. `final`: waiting mends nothing."""

    reason: str
    final: bool


def breach(
    entry: CheckpointEntry,
    devices: Sequence[Device],
    *,
    inventory: Inventory,
    published: Published,
) -> Breach | None:
    """Return why *entry*'s answer leads elsewhere than to *devices*, None where it leads there.

    Paths of nodes must be theirs, and nobody else's. CDI names must be theirs, and mean today's
    nodes in the spec files: the runtime looks them up there, and an old file names another's chip.
    Indexes of GPUs must be what NVIDIA's runtime takes for theirs today.
    An answer of another plugin's names promises nothing that can be judged.
    """
    if entry.promised:
        broken = _nodes(entry, devices, inventory)
        if broken is not None:
            return broken
    names = names_of_ours(entry)
    broken = _names(names, devices, published) if names else None
    gpus = gpu_names_in(entry)
    broken = broken or (_gpus(gpus, devices, published.gpus) if gpus else None)
    return broken or _indexes(entry, devices, published)


def names_of_ours(entry: CheckpointEntry) -> frozenset[str]:
    """Return the CDI names in *entry*'s answer that only our specs can explain."""
    kind = f"{entry.resource}="
    return frozenset(name for name in entry.promised_names if name.startswith(kind))


def gpu_names_in(entry: CheckpointEntry) -> frozenset[str]:
    """Return the CDI names in *entry*'s answer that only the specs of GPUs can explain."""
    return frozenset(name for name in entry.promised_names if name.startswith(f"{CDI_VENDOR}/"))


def _nodes(
    entry: CheckpointEntry, devices: Sequence[Device], inventory: Inventory
) -> Breach | None:
    promised = set(entry.promised)
    own = {node.path for device in devices for node in device.nodes}
    theirs = {node.path for device in inventory.devices for node in device.nodes} - own
    if own <= promised and not promised & theirs:
        return None
    return Breach(
        reason=f"the pod was promised {_list(promised)}, but {_list(entry.devices)} is now "
        f"{_list(own)} (group numbers change with a reboot); delete the pod",
        final=True,
    )


def _names(names: frozenset[str], devices: Sequence[Device], published: Published) -> Breach | None:
    own = {cdi_name(device.name) for device in devices}
    if names != own:
        return Breach(
            reason=f"the pod was promised {_list(names)}, but what it has is {_list(own)}; "
            "delete the pod",
            final=True,
        )
    missing = {cdi_name(device.name) for device in devices if not published.covers(device)}
    if not missing:
        return None
    why = f": {published.problem}" if published.problem else ""
    return Breach(
        reason=f"the pod was promised {_list(missing)} by name, and the CDI spec does not say yet "
        f"which node that is now{why}",
        final=False,
    )


def _gpus(names: frozenset[str], devices: Sequence[Device], found: GpuNames) -> Breach | None:
    unknown = {name for name in names if name not in found.devices and name not in found.beside}
    if unknown:
        why = f": {found.problem}" if found.problem else ""
        return Breach(
            reason=f"the pod was promised {_list(unknown)} by name, and no CDI spec says what "
            f"that is{why}",
            final=False,
        )
    led = {found.devices[name] for name in names if name in found.devices}
    own = {device.name.id for device in devices}
    if led == own:
        return None
    # Indexes, unlike UUIDs, are given anew at each boot.
    return Breach(
        reason=f"the pod was promised {_list(names)}, which is now {_list(led)}, but what it has "
        f"is {_list(own)}; delete the pod",
        final=True,
    )


def _indexes(
    entry: CheckpointEntry, devices: Sequence[Device], published: Published
) -> Breach | None:
    if not entry.promised_indexes:
        return None
    promised = frozenset(entry.promised_indexes)
    own = {published.indexes.get(device.name.id, "unknown") for device in devices}
    if promised == own:
        return None
    # NVML gives them anew at each start of the driver, without the GPUs that are lost by then.
    return Breach(
        reason=f"the pod was promised index {_list(promised)}, but {_list(entry.devices)} is now "
        f"{_list(own)}; delete the pod",
        final=True,
    )


def _list(texts: AbstractSet[str]) -> str:
    return ", ".join(sorted(texts))
