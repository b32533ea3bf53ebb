"""What a container is given for the devices it was granted."""

from collections.abc import Mapping

from msgspec import Struct, field

VFIO_CONTAINER = "/dev/vfio/vfio"
"""The node every VFIO user needs beside its groups; shared by all and exclusive to none."""


class GrantedMount(Struct, frozen=True, kw_only=True):
    """A host path to mount into the container."""

    host_path: str
    container_path: str
    read_only: bool = True


class ContainerGrant(Struct, frozen=True, kw_only=True):
    """The answer to one container's Allocate: nodes, environment, mounts, annotations, CDI.

    `nodes` are device nodes by their paths on the host, to be read and written `in_container`.
    `cdi_devices` are qualified names, ``kind=device``, which the runtime looks up itself.
    """

    nodes: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[GrantedMount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    @property
    def cdi_names(self) -> tuple[str, ...]:
        """All names that a runtime looks up: those of `cdi_devices`, and those in annotations."""
        annotated = (name for text in self.annotations.values() for name in text.split(","))
        return tuple(dict.fromkeys((*self.cdi_devices, *annotated)))


def in_container(path: str) -> str:
    """Return where a container has the device node at *path* of the host: in its own /dev.

    >>> in_container("/run/nvidia/driver/dev/nvidia0")
    '/dev/nvidia0'
    """
    return f"/dev/{path.partition('/dev/')[2]}"
