"""The CDI names of GPUs: which a container runtime can look up, and what it finds."""

from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.grant import CDI_VENDOR, MODES

GPU_KIND = f"{CDI_VENDOR}/gpu"
IMEX_KIND = f"{CDI_VENDOR}/imex-channel"
GPU_KINDS = (GPU_KIND, IMEX_KIND, *(f"{CDI_VENDOR}/{mode}" for mode in MODES))
"""All kinds that answers for GPUs may name."""


class Described(Struct, frozen=True, kw_only=True):
    """The specs of a node's GPUs, by the end of the files' names, and the names they explain.

    `devices` has the device behind each name of a GPU or slice; `beside` are the other names.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, DeviceId] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()


class GpuNames(Struct, frozen=True, kw_only=True):
    """What a runtime can look up: the device behind each GPU's name, and the names `beside` them.

    `problem` says why there is less than there should be; empty when there is all.
    """

    devices: Mapping[str, DeviceId] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def modes(self) -> frozenset[str]:
        """Return the modes that can be handed over by name."""
        return frozenset(mode for mode in MODES if f"{CDI_VENDOR}/{mode}=all" in self.beside)


def found_in(described: Described, rivals: Mapping[str, str]) -> GpuNames:
    """Return what a runtime finds, once the files of *described* are on disk.

    *rivals* are names that files of others explain too, each with such a file: a runtime takes no
    explanation when there are two.
    """
    ambiguous = sorted((described.devices.keys() | described.beside) & rivals.keys())
    problem = ""
    if ambiguous:
        problem = (
            f"{', '.join(ambiguous)}: {rivals[ambiguous[0]]} describes it as well, and runtimes "
            "then use neither; remove that file"
        )
    return GpuNames(
        devices={name: id_ for name, id_ in described.devices.items() if name not in rivals},
        beside=described.beside - rivals.keys(),
        problem=problem,
    )


def unexplained(
    answers: Mapping[DeviceId, str | None], names: GpuNames, *, imex: bool
) -> Mapping[DeviceId, str]:
    """Return why devices cannot be handed over by name; nothing for those that can.

    *answers* is what answers would call each, within its kind. With *imex* each of them names
    channel 0 as well.
    """
    channel = not imex or f"{IMEX_KIND}=0" in names.beside
    why = names.problem or "the driver does not have all of the nodes that it needs"
    return {
        id_: f"no CDI spec describes it: {why}"
        for id_, name in answers.items()
        if not channel or names.devices.get(f"{GPU_KIND}={name}") != id_
    }
