"""Finds device nodes in CDI specs that have no mode, which some releases of gVisor die of."""

import json
from collections.abc import Iterator, Mapping, Sequence

import yaml

from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names, read_bytes

CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Where containerd looks for CDI specs unless it is told."""


def nodes_without_mode(node: Node, folders: Sequence[str] | None) -> tuple[str, ...]:
    """Return the spec files in *folders* with such a node; what cannot be read has none."""
    return tuple(_files(node, CDI_DIRS if folders is None else folders))


def _files(node: Node, folders: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        try:
            names = list_names(node.path(folder))
        except HostError:
            continue
        for name in names:
            if name.endswith((".json", ".yaml")) and any(_bare(_spec(node, f"{folder}/{name}"))):
                yield f"{folder}/{name}"


def _spec(node: Node, path: str) -> object:
    try:
        content = read_bytes(node.path(path)) or b""
        return json.loads(content) if path.endswith(".json") else yaml.safe_load(content)
    except (HostError, ValueError, yaml.YAMLError, RecursionError):
        return None


def _bare(spec: object) -> Iterator[bool]:
    """Yield for each device node of *spec* whether it has no mode."""
    if not isinstance(spec, Mapping):
        return
    devices = spec.get("devices")
    for part in (spec, *(devices if isinstance(devices, list) else ())):
        edits = part.get("containerEdits") if isinstance(part, Mapping) else None
        nodes = edits.get("deviceNodes") if isinstance(edits, Mapping) else None
        for each in nodes if isinstance(nodes, list) else ():
            yield isinstance(each, Mapping) and each.get("fileMode") is None
