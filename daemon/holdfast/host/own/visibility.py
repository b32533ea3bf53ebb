"""What this process can see of others: the facts that bound what any scan can prove."""

import re

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_link, read_text
from holdfast.host.proc.procfs import INIT_PID_NAMESPACE
from holdfast.host.root import HostRoot

_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
_HIDEPID = re.compile(r"(?:^|,)hidepid=([^,]*)")
_SEES_ALL = frozenset({"", "0", "off"})
_REFUSES = frozenset({"1", "noaccess"})
"""Shows every process and refuses its files: that is met as EACCES, process by process."""


class Visibility(Struct, frozen=True, kw_only=True):
    """What limits our sight; None where the kernel does not say.

    `capabilities` is the effective set as a mask. `hidepid` is the mount option of /proc, empty
    where it has none. `in_init_pid_namespace`: every process of the node has a pid here.
    """

    capabilities: int | None
    in_init_pid_namespace: bool | None
    hidepid: str = ""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the capabilities that seeing and ending others' processes takes, and we lack."""
        mask = self.capabilities or 0
        return tuple(name for name, bit in _CAPABILITIES.items() if not mask >> bit & 1)

    @property
    def blinding(self) -> tuple[str, ...]:
        """Return those of `lacking` without which another user's process cannot be looked into."""
        return tuple(name for name in self.lacking if name != "CAP_KILL")

    @property
    def hides(self) -> tuple[str, ...]:
        """Return what keeps whole processes out of sight; a lack that shows as EACCES is none."""
        found: list[str] = []
        if self.in_init_pid_namespace is False:
            found.append("processes outside this pid namespace cannot be seen; set hostPID: true")
        # CAP_SYS_PTRACE sees through every hidepid.
        if self.hidepid not in _SEES_ALL | _REFUSES and "CAP_SYS_PTRACE" in self.lacking:
            found.append(
                f"/proc is mounted with hidepid={self.hidepid}, which hides others' processes; "
                "add the capability SYS_PTRACE"
            )
        return tuple(found)


def visibility(root: HostRoot, process: str = "self") -> Visibility:
    """Return what limits the sight of this process, or of another, below *root*. Never raises."""
    namespace = _link(root, process, "ns/pid")
    return Visibility(
        capabilities=_capabilities(_text(root, process, "status")),
        in_init_pid_namespace=None if namespace is None else namespace == INIT_PID_NAMESPACE,
        hidepid=_hidepid(_text(root, process, "mountinfo"), str(root.proc)),
    )


def _capabilities(status: str) -> int | None:
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})$", status, re.MULTILINE)
    return None if match is None else int(match[1], 16)


def _hidepid(mountinfo: str, proc: str) -> str:
    """Return the hidepid option of the filesystem that is mounted last, and so seen, at *proc*."""
    option = ""
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, options = mount.split(), filesystem.split()
        if fields[4:5] == [proc] and options:
            match = _HIDEPID.search(options[-1])
            option = "" if match is None else match[1]
    return option


def _text(root: HostRoot, process: str, name: str) -> str:
    try:
        return read_text(root.proc / process / name) or ""
    except HostError:
        return ""


def _link(root: HostRoot, process: str, name: str) -> str | None:
    try:
        return read_link(root.proc / process / name)
    except HostError:
        return None
