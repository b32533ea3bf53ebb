"""Is what a pod was promised still what it gets? Kubelet replays its old answer after a reboot."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from holdfast.model.devices import Device, Inventory
from holdfast.model.gate.cdi import PublishedSpecs, cdi_name
from holdfast.model.kubelet import CheckpointEntry


class Breach(Struct, frozen=True, kw_only=True):
    """Why a container must not start on its answer. `final`: waiting changes nothing."""

    reason: str
    final: bool


def breach(
    entry: CheckpointEntry,
    devices: Sequence[Device],
    *,
    inventory: Inventory,
    published: PublishedSpecs,
) -> Breach | None:
    """Return why *entry*'s answer leads elsewhere than to *devices*, None where it leads there.

    Paths of nodes must be theirs, and nobody else's. CDI names must be theirs, and mean today's
    nodes in the spec files: the runtime looks them up there, and an old file names another's chip.
    What else an answer promises is for the adapter of the devices' vendor to judge.
    An answer of another plugin's names promises nothing that can be judged.
    """
    if entry.promised:
        broken = _nodes(entry, devices, inventory)
        if broken is not None:
            return broken
    names = names_of_ours(entry)
    return _names(names, devices, published) if names else None


def names_of_ours(entry: CheckpointEntry) -> frozenset[str]:
    """Return the CDI names in *entry*'s answer that only our specs can explain."""
    kind = f"{entry.resource}="
    return frozenset(name for name in entry.promised_names if name.startswith(kind))


def _nodes(
    entry: CheckpointEntry, devices: Sequence[Device], inventory: Inventory
) -> Breach | None:
    promised = set(entry.promised)
    own = {node.path for device in devices for node in device.nodes}
    theirs = {node.path for device in inventory.devices for node in device.nodes} - own
    if own <= promised and not promised & theirs:
        return None
    return Breach(
        reason=f"the pod was promised {listed(promised)}, but {listed(entry.devices)} is now "
        f"{listed(own)} (numbers of nodes change with a reboot); delete the pod",
        final=True,
    )


def _names(
    names: frozenset[str], devices: Sequence[Device], published: PublishedSpecs
) -> Breach | None:
    own = {cdi_name(device.name) for device in devices}
    if names != own:
        return Breach(
            reason=f"the pod was promised {listed(names)}, but what it has is {listed(own)}; "
            "delete the pod",
            final=True,
        )
    missing = {cdi_name(device.name) for device in devices if not published.covers(device)}
    if not missing:
        return None
    why = f": {published.problem}" if published.problem else ""
    return Breach(
        reason=f"the pod was promised {listed(missing)} by name, and the CDI spec does not say yet "
        f"which node that is now{why}",
        final=False,
    )


def listed(texts: AbstractSet[str]) -> str:
    """Return *texts* as a refusal names them."""
    return ", ".join(sorted(texts))
