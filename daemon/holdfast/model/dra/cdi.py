"""CDI specs of claims: one file for each claim, whose names no other claim ever has.

Runtimes keep specs in memory and read them again only for a name that they do not know.
https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

import json
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.model.gate.cdi import major, minor
from holdfast.model.grants import ContainerGrant, GrantedNode
from holdfast.model.ids import ClaimUid

_VERSION = "0.5.0"
_MODE = 0o666
"""runsc does not start on a node without a mode (gvisor#13620)."""


class Handed(Struct, frozen=True, kw_only=True):
    """What containers get of one device of a claim, by its label in ResourceSlices."""

    label: str
    grant: ContainerGrant


def kind(driver: str) -> str:
    """Return the CDI kind of the claims of *driver*."""
    return f"{driver}/claim"


def device(claim: ClaimUid, label: str) -> str:
    """Return the name of a device within its kind."""
    return f"{claim}-{label}"


def file_name(claim: ClaimUid) -> str:
    """Return the end of the name of the spec file of *claim*."""
    return f"{claim}.json"


def spec(
    driver: str, claim: ClaimUid, devices: Iterable[Handed], numbers: Mapping[str, int]
) -> str:
    """Return the content of the spec of *claim*; *numbers* are the nodes' device numbers.

    The same grants have the same content to the byte.
    """
    content = {
        "cdiVersion": _VERSION,
        "kind": kind(driver),
        "devices": [
            {"name": device(claim, each.label), "containerEdits": _edits(each.grant, numbers)}
            for each in devices
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def _edits(grant: ContainerGrant, numbers: Mapping[str, int]) -> dict[str, object]:
    edits: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in sorted(grant.envs.items())],
        "deviceNodes": [_node(each, numbers.get(each.host_path)) for each in grant.nodes],
        "mounts": [
            {
                "hostPath": each.host_path,
                "containerPath": each.container_path,
                "options": ["bind", "nosuid", "nodev", "ro" if each.read_only else "rw"],
            }
            for each in grant.mounts
        ],
    }
    return {name: each for name, each in edits.items() if each}


def _node(node: GrantedNode, number: int | None) -> dict[str, object]:
    described: dict[str, object] = {
        "path": node.container_path,
        "hostPath": node.host_path,
        "fileMode": _MODE,
        "permissions": node.permissions,
    }
    if number is not None:
        described |= {"type": "c", "major": major(number), "minor": minor(number)}
    return described
