"""Checks kubelet's checkpoint: whether it can be read, and whose devices are in it.

The daemon's own reader of the checkpoint is above this layer, in a part that uses gRPC.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.doctor.finding import Check, Finding, some
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes
from holdfast.names import KUBELET_CHECKPOINT
from holdfast.settings import Settings

_CHECKPOINT = Check("kubelet", "checkpoint")
_OTHER_DEVICES = Check("kubelet", "other-devices")
_KUBELET_VERSION = Check("kubelet", "kubelet-version")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?")
_REPLICA = "::"
"""NVIDIA's plugin has it in the ids of a GPU that several containers share."""
_DEPRECATION = "DEPRECATION"
_GPU = "nvidia.com/gpu"


class Books(Struct, frozen=True, kw_only=True):
    """The content of a checkpoint. `plain_lists`: without NUMA nodes, as before Kubernetes 1.20."""

    entries: tuple[tuple[str, str, frozenset[str]], ...]
    """For each container the pod's UID, the resource and the ids."""
    registered: Mapping[str, frozenset[str]]
    plain_lists: bool = False


def book_findings(folder: Path, settings: Settings) -> Iterator[Finding]:
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
        books = parse(content)
    except ValueError as error:
        yield _CHECKPOINT.fail(
            f"{path} cannot be understood: {error}; a kubelet that starts with it forgets "
            "who has which device",
            remedy="drain the node or end its pods with devices, stop kubelet, move the file away "
            "and start kubelet; plugins then register again",
        )
        return
    pods = len({pod for pod, _, _ in books.entries})
    yield _CHECKPOINT.ok(
        f"{path} tells of {pods} pods with devices; only kubelet can check its checksum"
    )
    yield from _strangers(books, settings)
    yield _version(folder, books, settings)


def parse(content: bytes) -> Books:
    """Return the content as values; raise ValueError with the reason if it makes no sense."""
    if not content.strip():
        raise ValueError("it is empty")
    try:
        tree = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValueError as error:
        raise ValueError(f"it is not whole JSON ({error})") from error
    data = _mapping(_mapping(tree, "the file").get("Data"), "Data")
    checksum = tree.get("Checksum")
    if isinstance(checksum, bool) or not isinstance(checksum, int):
        raise ValueError("it has no checksum")  # noqa: TRY004 - a fault of the content
    entries = [_mapping(each, "an entry") for each in _list(data.get("PodDeviceEntries"))]
    registered = data.get("RegisteredDevices") or {}
    return Books(
        entries=tuple(_entry(each) for each in entries),
        registered={
            name: frozenset(map(str, _list(ids)))
            for name, ids in _mapping(registered, "RegisteredDevices").items()
        },
        plain_lists=any(isinstance(each.get("DeviceIDs"), list) for each in entries),
    )


def stranger(resource: str, id_: str, settings: Settings) -> bool:
    """Tell whether holdfast would never give a device of *resource* the id *id_*."""
    ours = {pool.resource_name for pool in settings.pools}
    if settings.tpu.enabled:
        ours.add(settings.tpu.resource_name)
    if resource in ours:
        return _PCI.fullmatch(id_) is None
    # All plugins give GPUs the same ids, except to shared GPUs.
    return settings.gpu.enabled and resource == _GPU and _REPLICA in id_


def _strangers(books: Books, settings: Settings) -> Iterator[Finding]:
    found = False
    for resource, ids in sorted(books.registered.items()):
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
    for pod, resource, ids in books.entries:
        if any(stranger(resource, each, settings) for each in ids):
            had.setdefault(resource, set()).add(pod)
    for resource, pods in sorted(had.items()):
        found = True
        yield _OTHER_DEVICES.warn(
            f"pods {some(sorted(pods))} have {resource} from another plugin: holdfast "
            "knows none of these ids",
            remedy="delete these pods once, so that they get devices from holdfast",
        )
    if not found:
        yield _OTHER_DEVICES.ok("the checkpoint has no devices of other plugins")


def _version(folder: Path, books: Books, settings: Settings) -> Finding:
    cdi = settings.device_list_strategy == "cdi"
    too = "; deviceListStrategy: cdi needs 1.29" if cdi else ""
    if books.plain_lists:
        return _KUBELET_VERSION.warn(
            f"the checkpoint is of a kubelet before 1.20{too}", remedy="upgrade kubelet"
        )
    if (folder / _DEPRECATION).exists():
        return _KUBELET_VERSION.warn(
            f"{folder / _DEPRECATION} was made by a kubelet of 1.24 or before{too}",
            remedy="upgrade kubelet; if it is newer now, remove the file",
        )
    return _KUBELET_VERSION.ok("nothing suggests that kubelet is too old")


def _entry(entry: Mapping[str, Any]) -> tuple[str, str, frozenset[str]]:
    pod, resource, ids = (entry.get(name) for name in ("PodUID", "ResourceName", "DeviceIDs"))
    if not (isinstance(pod, str) and pod and isinstance(resource, str) and resource):
        raise ValueError("an entry has no pod or no resource")
    groups = [ids] if isinstance(ids, list) else list(_mapping(ids or {}, "DeviceIDs").values())
    return pod, resource, frozenset(str(each) for group in groups for each in _list(group))


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not what any known kubelet writes")  # noqa: TRY004 - a fault of the content
    return value


def _list(value: object) -> Sequence[Any]:
    if value is None:  # as Go writes an empty list
        return ()
    if not isinstance(value, list):
        raise ValueError("a list is not what any known kubelet writes")  # noqa: TRY004 - as above
    return value
