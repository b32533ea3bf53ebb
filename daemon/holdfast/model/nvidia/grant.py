"""What a container is given for its GPUs, to the byte as NVIDIA's device plugin does."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from holdfast.model.grants import ContainerGrant, GrantedMount

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
"""The vendor of each CDI kind, as container runtimes are set up for NVIDIA's plugin."""

MODES = ("gdrcopy", "gds", "mofed")
"""What can be handed over beside GPUs, in the order in which answers name it."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_MOUNTS = "/var/run/nvidia-container-devices"
_NOTHING = "/dev/null"
_INDEX = re.compile(r"\d+(:\d+)?")


class DeviceList(Enum):
    """How NVIDIA's container runtime learns which GPUs a container has."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def is_cdi(self) -> bool:
        """Tell whether the runtime looks the devices up in spec files, by name."""
        return self in {DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI}


class DeviceIds(Enum):
    """How it is told which these are."""

    UUID = "uuid"
    INDEX = "index"


class GpuGrantRules(Struct, frozen=True, kw_only=True):
    """What the operator chose, under the names of NVIDIA's plugin.

    `modes` are those of MODES that are turned on.
    """

    lists: tuple[DeviceList, ...] = (DeviceList.ENVVAR,)
    ids: DeviceIds = DeviceIds.UUID
    pass_device_specs: bool = False
    modes: frozenset[str] = frozenset()
    annotation_prefix: str = ""

    @property
    def by_name(self) -> bool:
        """Tell whether answers have names that only a spec explains."""
        return any(each.is_cdi for each in self.lists)


class GrantedGpu(Struct, frozen=True, kw_only=True):
    """A GPU or slice of a grant: its index is ``3`` or ``3:1``, `nodes` are host paths."""

    uuid: str
    index: str
    nodes: tuple[str, ...] = ()


class BesideGpus(Struct, frozen=True, kw_only=True):
    """What the node has beside the GPUs themselves, for each answer.

    `control` are the host paths of the nodes that every GPU user needs and that exist; `imex` is
    that of IMEX channel 0, empty where none is to be given. `explained` are the modes that have a
    CDI spec: the runtime refuses a container that is given another's name. `answer_id` is a fresh
    UUID, which makes an annotation's key its own.
    """

    control: tuple[str, ...] = ()
    imex: str = ""
    explained: frozenset[str] = frozenset()
    answer_id: str = ""


def gpu_grant(
    gpus: Sequence[GrantedGpu], rules: GpuGrantRules, beside: BesideGpus
) -> ContainerGrant:
    """Return what a container gets for *gpus*, in their order.

    Where both lists that are not CDI are asked for, the runtime follows the mounts, and the
    variable says so. Under CDI alone there is no variable and no node.
    """
    names = tuple(
        dict.fromkeys(each.uuid if rules.ids is DeviceIds.UUID else each.index for each in gpus)
    )
    envs = {f"NVIDIA_{mode.upper()}": "enabled" for mode in MODES if mode in rules.modes}
    mounts: tuple[GrantedMount, ...] = ()
    if DeviceList.ENVVAR in rules.lists:
        envs[_VISIBLE] = ",".join(names)
        if beside.imex:
            envs["NVIDIA_IMEX_CHANNELS"] = "0"
    if DeviceList.VOLUME_MOUNTS in rules.lists:
        envs[_VISIBLE] = _MOUNTS
        mounts = tuple(
            GrantedMount(host_path=_NOTHING, container_path=f"{_MOUNTS}/{name}", read_only=False)
            for name in (*names, *(("imex/0",) if beside.imex else ()))
        )
    qualified = tuple(_qualified(names, rules, beside))
    annotations: dict[str, str] = {}
    if DeviceList.CDI_ANNOTATIONS in rules.lists:
        key = f"{rules.annotation_prefix}nvidia-device-plugin_{beside.answer_id}"
        annotations[key] = ",".join(qualified)
    return ContainerGrant(
        envs=envs,
        mounts=mounts,
        nodes=_nodes(gpus, rules, beside),
        annotations=annotations,
        cdi_devices=qualified if DeviceList.CDI_CRI in rules.lists else (),
    )


def told_by_index(envs: Mapping[str, str], mounted: Iterable[str]) -> tuple[str, ...]:
    """Return the indexes by which an answer tells NVIDIA's runtime of GPUs and slices.

    They are in the variable, or in what is *mounted* (paths in the container). UUIDs are none.
    """
    folder = f"{_MOUNTS}/"
    told = [
        *envs.get(_VISIBLE, "").split(","),
        *(path.removeprefix(folder) for path in mounted if path.startswith(folder)),
    ]
    return tuple(dict.fromkeys(each for each in told if _INDEX.fullmatch(each)))


def _nodes(gpus: Sequence[GrantedGpu], rules: GpuGrantRules, beside: BesideGpus) -> tuple[str, ...]:
    # The runtime makes the nodes itself where it looks devices up, and knows more of them.
    if not rules.pass_device_specs or all(each.is_cdi for each in rules.lists):
        return ()
    paths = [*beside.control, *(path for each in gpus for path in each.nodes)]
    if beside.imex:
        paths.append(beside.imex)
    return tuple(dict.fromkeys(paths))


def _qualified(names: tuple[str, ...], rules: GpuGrantRules, beside: BesideGpus) -> Iterator[str]:
    yield from (f"{CDI_VENDOR}/gpu={name}" for name in names)
    if beside.imex:
        yield f"{CDI_VENDOR}/imex-channel=0"
    yield from (
        f"{CDI_VENDOR}/{mode}=all" for mode in MODES if mode in rules.modes & beside.explained
    )
