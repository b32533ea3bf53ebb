"""What NVML reports of a node's GPUs, as values; the driver itself is behind host.nvidia.nvml."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from holdfast.model.cards import card_key, part_key
from holdfast.model.ids import HardwareKey, PciAddress

NOWHERE = -1
"""The index of a GPU that NVML does not list."""


class GpuProblem(Struct, frozen=True, kw_only=True):
    """Why something could not be learned of a GPU: what was asked, and what NVML said.

    `error` is NVML's own name for it, such as ``NVML_ERROR_GPU_IS_LOST``. `lost`: the GPU itself
    is gone from the bus or needs a reset, not just this one answer. `once`: the reading before had
    the answer, so it condemns nobody yet.
    """

    asked: str
    error: str
    lost: bool = False
    once: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        return f"NVML cannot tell its {self.asked}: {self.error}"


class MigEngines(Struct, frozen=True, kw_only=True):
    """What a MIG device has to compute with, in NVIDIA's words; engines may be shared."""

    multiprocessors: int = 0
    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class MigSlice(Struct, frozen=True, kw_only=True):
    """One MIG device of a GPU: a GPU instance `gi` with a compute instance `ci`.

    `profile` is as NVML names it, such as ``1g.10gb`` or ``1g.10gb+me``; `slices` are how many
    compute slices the GPU instance and the compute instance have.
    """

    uuid: str
    gi: int
    ci: int
    profile: str
    slices: tuple[int, int] = (1, 1)
    memory: int | None = None
    """Bytes."""
    engines: MigEngines = MigEngines()
    index: int = 0
    """The place where NVML has it among its GPU's, N of ``3:N``."""


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML enumerates it.

    A GPU that answers nothing still has its `index`, and `problems` that say why; `uuid` is then
    the one it was last known by, if it was ever known. `minor` is N of /dev/nvidiaN. `memory` is in
    bytes. `mig`: MIG mode is on; `slices` are its MIG devices, none where it is off.
    """

    index: int
    uuid: str = ""
    minor: int | None = None
    pci: PciAddress | None = None
    numa_node: int | None = None
    name: str = ""
    memory: int | None = None
    mig: bool = False
    slices: tuple[MigSlice, ...] = ()
    clique: str = ""
    """The GPUs of other nodes that it reaches by NVLink: the UUID of their cluster, and the number
    of the clique in it. Empty: none, or the fabric is not up yet."""
    problems: tuple[GpuProblem, ...] = ()

    @property
    def key(self) -> HardwareKey:
        """Return its own key."""
        return card_key(self.uuid)

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return its own key and those of its slices, so that they exclude each other."""
        return frozenset({self.key, *map(self.key_of, self.slices)})

    def key_of(self, part: MigSlice) -> HardwareKey:
        """Return the key of a slice. It says whose slice it was, also when it is no more."""
        return part_key(self.uuid, f"{part.gi}/{part.uuid}")


class GpuTraits(Struct, frozen=True, kw_only=True):
    """What a GPU is, apart from its name, in NVIDIA's words; unknown values are empty."""

    brand: str = ""
    architecture: str = ""
    capability: str = ""
    """Of CUDA, such as ``9.0``."""
    cuda_driver: str = ""
    """The version of CUDA that the driver supports, such as ``12.4``."""
    addressing: str = ""
    """How it reaches what programs allocate on the host: ``HMM``, ``ATS`` or ``None``."""
    mig_capable: bool = False
    """Whether it has a MIG mode, on or off."""
    virtual: bool = False
    """Whether it is a vGPU, which NVML says in a guest."""


class DriverState(Enum):
    """Where NVIDIA's driver stands."""

    ABSENT = "absent"
    """The kernel has no NVIDIA driver: no /proc/driver/nvidia."""
    NO_LIBRARY = "no-library"
    """The kernel has it; libnvidia-ml.so.1 is under no root that was searched."""
    NOT_READY = "not-ready"
    """The library is there and does not start: the driver is being loaded, replaced or removed."""
    READY = "ready"


class GpuReading(Struct, frozen=True, kw_only=True):
    """One enumeration. `reason` says why there is nothing, or less, to see; for people."""

    state: DriverState = DriverState.ABSENT
    reason: str = ""
    driver_version: str = ""
    library: str = ""
    """The path of the library that answered."""
    gpus: tuple[Gpu, ...] = ()


class GpuProcess(Struct, frozen=True, kw_only=True):
    """One process that NVML names on a GPU or slice, in the host's pid namespace."""

    pid: int
    kind: str
    """``compute``, ``graphics`` or ``mps``."""
    memory: int | None = None


class GpuUse(Struct, frozen=True, kw_only=True):
    """Who uses a GPU or a slice; `problem` says that it cannot be told, which proves nothing.

    `memory_used` is in bytes, `utilization` by how many percent it works; None where NVML does not
    tell (MIG, some drivers).
    """

    processes: tuple[GpuProcess, ...] = ()
    memory_used: int | None = None
    utilization: int | None = None
    problem: str = ""


class GpuEventKind(Enum):
    """What an event of NVML's is about."""

    XID = "xid"
    SINGLE_BIT_ECC = "single-bit-ecc"
    DOUBLE_BIT_ECC = "double-bit-ecc"


class GpuEvent(Struct, frozen=True, kw_only=True):
    """One event. `uuid` is the GPU's, empty when NVML could not say; `gi` and `ci` its slice's."""

    kind: GpuEventKind
    uuid: str
    xid: int = 0
    gi: int | None = None
    ci: int | None = None


class GpuCondition(Struct, frozen=True, kw_only=True):
    """What NVML reports of a GPU's state, apart from events; None: not supported or unknown."""

    remap_failed: bool | None = None
    remap_pending: bool | None = None
    retired_pending: bool | None = None
    links_down: tuple[int, ...] = ()
    """NVLinks that are there and not active."""
    peers: Mapping[int, PciAddress] = field(default_factory=dict)
    """The GPUs at the other end of NVLinks that are or were active."""
    temperature: int | None = None
    """Degrees Celsius."""
    shutdown_temperature: int | None = None
    recovery: str | None = None
    """What the driver (from R565) asks for before the GPU is used again; empty: nothing."""
    lost: str = ""
    """NVML's error when the GPU does not answer; empty when it does."""


class Link(Enum):
    """How two GPUs reach each other over PCI, from near to far, as NVML names it."""

    SAME_BOARD = "same-board"
    SINGLE_SWITCH = "single-switch"
    MULTI_SWITCH = "multi-switch"
    HOST_BRIDGE = "host-bridge"
    SAME_CPU = "same-cpu"
    CROSS_CPU = "cross-cpu"
    UNKNOWN = "unknown"


class GpuLinks(Struct, frozen=True, kw_only=True):
    """The topology: for pairs of UUIDs (in order), the PCI distance and the number of NVLinks.

    `switched` are the GPUs whose NVLinks lead to NVSwitches: all of them reach each other.
    """

    pci: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    nvlinks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    switched: frozenset[str] = frozenset()
