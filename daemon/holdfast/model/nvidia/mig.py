"""What of a node's GPUs is advertised under which name: NVIDIA's three strategies for MIG."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from holdfast.model.nvidia import GPU, SLICES
from holdfast.model.nvidia.gpu import NOWHERE, Gpu, GpuProblem, GpuReading, MigSlice

_LONGEST_NAME = 63
_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb(?:[.+-][a-z0-9]+)*")
_LAYOUT = frozenset({"handle", "MIG mode", "MIG devices"})
"""Without these answers it is not known what a GPU is divided into."""
_NOT_LISTED = GpuProblem(
    asked="handle",
    error="it does not list this GPU any more, which the driver has: it may be lost until a reboot",
    lost=True,
)


class MigStrategy(Enum):
    """How MIG slices are advertised; the values are those of NVIDIA's plugin."""

    NONE = "none"
    """Not at all: each GPU is advertised whole, also one in MIG mode."""
    SINGLE = "single"
    """As nvidia.com/gpu, on nodes where everything is divided in the same way."""
    MIXED = "mixed"
    """Each profile under a name of its own; GPUs not in MIG mode stay nvidia.com/gpu."""


class GpuPart(Struct, frozen=True, kw_only=True):
    """A whole GPU, or one MIG slice of it, as it is advertised. `slice` None: the whole."""

    name: DeviceName
    gpu: Gpu
    slice: MigSlice | None = None

    @property
    def index(self) -> str:
        """Return what the ids of strategy ``index`` call it: ``3``, or ``3:1`` for a slice.

        One that NVML does not list has none; its UUID is nobody else's.
        """
        if self.gpu.index == NOWHERE:
            return str(self.name.id)
        return str(self.gpu.index) if self.slice is None else f"{self.gpu.index}:{self.slice.index}"

    @property
    def every_name(self) -> tuple[DeviceName, ...]:
        """Return what it is called under any strategy."""
        mixed = None if self.slice is None else resource_of(self.slice)
        resources = (GPU, *(() if mixed is None else (mixed,)))
        return tuple(DeviceName(each, self.name.id) for each in resources)

    @property
    def key(self) -> HardwareKey:
        """Return the key that is its own."""
        return self.gpu.key if self.slice is None else self.gpu.key_of(self.slice)

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return its keys: a slice has one, which the whole GPU has too."""
        return self.gpu.keys if self.slice is None else frozenset({self.key})


class GpuLayout(Struct, frozen=True, kw_only=True):
    """What is advertised, in NVML's order; `problems` say what is not, and what to do.

    `there` is all that a pod can have from before, whatever is advertised now.
    """

    parts: tuple[GpuPart, ...] = ()
    problems: tuple[str, ...] = ()
    there: tuple[GpuPart, ...] = ()

    @property
    def known(self) -> tuple[GpuPart, ...]:
        """Return all that a pod can have, each once: what is advertised, and what was."""
        return tuple({part.name.id: part for part in (*self.there, *self.parts)}.values())

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Return the names, each once; whole GPUs' is always among them."""
        names = (part.name.resource for part in self.parts)
        return tuple(dict.fromkeys([GPU, *sorted(names)]))


def lay_out(reading: GpuReading, strategy: MigStrategy) -> GpuLayout:
    """Return what of *reading* is advertised under *strategy*. Never raises.

    What the strategy cannot express is left out and named, and the rest of the node goes on. A GPU
    without a UUID cannot be advertised; one that does not tell how it is divided counts as whole.
    """
    named = [gpu for gpu in reading.gpus if gpu.uuid]
    problems = [
        f"GPU {gpu.index} is not advertised: NVML does not report its UUID"
        for gpu in reading.gpus
        if not gpu.uuid
    ]
    there = tuple(part for gpu in named for part in _there(gpu))
    if strategy is MigStrategy.NONE:
        return GpuLayout(parts=tuple(map(_whole, named)), problems=tuple(problems), there=there)
    for gpu in named:
        problems += _untold(gpu)
    if strategy is MigStrategy.SINGLE:
        parts, more = _single(named)
    else:
        parts, more = _mixed(named)
    return GpuLayout(parts=tuple(parts), problems=(*problems, *more), there=there)


def hides_some(reading: GpuReading) -> bool:
    """Tell whether *reading* has a GPU that does not say who it is, or how it is divided.

    What is not on the list may then be this one all the same.
    """
    return any(not gpu.uuid or (_silent(gpu) and not gpu.slices) for gpu in reading.gpus)


def resource_of(piece: MigSlice) -> ResourceName | None:
    """Return the name that strategy mixed gives *piece*; None when its profile makes none.

    ``1g.10gb+me`` is ``nvidia.com/mig-1g.10gb.me``. A name over 63 characters is none.
    """
    name = SLICES + piece.profile.replace("+", ".")
    fits = _PROFILE.fullmatch(piece.profile) and len(name) <= _LONGEST_NAME
    return ResourceName(name) if fits else None


def with_known(
    reading: GpuReading,
    before: GpuReading,
    *,
    on_driver: Callable[[PciAddress], bool] = lambda _address: False,
) -> GpuReading:
    """Return *reading* with what *before* knew of GPUs that do not tell it now.

    So the slices of a GPU that is lost are advertised, unhealthy, under their own names until it
    comes back; they would otherwise vanish from under the pods that have them. So does a GPU that
    NVML, begun again, leaves out although the driver has it (*on_driver*): it is lost as well.
    But none has a number that another has now: the driver counts again whenever it is loaded. Nor a
    place that another has: it was moved, or replaced and is not missed, while the node was off.
    """
    named = [gpu for gpu in reading.gpus if gpu.uuid]  # any other may be the one that is missed
    numbers = {gpu.minor: gpu.uuid for gpu in named if gpu.minor is not None}
    places = {gpu.pci: gpu.uuid for gpu in named if gpu.pci is not None}
    known = {gpu.uuid: _without_anothers(gpu, numbers, places) for gpu in before.gpus if gpu.uuid}
    listed = {gpu.uuid for gpu in named}
    missed = [
        replace(gpu, index=NOWHERE, problems=(_NOT_LISTED,))
        for uuid, gpu in known.items()
        if uuid not in listed and gpu.pci is not None and on_driver(gpu.pci)
    ]
    told = (_with_known(gpu, known.get(gpu.uuid)) for gpu in reading.gpus)
    return replace(reading, gpus=(*told, *missed))


def _without_anothers(
    gpu: Gpu, numbers: Mapping[int, str], places: Mapping[PciAddress, str]
) -> Gpu:
    """Return *gpu* without its minor number or place where that is the one of another now."""
    if gpu.minor is not None and numbers.get(gpu.minor, gpu.uuid) != gpu.uuid:
        gpu = replace(gpu, minor=None, index=NOWHERE)
    if gpu.pci is not None and places.get(gpu.pci, gpu.uuid) != gpu.uuid:
        gpu = replace(gpu, pci=None)
    return gpu


def _with_known(gpu: Gpu, before: Gpu | None) -> Gpu:
    if before is None or not gpu.problems:
        return gpu
    asked_before = {problem.asked for problem in before.problems}
    gpu = replace(
        gpu,
        minor=before.minor if gpu.minor is None else gpu.minor,
        # By these it is in a resource, or left out of all.
        pci=gpu.pci or before.pci,
        name=gpu.name or before.name,
        memory=before.memory if gpu.memory is None else gpu.memory,
        problems=tuple(
            problem
            if problem.lost or problem.asked in asked_before or before.index == NOWHERE
            else replace(problem, once=True)
            for problem in gpu.problems
        ),
    )
    return replace(gpu, mig=before.mig, slices=before.slices) if _silent(gpu) else gpu


def _silent(gpu: Gpu) -> bool:
    return any(problem.asked in _LAYOUT for problem in gpu.problems)


def _whole(gpu: Gpu) -> GpuPart:
    return GpuPart(name=DeviceName(GPU, DeviceId(gpu.uuid)), gpu=gpu)


def _there(gpu: Gpu) -> Iterable[GpuPart]:
    return (_whole(gpu), *(_part(gpu, piece, GPU) for piece in _pieces(gpu)))


def _part(gpu: Gpu, piece: MigSlice, resource: ResourceName) -> GpuPart:
    return GpuPart(name=DeviceName(resource, DeviceId(piece.uuid)), gpu=gpu, slice=piece)


def _untold(gpu: Gpu) -> list[str]:
    """Return why nothing, or not all, of a GPU in MIG mode can be advertised at all."""
    if not gpu.mig:
        return []
    if not gpu.slices:
        reason = "MIG mode is on and it has no MIG devices; create some, or turn MIG mode off"
        return [f"GPU {gpu.index} ({gpu.uuid}) is not advertised: {reason}"]
    return [
        f"a MIG device of GPU {gpu.index} ({gpu.uuid}) is not advertised: it has no UUID"
        for piece in gpu.slices
        if not piece.uuid
    ]


def _mixed(gpus: Sequence[Gpu]) -> tuple[list[GpuPart], list[str]]:
    parts: list[GpuPart] = []
    problems: list[str] = []
    for gpu in gpus:
        if not gpu.mig:
            parts.append(_whole(gpu))
        for piece in _pieces(gpu):
            of_instance, own = piece.slices
            resource = resource_of(piece)
            if own != of_instance:
                problems.append(
                    f"{_called(gpu, piece)} is not advertised: strategy mixed has no name for a "
                    f"compute instance with {own} of its GPU instance's {of_instance} slices"
                )
            elif resource is None:
                problems.append(
                    f"{_called(gpu, piece)} is not advertised: its profile makes no resource name "
                    f"of at most {_LONGEST_NAME} characters"
                )
            else:
                parts.append(_part(gpu, piece, resource))
    return parts, problems


def _single(gpus: Sequence[Gpu]) -> tuple[list[GpuPart], list[str]]:
    """Advertise one kind under nvidia.com/gpu: on an uneven node, the one most GPUs have.

    A name that means two sizes would give pods the wrong one. Whole GPUs win a tie, then the kind
    that makes most of the GPUs' slices useful, then the one of which there are most.
    """
    sure = [gpu for gpu in gpus if not _unsure(gpu)]
    votes = Counter(kind for gpu in sure for kind in set(_kinds(gpu)))
    if not votes:
        return [_whole(gpu) for gpu in gpus if not gpu.mig], []
    there = Counter(kind for gpu in sure for kind in _kinds(gpu))

    def rank(kind: _Kind) -> tuple[int, bool, int, int, _Kind]:
        _, (_of_instance, own), _memory = kind
        return -votes[kind], kind != _WHOLE, -there[kind] * own, -there[kind], kind

    chosen = min(votes, key=rank)
    parts: list[GpuPart] = []
    problems: list[str] = []
    for gpu in gpus:
        if _unsure(gpu) or (not gpu.mig and chosen == _WHOLE):
            parts.append(_whole(gpu))
            continue
        fitting = [piece for piece in _pieces(gpu) if _kind(piece) == chosen]
        parts += [_part(gpu, piece, GPU) for piece in fitting]
        if others := sorted({_told(kind) for kind in _kinds(gpu) if kind != chosen}):
            problems.append(
                f"{', '.join(others)} of GPU {gpu.index} ({gpu.uuid}) not advertised: strategy "
                f"single needs the same on every GPU, and most have {_told(chosen)}; give all "
                "GPUs the same layout, or set gpu.migStrategy to mixed"
            )
    return parts, problems


_Kind = tuple[str, tuple[int, int], int]
_WHOLE: _Kind = ("", (0, 0), 0)


def _kind(piece: MigSlice) -> _Kind:
    return piece.profile, piece.slices, piece.memory or 0


def _kinds(gpu: Gpu) -> Iterable[_Kind]:
    return map(_kind, _pieces(gpu)) if gpu.mig else (_WHOLE,)


def _told(kind: _Kind) -> str:
    return "the whole" if kind == _WHOLE else f"MIG {kind[0] or 'devices without a profile'}"


def _unsure(gpu: Gpu) -> bool:
    """Tell whether it looks whole only because it does not answer."""
    return not gpu.mig and _silent(gpu)


def _pieces(gpu: Gpu) -> list[MigSlice]:
    return [piece for piece in gpu.slices if piece.uuid] if gpu.mig else []


def _called(gpu: Gpu, piece: MigSlice) -> str:
    return f"MIG {piece.profile or '?'} ({piece.uuid}) of GPU {gpu.index} ({gpu.uuid})"
