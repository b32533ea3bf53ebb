"""What a container is given for the devices it was granted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

VFIO_CONTAINER = "/dev/vfio/vfio"
"""The node every VFIO user needs beside its groups; shared by all and exclusive to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedNode:
    """A device node to put into the container; `permissions` are letters of ``rwm``."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedMount:
    """A host path to mount into the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGrant:
    """The answer to one container's Allocate: nodes, environment, mounts, annotations, CDI.

    `cdi_devices` are qualified names, ``kind=device``, which the runtime looks up itself.
    """

    nodes: tuple[GrantedNode, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[GrantedMount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
