"""Which processes are those of a sandbox: gVisor's sentry with its helpers, or a Kata VM."""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

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
