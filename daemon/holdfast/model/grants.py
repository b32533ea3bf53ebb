"""What a container is given for the devices it was granted."""

from collections.abc import Mapping

from msgspec import Struct, field

VFIO_CONTAINER = "/dev/vfio/vfio"
"""The node every VFIO user needs beside its groups; shared by all and exclusive to none."""


class GrantedNode(Struct, frozen=True, kw_only=True):
    """A device node to put into the container; `permissions` are letters of ``rwm``."""

    host_path: str
    container_path: str
    permissions: str = "rw"


class GrantedMount(Struct, frozen=True, kw_only=True):
    """A host path to mount into the container."""

    host_path: str
    container_path: str
    read_only: bool = True


class ContainerGrant(Struct, frozen=True, kw_only=True):
    """The answer to one container's Allocate: nodes, environment, mounts, annotations, CDI.

    `cdi_devices` are qualified names, ``kind=device``, which the runtime looks up itself.
    """

    nodes: tuple[GrantedNode, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[GrantedMount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    @property
    def cdi_names(self) -> tuple[str, ...]:
        """All names that a runtime looks up: those of `cdi_devices`, and those in annotations."""
        annotated = (name for text in self.annotations.values() for name in text.split(","))
        return tuple(dict.fromkeys((*self.cdi_devices, *annotated)))
