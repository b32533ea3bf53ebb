"""Whether an old answer still leads a container to its own GPUs: by CDI names and by indexes."""

from collections.abc import Mapping, Sequence

from holdfast.model.cards import parted
from holdfast.model.devices import Device
from holdfast.model.gate.promise import Breach, listed
from holdfast.model.ids import DeviceId
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.nvidia.grant import CDI_VENDOR
from holdfast.model.nvidia.names import GpuNames


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
    own = {parted(device.name.id)[0] for device in devices}
    if led == own:
        return None
    # Indexes, unlike UUIDs, are given anew at each boot.
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
    own = {indexes.get(parted(device.name.id)[0], "unknown") for device in devices}
    if promised == own:
        return None
    # NVML gives them anew at each start of the driver, without the GPUs that are lost by then.
    return Breach(
        reason=f"the pod was promised index {listed(promised)}, but {listed(entry.devices)} is now "
        f"{listed(own)}; delete the pod",
        final=True,
    )
