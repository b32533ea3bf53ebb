"""Checks kubelet's files: whether they can be read, and whose devices are in them."""

import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding, some
from holdfast.doctor.node import Node
from holdfast.errors import HostError, KubeletError
from holdfast.host.files.kernelfile import read_bytes
from holdfast.kubelet import claimstate
from holdfast.kubelet.checkpoint import Contents, parse
from holdfast.model.cards import parted
from holdfast.model.ids import DeviceId
from holdfast.names import CLAIM_STATE, KUBELET_CHECKPOINT
from holdfast.settings import Settings

_CHECKPOINT = Check("kubelet", "checkpoint")
_CLAIM_STATE = Check("kubelet", "claim-state")
_OTHER_DEVICES = Check("kubelet", "other-devices")
_KUBELET_VERSION = Check("kubelet", "kubelet-version")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?")
_DEPRECATION = "DEPRECATION"
_GPU = "nvidia.com/gpu"


def checkpoint_findings(folder: Path, settings: Settings) -> Iterator[Finding]:
    """Yield what was found of the checkpoint in *folder*; raise HostError without permission."""
    path = folder / KUBELET_CHECKPOINT
    try:
        content = read_bytes(path)
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        yield _CHECKPOINT.fail(
            f"{error}: holdfast cannot tell which pods have which devices",
            remedy="look for disk errors (dmesg), and restart kubelet when the disk works",
        )
        return
    if content is None:
        yield _CHECKPOINT.ok(f"{path} is not there: no plugin has registered yet")
        return
    try:
        contents = parse(content)
        if not contents.has_checksum:
            raise KubeletError("it has no checksum")  # noqa: TRY301 - one answer for what is wrong
    except KubeletError as error:
        yield _CHECKPOINT.fail(
            f"{path} cannot be understood: {error}; a kubelet that starts with it forgets "
            "who has which device",
            remedy="drain the node or end its pods with devices, stop kubelet, move the file away "
            "and start kubelet; plugins then register again",
        )
        return
    pods = len({entry.pod for entry in contents.entries})
    yield _CHECKPOINT.ok(
        f"{path} has {pods} pods with devices; only kubelet can check its checksum"
    )
    yield from _strangers(contents, settings)
    yield _version(folder, contents, settings)


def claim_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of kubelet's record of claims; nothing where nobody misses it.

    Raises HostError without permission.
    """
    path = _claim_state(node)
    try:
        content = read_bytes(path)
        if content is None:
            if node.settings.has_dra():
                yield _CLAIM_STATE.warn(
                    f"{path} is not there: holdfast cannot tell which pods use which claims, and "
                    "finds no claim that kubelet never unprepared",
                    remedy="start kubelet, which makes it; if the doctor runs in a container, set "
                    "dra.claimState to where it is seen, as the chart does",
                )
            return
        claims = claimstate.parse(content)
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        yield _CLAIM_STATE.fail(
            f"{error}: holdfast cannot tell which pods use which claims",
            remedy="look for disk errors (dmesg), and restart kubelet when the disk works",
        )
    except KubeletError as error:
        yield _CLAIM_STATE.fail(
            f"{path} cannot be understood: {error}; kubelet does not start with it",
            remedy="drain the node, stop kubelet, move the file away and start kubelet",
        )
    else:
        pods = len({pod for each in claims for pod in each.pods})
        yield _CLAIM_STATE.ok(f"{path} has {len(claims)} claims that {pods} pods use")


def _claim_state(node: Node) -> Path:
    """Return where kubelet's record of claims is: a copied node has it where kubelet writes it."""
    if not node.settings.has_dra():
        return node.path(
            str(Path(node.settings.kubelet.pod_resources_socket).parents[1] / CLAIM_STATE)
        )
    dra = node.settings.dra
    return node.path(dra.claim_file() if node.live else f"{dra.kubelet_root}/{CLAIM_STATE}")


def stranger(resource: str, id_: str, settings: Settings) -> bool:
    """Tell whether holdfast would never give a device of *resource* the id *id_*."""
    ours = {pool.resource_name for pool in settings.pools}
    if settings.tpu.enabled:
        ours.add(settings.tpu.resource_name)
    if resource in ours:
        return _PCI.fullmatch(id_) is None
    # All plugins give GPUs the same ids, and those of shared GPUs only where they are shared.
    shared = resource in settings.sharing.by_resource()
    return settings.gpu.enabled and resource == _GPU and _is_replica(id_) and not shared


def _is_replica(id_: str) -> bool:
    return bool(parted(DeviceId(id_))[1])


def _strangers(contents: Contents, settings: Settings) -> Iterator[Finding]:
    found = False
    for resource, ids in sorted(contents.registered.items()):
        odd = sorted(each for each in ids if stranger(resource, each, settings))
        if odd:
            found = True
            yield _OTHER_DEVICES.fail(
                f"kubelet has {resource} from another plugin, with the devices "
                f"{some(odd)}: the plugin that registers last has the resource",
                remedy="remove the other plugin from this node (nodeSelector, taint), or give one "
                "of the two another resource name; then restart kubelet",
            )
    had: dict[str, set[str]] = {}
    for entry in contents.entries:
        # A pod on a replica keeps it, also where the GPU is not shared any more.
        strange = (each for each in entry.devices if stranger(entry.resource, each, settings))
        if not all(map(_is_replica, strange)):
            had.setdefault(entry.resource, set()).add(entry.pod)
    for name, pods in sorted(had.items()):
        found = True
        yield _OTHER_DEVICES.warn(
            f"pods {some(sorted(pods))} have {name} from another plugin: holdfast "
            "knows none of these ids",
            remedy="delete these pods once, so that they get devices from holdfast",
        )
    if not found:
        yield _OTHER_DEVICES.ok("the checkpoint has no devices of other plugins")


def _version(folder: Path, contents: Contents, settings: Settings) -> Finding:
    cdi = settings.device_list_strategy == "cdi"
    too = "; deviceListStrategy: cdi needs 1.29" if cdi else ""
    if contents.plain_lists:
        return _KUBELET_VERSION.warn(
            f"the checkpoint is of a kubelet before 1.20{too}", remedy="upgrade kubelet"
        )
    if (folder / _DEPRECATION).exists():
        return _KUBELET_VERSION.warn(
            f"{folder / _DEPRECATION} was made by a kubelet of 1.24 or before{too}",
            remedy="upgrade kubelet; if it is newer now, remove the file",
        )
    return _KUBELET_VERSION.ok("nothing suggests that kubelet is too old")
