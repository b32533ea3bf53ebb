"""Processes and kernel facts from /proc; what vanishes while it is read is None."""

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId, ProcessId

_INIT_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO: the inode of the first pid namespace, the same on every kernel."""

_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process at one moment. `cgroup` is the text of its cgroup file."""

    process: ProcessId
    comm: str
    state: str
    ppid: int
    threads: int


class Procfs:
    """Reads below one root."""

    def __init__(self, root: HostRoot) -> None:
        """Read below *root*'s proc folder."""
        self._root = root.proc

    def pids(self) -> list[int]:
        """Return the pids that are there now."""
        return [int(name) for name in os.listdir(self._root) if name.isdecimal()]

    def process(self, pid: int) -> ProcessFacts | None:
        """Return the process, or None when there is none."""
        try:
            text = (self._root / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # The name is in parentheses and may have any character in it, a parenthesis too.
        head, _, tail = text.rpartition(b")")
        fields = tail.split()
        try:
            return ProcessFacts(
                process=ProcessId(pid, int(fields[19])),
                comm=head.partition(b"(")[2].decode(errors="replace"),
                state=fields[0].decode(),
                ppid=int(fields[1]),
                threads=int(fields[17]),
            )
        except (IndexError, ValueError):
            return None

    def start_ticks(self, pid: int) -> int | None:
        """Return when the process started, in clock ticks since boot."""
        facts = self.process(pid)
        return None if facts is None else facts.process.start_ticks

    def started_at(self, process: ProcessId) -> float:
        """Return when the process started, in seconds since the epoch, to about a second."""
        return self._booted_at() + process.start_ticks / os.sysconf("SC_CLK_TCK")

    def boot_id(self) -> BootId:
        """Return the id of this boot; empty where the kernel does not tell."""
        try:
            text = (self._root / "sys/kernel/random/boot_id").read_text("ascii")
        except OSError:
            return BootId("")
        return BootId(text.strip())

    def char_major(self, name: str) -> int | None:
        """Return the major number that a character driver has now, or None when it has none."""
        try:
            text = (self._root / "devices").read_text("ascii", errors="replace")
        except OSError:
            return None
        for line in text.partition("Block devices:")[0].splitlines():
            number, _, driver = line.strip().partition(" ")
            if driver == name and number.isdecimal():
                return int(number)
        return None

    def blind_spots(self) -> tuple[str, ...]:
        """Return what hides whole processes from this one, for people; empty: nothing does."""
        found: list[str] = []
        namespace = self._namespace()
        if namespace not in {None, _INIT_PID_NAMESPACE}:
            found.append("not in the host's pid namespace (set hostPID: true)")
        if self._hidepid():
            found.append("/proc is mounted with hidepid, which hides other users' processes")
        return tuple(found)

    def lacking_capabilities(self) -> tuple[str, ...]:
        """Return which of the capabilities that reading other processes needs are not effective."""
        effective = self._effective()
        return tuple(name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1)

    def _namespace(self) -> int | None:
        try:
            text = str((self._root / "self/ns/pid").readlink())
        except OSError:
            return None
        number = text.partition("[")[2].rstrip("]")
        return int(number) if number.isdecimal() else None

    def _hidepid(self) -> bool:
        try:
            lines = (self._root / "self/mountinfo").read_text(errors="replace").splitlines()
        except OSError:
            return False
        # The last mount over a point is the one that is seen.
        options = [line for line in lines if line.split()[4:5] == [str(self._root)]]
        if not options:
            return False
        return any(
            word.startswith("hidepid=") and word not in {"hidepid=0", "hidepid=off"}
            for word in options[-1].replace(",", " ").split()
        )

    def _effective(self) -> int:
        try:
            for line in (self._root / "self/status").read_text(errors="replace").splitlines():
                if line.startswith("CapEff:"):
                    return int(line.split()[1], 16)
        except (OSError, ValueError, IndexError):
            return 0
        return 0

    def _booted_at(self) -> float:
        try:
            for line in (self._root / "stat").read_text("ascii").splitlines():
                if line.startswith("btime "):
                    return float(line.split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return 0.0


def proc_folder(root: HostRoot, pid: int) -> Path:
    """Return the folder of a process."""
    return root.proc / str(pid)
