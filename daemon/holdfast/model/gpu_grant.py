"""What a container is given for its GPUs, to the byte as NVIDIA's device plugin does."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.model.grants import ContainerGrant, GrantedMount, GrantedNode

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_MOUNTS = "/var/run/nvidia-container-devices"
_NOTHING = "/dev/null"


class DeviceList(Enum):
    """How NVIDIA's container runtime learns which GPUs a container has."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"


class DeviceIds(Enum):
    """By what it is told of each."""

    UUID = "uuid"
    INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrantRules:
    """What the operator chose, under the names of NVIDIA's plugin."""

    lists: tuple[DeviceList, ...] = (DeviceList.ENVVAR,)
    ids: DeviceIds = DeviceIds.UUID
    pass_device_specs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedGpu:
    """A GPU or slice of a grant: its index is ``3`` or ``3:1``, `nodes` are host paths."""

    uuid: str
    index: str
    nodes: tuple[str, ...] = ()


def gpu_grant(
    gpus: Sequence[GrantedGpu], rules: GpuGrantRules, *, control: Sequence[str] = ()
) -> ContainerGrant:
    """Return what a container gets for *gpus*, in their order.

    *control* are the host paths of the nodes that every GPU user needs and that exist. Where both
    lists are asked for, the runtime follows the mounts, and the variable says so.
    """
    names = tuple(
        dict.fromkeys(each.uuid if rules.ids is DeviceIds.UUID else each.index for each in gpus)
    )
    envs: dict[str, str] = {}
    mounts: tuple[GrantedMount, ...] = ()
    if DeviceList.ENVVAR in rules.lists:
        envs[_VISIBLE] = ",".join(names)
    if DeviceList.VOLUME_MOUNTS in rules.lists:
        envs[_VISIBLE] = _MOUNTS
        mounts = tuple(
            GrantedMount(host_path=_NOTHING, container_path=f"{_MOUNTS}/{name}", read_only=False)
            for name in names
        )
    nodes: tuple[GrantedNode, ...] = ()
    if rules.pass_device_specs:
        paths = [*control, *(path for each in gpus for path in each.nodes)]
        nodes = tuple(
            GrantedNode(host_path=path, container_path=f"/dev/{path.partition('/dev/')[2]}")
            for path in dict.fromkeys(paths)
        )
    return ContainerGrant(envs=envs, mounts=mounts, nodes=nodes)
