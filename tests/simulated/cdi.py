"""Looks CDI names up as a container runtime does: in a folder of spec files, and nowhere else."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct


class NamedNode(Struct, frozen=True, kw_only=True):
    """A device node that a name stands for; `rdev` None: the runtime asks the host's node."""

    path: str
    rdev: int | None


class Named(Struct, frozen=True, kw_only=True):
    """What names stand for: nodes, variables of the container's environment, and mounts.

    `mounts` are paths in the container.
    """

    nodes: tuple[NamedNode, ...]
    variables: Mapping[str, str]
    mounts: tuple[str, ...]


def resolve(folder: Path | None, names: Sequence[str]) -> Named:
    """Return what is behind *names*; raise OSError, as containerd says it, for any that fails.

    A name that is in two files fails: containerd refuses both.
    """
    specs = [] if folder is None else [json.loads(each.read_text()) for each in _files(folder)]
    nodes: list[NamedNode] = []
    variables: dict[str, str] = {}
    mounts: list[str] = []
    unknown: list[str] = []
    for name in names:
        kind, _, device = name.partition("=")
        edits = [
            each["containerEdits"]
            for spec in specs
            for each in spec["devices"]
            if (spec["kind"], each["name"]) == (kind, device)
        ]
        if len(edits) == 1:
            nodes += [_node(node) for node in edits[0].get("deviceNodes", ())]
            variables |= (each.split("=", 1) for each in edits[0].get("env", ()))
            mounts += [each["containerPath"] for each in edits[0].get("mounts", ())]
        else:
            unknown.append(name)
    if unknown:
        raise OSError(f"CDI device injection failed: unresolvable CDI devices {', '.join(unknown)}")
    return Named(nodes=tuple(nodes), variables=variables, mounts=tuple(mounts))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _node(node: dict[str, Any]) -> NamedNode:
    numbered = "type" in node and "major" in node
    return NamedNode(
        path=node["path"], rdev=os.makedev(node["major"], node["minor"]) if numbered else None
    )
