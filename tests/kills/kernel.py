"""A kernel in memory: processes, cgroups, open devices, and who is hit by each signal."""

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.model.ids import DeviceName, ProcessId
from holdfast.model.use.holders import DeviceAccess
from manual_clock import ManualClock

INIT = 1
NODE = 1
_FIRST_PID = 5_000_000
"""Beyond what any real kernel gives, so that this very process is none of them."""
_TICKS = 100


@dataclass(eq=False, slots=True, kw_only=True)
class Process:
    """One process. `works` tells why somebody still wants it, or None: an orphan."""

    id: ProcessId
    command: str
    cgroup: str
    works: Callable[[], str | None]
    parent: int = INIT
    arguments: tuple[str, ...] = ()
    namespaces: int = NODE
    """Which mounts it sees: the node's, or a container's."""
    adopts: bool = False
    """It is a subreaper, as shims and conmon are: who loses its parent below it becomes its child."""
    machine: bool = False
    """It has a virtual machine of KVM's."""
    access: dict[DeviceName, frozenset[DeviceAccess]] = field(default_factory=dict)
    deaf: bool = False
    """It takes no notice of SIGTERM."""
    stuck: bool = False
    """It sleeps in a driver: no signal ends it."""


class Kernel:
    """Processes live and die here; every signal is judged at the moment it is sent."""

    def __init__(self, rng: random.Random, clock: ManualClock, mishaps: random.Random) -> None:
        """Do as *rng* says, and when cgroups are frozen as *mishaps* says."""
        self.rng = rng
        self.mishaps = mishaps
        self.smooth = False
        """Whether there are no mishaps any more."""
        self.clock = clock
        self.processes: dict[int, Process] = {}
        self.cgroups: dict[str, int] = {}
        self.blind = False
        """Whether one process cannot be inspected, which makes each scan incomplete."""
        self.kills_cgroups = True
        """Whether it has cgroup.kill."""
        self.freezes_cgroups = True
        self.frozen: dict[str, bool] = {}
        """The cgroups that are frozen; True: by holdfast, and not by somebody else."""
        self.late: tuple[str, int] | None = None
        """Path and inode of a cgroup that holdfast freezes, of which nobody has an answer yet."""
        self.on_exit: list[Callable[[Process], None]] = []
        self.on_change: list[Callable[[str], None]] = []
        self.told: list[str] = []
        """The story so far, for people."""
        self.wrong: list[str] = []
        self.ended = 0
        self._free_pids: list[int] = []
        self._next_pid = _FIRST_PID
        self._ticks = 0
        self._inode = 100

    def chance(self) -> float:
        """Return between 0 and 1 how little a mishap would be; 1: there is none."""
        return 1.0 if self.smooth else self.mishaps.random()

    def say(self, text: str) -> None:
        self.told.append(f"{self.clock.monotonic():9.2f}  {text}")

    def complain(self, wrong: Iterable[str]) -> None:
        """Write down what went wrong, once."""
        for line in wrong:
            if line not in self.wrong:
                self.wrong.append(line)
                self.say(f"WRONG {line}")

    def make_cgroup(self, path: str) -> None:
        if path not in self.cgroups:
            self._inode += 1
            self.cgroups[path] = self._inode

    def drop_cgroup(self, path: str) -> None:
        """Remove it as kubelet does: what is populated stays."""
        if not any(self.members(path)):
            self.cgroups.pop(path, None)
            self.frozen.pop(path, None)

    def freeze(self, path: str) -> None:
        """Freeze a cgroup for holdfast."""
        self.say(f"{path} is frozen")
        if self.frozen.get(path) is False:
            self.complain([f"{path} is frozen by somebody else already"])
        self.frozen[path] = True

    def thaw(self, path: str) -> None:
        """Let a cgroup go on, as holdfast says."""
        if self.frozen.get(path) is False:
            self.complain([f"{path} is thawed, which somebody else has frozen"])
        elif self.frozen.pop(path, None):
            self.say(f"{path} is thawed")

    def answer_late(self) -> None:
        """Freeze at last what a daemon wanted frozen that has given up since, or is dead."""
        late, self.late = self.late, None
        if late is not None and self.cgroups.get(late[0]) == late[1]:
            self.freeze(late[0])

    def still_frozen(self) -> list[str]:
        """Return what is wrong where holdfast has left a cgroup frozen."""
        return [f"{path} stays frozen" for path, ours in self.frozen.items() if ours]

    def spawn(
        self,
        command: str,
        cgroup: str,
        works: Callable[[], str | None],
        *,
        parent: int = INIT,
        arguments: tuple[str, ...] = (),
        namespaces: int = NODE,
        adopts: bool = False,
    ) -> Process:
        self._ticks = max(self._ticks + 1, int(self.clock.uptime() * _TICKS))
        if self._free_pids and self.rng.random() < 0.5:
            pid = self._free_pids.pop(self.rng.randrange(len(self._free_pids)))
        else:
            pid, self._next_pid = self._next_pid, self._next_pid + 1
        process = Process(
            id=ProcessId(pid, self._ticks),
            command=command,
            cgroup=cgroup,
            works=works,
            parent=parent,
            arguments=arguments or (command,),
            namespaces=namespaces,
            adopts=adopts,
        )
        self.processes[pid] = process
        self._changed(cgroup)
        return process

    def lives(self, process: Process) -> bool:
        return self.processes.get(process.id.pid) is process

    def exit(self, process: Process) -> None:
        if not self.lives(process):
            return
        del self.processes[process.id.pid]
        self._free_pids.append(process.id.pid)
        adopter = self._adopter(process)
        for each in self.processes.values():
            if each.parent == process.id.pid:
                each.parent = adopter
        for hear in list(self.on_exit):
            hear(process)
        self._changed(process.cgroup)

    def move(self, process: Process, cgroup: str) -> None:
        before, process.cgroup = process.cgroup, cgroup
        self._changed(before)
        self._changed(cgroup)

    def members(self, path: str) -> Iterator[Process]:
        """Yield what lives in the cgroup and below."""
        below = f"{path}/"
        return (
            each
            for each in list(self.processes.values())
            if each.cgroup == path or each.cgroup.startswith(below)
        )

    def holders(self, device: DeviceName) -> list[Process]:
        return [each for each in self.processes.values() if device in each.access]

    def signal(self, process: Process, number: signal.Signals, how: str) -> None:
        """Deliver holdfast's signal, and write down whose work it hit."""
        why = process.works()
        line = f"{number.name} by {how} to pid {process.id} ({process.command}, {process.cgroup})"
        if why is not None:
            self.complain([f"{line}: {why}"])
        else:
            self.say(line)
        dies = number is signal.SIGKILL or not process.deaf
        if dies and not process.stuck:
            self.ended += why is None
            self.exit(process)

    def _adopter(self, process: Process) -> int:
        """Return who becomes the parent of the children of *process*, which ends."""
        above = self.processes.get(process.parent)
        while above is not None and not above.adopts:
            above = self.processes.get(above.parent)
        return INIT if above is None else above.id.pid

    def _changed(self, cgroup: str) -> None:
        for hear in list(self.on_change):
            hear(cgroup)
