"""Which devices are handed over by CDI name, and device nodes without a mode in CDI specs."""

import json
from collections.abc import Iterator, Mapping, Sequence

import yaml

from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import names_or_empty, read_bytes
from holdfast.model.nvidia.grant import DeviceList
from holdfast.settings import Settings

CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Where containerd looks for CDI specs by default."""
CLAIMS = "claims"
"""The devices of a claim have no other way into a container."""


def handed_over_by_name(settings: Settings) -> tuple[str, ...]:
    """Return what *settings* want handed over by CDI name."""
    vfio = settings.tpu.enabled or settings.pools
    asked = {
        "TPUs and pools": bool(settings.device_list_strategy == "cdi" and vfio),
        "GPUs": gpus_by_name(settings),
        CLAIMS: settings.has_dra(),
    }
    return tuple(what for what, wanted in asked.items() if wanted)


def gpus_by_name(settings: Settings) -> bool:
    """Tell whether *settings* want GPUs handed over by CDI name."""
    gpu = settings.gpu
    return gpu.enabled and any(DeviceList(each).is_cdi for each in gpu.device_list_strategy)


def nodes_without_mode(node: Node, folders: Sequence[str] | None) -> tuple[str, ...]:
    """Return the spec files in *folders* that have a device node without a mode.

    Some releases of gVisor panic on such a node. Files that cannot be read count as having none.
    """
    return tuple(_files(node, CDI_DIRS if folders is None else folders))


def _files(node: Node, folders: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        for name in names_or_empty(node.path(folder)):
            if name.endswith((".json", ".yaml")) and any(_bare(_spec(node, f"{folder}/{name}"))):
                yield f"{folder}/{name}"


def _spec(node: Node, path: str) -> object:
    try:
        content = read_bytes(node.path(path)) or b""
        return json.loads(content) if path.endswith(".json") else yaml.safe_load(content)
    except (HostError, ValueError, yaml.YAMLError, RecursionError):
        return None


def _bare(spec: object) -> Iterator[bool]:
    """Yield, for each device node of *spec*, whether it has no mode."""
    if not isinstance(spec, Mapping):
        return
    devices = spec.get("devices")
    for part in (spec, *(devices if isinstance(devices, list) else ())):
        edits = part.get("containerEdits") if isinstance(part, Mapping) else None
        nodes = edits.get("deviceNodes") if isinstance(edits, Mapping) else None
        for each in nodes if isinstance(nodes, list) else ():
            yield isinstance(each, Mapping) and each.get("fileMode") is None
