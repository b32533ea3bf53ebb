"""Who uses a device: facts from a scan of the kernel."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from holdfast.model.ids import DeviceName, PciAddress, PodUid, ProcessId
from holdfast.model.use.sandbox import Sandbox


class Grip(Enum):
    """One way in which a process keeps a device in use."""

    NODE = "node open"
    """It has the group node (or /dev/accelN, or /dev/vfio/devices/vfioX) open."""

    DEVICE_FD = "device fd"
    """It has the VFIO device fd (`anon_inode:[vfio-device]`)."""

    MAPPED = "mapped"
    """It has the device's memory mapped."""

    COMPUTES = "computes on it"
    """The driver names it as a program, or a client of one, that computes on the device."""

    DRAWS = "draws on it"
    """The driver names it as a program that draws on the device."""


class Holder(Struct, frozen=True, kw_only=True):
    """A process that has a device open or mapped. `cgroup` is absolute in the host's hierarchy."""

    process: ProcessId
    command: str
    grips: frozenset[Grip]
    cgroup: str = ""
    pod: PodUid | None = None
    container: str | None = None
    uid: int | None = None
    """The effective uid, None where it could not be read."""
    sandbox: Sandbox | None = None
    """What it is in a sandbox, None for any other process."""

    def __str__(self) -> str:
        """Return the words a person needs to find it: pid, command and pod."""
        grips = ", ".join(sorted(grip.value for grip in self.grips))
        where = f" of pod {self.pod}" if self.pod else " outside any pod"
        return f"pid {self.process} ({self.command}){where} [{grips}]"


class ScanTarget(Struct, frozen=True, kw_only=True):
    """What a scan looks for on behalf of one device."""

    device: DeviceName
    rdevs: frozenset[int]
    addresses: frozenset[PciAddress]


class Scan(Struct, frozen=True, kw_only=True):
    """What one scan of /proc found.

    `unattributed` are processes with a VFIO device fd, or a mapping of one, whose function is
    unknown: before Linux 6.18 the kernel does not report it, and they have no group node open.
    `gaps` say what could not be seen; a scan with gaps proves nothing, neither use nor freedom.
    """

    holders: Mapping[DeviceName, tuple[Holder, ...]] = field(default_factory=dict)
    unattributed: tuple[Holder, ...] = ()
    gaps: tuple[str, ...] = ()
    unread: frozenset[int] = frozenset()
    """The pids of the processes among the gaps."""
    processes: int = 0
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Return whether this scan could see everything."""
        return not self.gaps
