"""Who uses a device: its holders, what each is in a sandbox, and the words for them."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.model.ids import DeviceName, PciAddress, PodUid, ProcessId

# Names as /proc/PID/comm shows them, cut to 15 characters by the kernel. gVisor runs itself again
# by way of /proc/self/exe, so its command can be a bare "exe".
GVISORS = frozenset({"exe", "runsc", "runsc-sandbox", "runsc-gofer"})
MACHINES = frozenset(
    {
        "acrn-dm",
        "cloud-hyperviso",
        "crosvm",
        "dragonball",
        "firecracker",
        "kata-clh",
        "lkvm",
        "qemu-kvm",
        "stratovirt",
    }
)
_QEMU = "qemu-system-"
"""QEMU's name goes on with the architecture."""
SANDBOXES = GVISORS | MACHINES


class Sandbox(Enum):
    """What a process is in a sandbox."""

    SENTRY = "gVisor sandbox"
    """The kernel of a gVisor sandbox: what the programs in it open, this process has open."""

    STUB = "gVisor stub process"
    """A child of the sentry, in which programs run; it inherits what the sentry has open."""

    GOFER = "gVisor gofer"
    """Opens files, and device nodes for a moment, on the sentry's behalf."""

    MACHINE = "virtual machine"
    """The monitor of a virtual machine, such as Kata's."""


GVISOR = frozenset({Sandbox.SENTRY, Sandbox.STUB, Sandbox.GOFER})
"""What belongs to a gVisor sandbox."""


class Program(Struct, frozen=True, kw_only=True):
    """What a process runs: the kernel's name for it, and the arguments that it was started with."""

    command: str
    arguments: tuple[str, ...] = ()


def sandbox_role(program: Program, ancestors: Sequence[Program] = ()) -> Sandbox | None:
    """Return what *program* is in a sandbox, None for any other; *ancestors*, its parent first.

    A name alone proves nothing: many programs run themselves again as "exe". gVisor's have their
    own name and their subcommand among the arguments as well. Its stub processes have no
    arguments, but the kernel says whose children they are.
    """
    if program.command in MACHINES or program.command.startswith(_QEMU):
        return Sandbox.MACHINE
    own = _gvisor_command(program)
    if own is not None:
        return own
    if any(_gvisor_command(each) is Sandbox.SENTRY for each in ancestors):
        return Sandbox.STUB
    return None


def _gvisor_command(program: Program) -> Sandbox | None:
    first, *rest = program.arguments or ("",)
    name = first.rpartition("/")[2]
    if program.command not in GVISORS or not name.startswith("runsc"):
        return None
    if "boot" in rest:
        return Sandbox.SENTRY
    return Sandbox.GOFER if "gofer" in rest else None


class DeviceAccess(Enum):
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
    access: frozenset[DeviceAccess]
    cgroup: str = ""
    pod: PodUid | None = None
    container: str | None = None
    uid: int | None = None
    """The effective uid, None where it could not be read."""
    sandbox: Sandbox | None = None
    """What it is in a sandbox, None for any other process."""

    def __str__(self) -> str:
        """Return the words a person needs to find it: pid, command and pod."""
        access = ", ".join(sorted(each.value for each in self.access))
        where = f" of pod {self.pod}" if self.pod else " outside any pod"
        return f"pid {self.process} ({self.command}){where} [{access}]"


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
    more: Mapping[DeviceName, int] = field(default_factory=dict)
    """How many more holders of each device there are; those kept stand for them."""
    gaps: tuple[str, ...] = ()
    unread: frozenset[int] = frozenset()
    """The pids of the processes among the gaps."""
    of_unread: tuple[str, ...] = ()
    """What the gaps say of them."""
    processes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """What this process worked meanwhile: on a busy node a scan takes longer and costs the same."""


LEAK = "a leaked VFIO device fd (gvisor#11545, fixed in release-20250326.0)"
MOST_NAMED = 8
"""A program may have a device open in thousands of processes: texts, and the ledger, stay small."""
_REMEDIES = "upgrade runsc, delete the pod, or set reclaim.leakedSandbox: restart"


def leaking_pods(holders: Iterable[Holder]) -> frozenset[PodUid]:
    """Return the pods whose gVisor sandbox keeps a device by a VFIO device fd alone.

    A program that uses a device has its group open too. The sentry of a runsc that leaks closes
    the group with the program, and keeps the device fd, and so the device, for as long as it lives.
    """
    access: dict[PodUid, set[DeviceAccess]] = {}
    others: set[PodUid] = set()
    for holder in holders:
        if holder.pod is None:
            continue
        access.setdefault(holder.pod, set()).update(holder.access)
        if holder.sandbox not in GVISOR:
            others.add(holder.pod)
    return frozenset(pod for pod in access if access[pod] == {DeviceAccess.DEVICE_FD}) - others


def named(holders: Sequence[Holder], more: int = 0) -> str:
    """Return *holders* and *more* for people: the first by name, and how many more there are."""
    first = "; ".join(str(each) for each in holders[:MOST_NAMED])
    more += max(0, len(holders) - MOST_NAMED)
    return f"{first} and {more} more" if more > 0 else first


def held_by(holders: Sequence[Holder], more: int = 0) -> str:
    """Return what to say of a device with these holders, to complete "the device is".

    There are *more* of them.
    """
    leaking = leaking_pods(holders)
    others = [each for each in holders if each.pod not in leaking]
    rest = named(others, more) if others else ""
    texts = [_leak(pod, holders) for pod in sorted(leaking)]
    return "; ".join([*([f"held by {rest}"] if rest else []), *texts])


def _leak(pod: PodUid, holders: Sequence[Holder]) -> str:
    mine = [each for each in holders if each.pod == pod]
    first = next((each for each in mine if each.sandbox is Sandbox.SENTRY), mine[0])
    more = f" and {len(mine) - 1} more of its processes" if mine[1:] else ""
    return (
        f"in use: gVisor sandbox of pod {pod} keeps {LEAK}: pid {first.process} "
        f"({first.command}){more}; {_REMEDIES}"
    )


def cause(holder: Holder, holders: Iterable[Holder]) -> str:
    """Return what one of a device's *holders* is, and why it holds; empty for any program."""
    if holder.sandbox is None:
        return ""
    leaks = holder.pod in leaking_pods(holders)
    return f"{holder.sandbox.value}: {LEAK}" if leaks else holder.sandbox.value
