"""Processes, their ancestors, and drivers from /proc. What vanishes while it is read is None."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    field_of,
    link_or_none,
    list_names,
    names_or_empty,
    read_bytes,
    read_link,
    read_text,
    stat_or_none,
    text_or_empty,
)
from holdfast.host.proc.visits import PATIENCE, Visits
from holdfast.host.root import HostRoot
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Parent
from holdfast.model.use.holders import GVISORS, Program, Sandbox, sandbox_role

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO, the same on every kernel."""
INIT_CGROUP_NAMESPACE = "cgroup:[4026531835]"
"""PROC_CGROUP_INIT_INO, likewise."""

_KERNEL_THREAD = 0x00200000
_EXITING = 0x4
"""PF_KTHREAD and PF_EXITING among the flags of a process."""
_EXITED = frozenset({"Z", "X"})
_MACHINE = "anon_inode:kvm-vm"
_VIRTUAL_CPU = b"anon_inode:kvm-vcpu"
_FEW = 128
"""Up to so many open files of a process are looked at one by one."""
_LONGEST_MAPS = 1 << 22
"""So much of a list of mappings is read; that of a monitor has some hundred lines."""
_CHUNK = 1 << 16
_LONGEST = 1 << 16
_LONGEST_NAME = 64
_TRIES = 4
"""How often another parent is looked for, of a process whose parents end meanwhile."""
_FARTHEST = 16
"""How many ancestors are read at most. gVisor's helpers are children of its children."""
_MASK = re.compile(r"[0-9a-fA-F]{1,16}")


class ProcessFacts(Struct, frozen=True, kw_only=True):
    """One process at one moment. `threads` includes a leader that exited before its threads.

    `state` is the kernel's letter: ``Z`` for a leader that has exited.
    """

    process: ProcessId
    comm: str
    state: str
    ppid: int
    threads: int
    kernel_thread: bool = False
    exiting: bool = False
    """It shows no open files any more, and the kernel may not have closed all of them yet."""

    @property
    def can_act(self) -> bool:
        """Tell whether any thread of it still runs; a zombie can have live threads."""
        return self.state not in _EXITED or self.threads > 1


class Procfs:
    """Reads below one root. What cannot be read counts as gone: None, or empty."""

    def __init__(self, root: HostRoot, *, patience: float = PATIENCE) -> None:
        """Read below *root*'s proc folder. *patience*: how long arguments may take, in seconds."""
        self._proc = str(root.proc)
        self._visits = Visits(self.start_ticks, patience=patience)

    def pids(self) -> list[int]:
        """Return the pids that exist now; raise HostError as `inodes` does."""
        return sorted(self.inodes())

    def inodes(self) -> dict[int, int]:
        """Return the inode of each process's folder by its pid; raise HostError if none is listed.

        An empty folder is no kernel's /proc: to see no process in it proves nothing.
        """
        advice = "mount the host's /proc"
        try:
            with os.scandir(self._proc) as entries:
                found = {int(each.name): each.inode() for each in entries if each.name.isdecimal()}
        except OSError as error:
            raise HostError(f"cannot list {self._proc}: {error.strerror}; {advice}") from error
        if not found:
            raise HostError(f"cannot list {self._proc}: there is nothing in it; {advice}")
        return found

    def own_pid(self) -> int:
        """Return the pid that this process has in this /proc."""
        name = os.path.basename(os.path.realpath(f"{self._proc}/self"))
        return int(name) if name.isascii() and name.isdecimal() else os.getpid()

    @property
    def hanging(self) -> frozenset[int]:
        """Return the processes whose arguments are still being read by a stuck thread."""
        return self._visits.hanging

    def process(self, pid: int) -> ProcessFacts | None:
        """Return the process, or None if there is none or it cannot be read."""
        try:
            return self.certain(pid)
        except HostError:
            return None

    def certain(self, pid: int) -> ProcessFacts | None:
        """Return the process, or None if there certainly is none.

        Raise HostError where that is not known, as when no more files can be opened.
        """
        return process_at(f"{self._proc}/{pid}", pid)

    def start_ticks(self, pid: int) -> int | None:
        """Return when the process started, in clock ticks since boot."""
        facts = self.process(pid)
        return None if facts is None else facts.process.start_ticks

    def has_ended(self, process: ProcessId) -> bool:
        """Tell whether that very process is gone; raise HostError as `certain` does."""
        facts = self.certain(process.pid)
        return facts is None or facts.process != process

    def started_at(self, process: ProcessId) -> float:
        """Return when the process started, in seconds since the machine booted."""
        return process.start_ticks / os.sysconf("SC_CLK_TCK")

    def namespace(self, pid: int, kind: str) -> str | None:
        """Return the namespace of a process, of *kind* ``mnt`` or ``pid``; None if it has none."""
        home = f"{self._proc}/{pid}"
        # A leader that has exited is in none, and its threads are.
        own = link_or_none(f"{home}/ns/{kind}")
        tasks = () if own else names_or_empty(f"{home}/task")
        return own or next(
            filter(None, (link_or_none(f"{home}/task/{each}/ns/{kind}") for each in tasks)), None
        )

    def children(self, pid: int) -> frozenset[int]:
        """Return the pids of a process's children; none if the kernel does not list them.

        It does with CONFIG_PROC_CHILDREN, which distributions set. Raise HostError where the list
        cannot be read.
        """
        tasks = f"{self._proc}/{pid}/task"
        told = (read_text(f"{tasks}/{each}/children") or "" for each in list_names(tasks))
        return frozenset(int(child) for text in told for child in text.split() if child.isdecimal())

    def runs_a_machine(self, pid: int) -> bool:
        """Tell whether a process has a KVM virtual machine at work, whatever its name is.

        Its first open files tell, of which its monitor opens the machine early, and where it has
        more, its mappings: none runs a guest but by mapping its virtual CPUs. Neither costs more
        for a process that has a million files open.

        Raise HostError if that cannot be read: then it may have one.
        """
        folder = f"{self._proc}/{pid}/fd"
        try:
            with os.scandir(folder) as files:
                names = [each.name for each in islice(files, _FEW + 1)]
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return False
        except OSError as error:
            raise HostError(f"cannot list {folder}: {error.strerror}") from error
        if any(read_link(f"{folder}/{fd}") == _MACHINE for fd in names):
            return True
        return len(names) > _FEW and self._maps_a_cpu(pid)

    def _maps_a_cpu(self, pid: int) -> bool:
        found, _ = self._visits.each([pid], lambda: self._virtual_cpu)
        if pid not in found:
            raise HostError(
                f"cannot read the mappings of pid {pid}: they are too many, or it hangs"
            )
        return found[pid]

    def _virtual_cpu(self, pid: int, *, careful: bool, beat: Callable[[], None]) -> bool | None:
        """Look for a virtual CPU among the mappings; None if they are not read to their end."""
        if careful:
            return None
        before = b""
        try:
            with open(f"{self._proc}/{pid}/maps", "rb", buffering=0) as maps:
                for _ in range(_LONGEST_MAPS // _CHUNK):
                    beat()
                    part = maps.read(_CHUNK)
                    if _VIRTUAL_CPU in before + part:
                        return True
                    if not part:
                        return False
                    before = part[-len(_VIRTUAL_CPU) :]
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:
            return None
        return None

    def uid(self, pid: int) -> int | None:
        """Return the effective uid of a process."""
        status = text_or_empty(f"{self._proc}/{pid}/status")
        if status:
            uids = field_of(status, "Uid").split()
            return int(uids[1]) if uids[1:] and uids[1].isdecimal() else None
        found = stat_or_none(f"{self._proc}/{pid}/stat")
        return None if found is None else found.st_uid

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Return the command line of a process, its own name first; empty if it has none.

        Of a very long command line only the beginning. It is in the process's own memory, and a
        read of that can hang forever: then it is empty.
        """
        return self._words(pid, "cmdline")

    def variables(self, pid: int) -> tuple[str, ...]:
        """Return the variables with which a process was started, read as its `arguments` are."""
        return self._words(pid, "environ")

    def _words(self, pid: int, name: str) -> tuple[str, ...]:
        try:
            found, _ = self._visits.each([pid], lambda: partial(self._beginning, name))
        except HostError:
            return ()
        line = found.get(pid, b"")
        words = line.removesuffix(b"\0").split(b"\0") if line else ()
        return tuple(word.decode(errors="replace") for word in words)

    def program(self, pid: int) -> str | None:
        """Return the name by which a process was started, without its folder."""
        first = next(iter(self.arguments(pid)), "")
        return first.rpartition("/")[2][:_LONGEST_NAME] or None

    def char_major(self, name: str) -> int | None:
        """Return the major number of a character driver, or None if it has none now."""
        text = text_or_empty(f"{self._proc}/devices")
        for line in text.partition("Block devices:")[0].splitlines():
            number, _, driver = line.strip().partition(" ")
            if driver == name and number.isdecimal():
                return int(number)
        return None

    def flock_holder(self, lock: Path) -> int | None:
        """Return the pid that holds *lock* by flock(2), from the kernel's list of locks.

        Taking the lock to find out would change something. None if nobody holds it, or if the
        kernel lists the file under another number. 0 stands for a process outside our pid
        namespace.
        """
        found = stat_or_none(lock)
        if found is None:
            return None
        file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in text_or_empty(f"{self._proc}/locks").splitlines():
            fields = line.split()
            # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; a waiting one has an arrow
            if fields[1:2] == ["FLOCK"] and fields[5:6] == [file] and fields[4].isdecimal():
                return int(fields[4])
        return None

    def _beginning(
        self, name: str, pid: int, *, careful: bool, beat: Callable[[], None]
    ) -> bytes | None:
        if careful:
            return None
        beat()
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb", buffering=0) as file:
                return file.read(_LONGEST)
        except OSError:
            return None


def process_at(folder: str, pid: int) -> ProcessFacts | None:
    """Return the process or thread *pid* by its folder in /proc, as `Procfs.certain` does."""
    return _facts(read_bytes(f"{folder}/stat"), pid)


def _facts(text: bytes | None, pid: int) -> ProcessFacts | None:
    """Return what *text*, that of the file stat, tells; None where there is none."""
    try:
        # The name is in parentheses and may have any character, also a parenthesis.
        head, _, tail = (text or b"").rpartition(b")")
        fields = tail.split()
        state, flags = fields[0].decode(), int(fields[6])
        return ProcessFacts(
            process=ProcessId(pid, int(fields[19])),
            comm=head.partition(b"(")[2].decode(errors="replace"),
            state=state,
            ppid=int(fields[1]),
            threads=int(fields[17]),
            kernel_thread=bool(flags & _KERNEL_THREAD),
            exiting=bool(flags & _EXITING) and state not in _EXITED,
        )
    except (IndexError, ValueError):
        return None


def effective_capabilities(status: str) -> int | None:
    """Return the capabilities in the text of a status file as a mask; None if it has none."""
    mask = field_of(status, "CapEff")
    return int(mask, 16) if _MASK.fullmatch(mask) else None


def outside_parent(
    procfs: Procfs, child: ProcessFacts, inside: AbstractSet[int], known: dict[ProcessId, Parent]
) -> Parent | None:
    """Return the nearest ancestor of *child* outside *inside*, the pids of its pod.

    None if the way up cannot be read. Processes come and go meanwhile: a parent that is younger
    than its child is another process that got the former parent's pid. *known* are the answers of
    this look, and get this one: each may be the child of the one before, a thousand in a row.
    """
    way: list[ProcessId] = []
    found: Parent | None = None
    for _ in range(len(inside) + _TRIES):
        way.append(child.process)
        found = known.get(child.process)
        if found is not None:
            break
        parent = procfs.process(child.ppid)
        if parent is None or parent.process.start_ticks > child.process.start_ticks:
            now = procfs.process(child.process.pid)
            if now is None or now.process != child.process or now.ppid == child.ppid:
                return None
            child = now  # its parent ended meanwhile, and it has another
            continue
        if parent.process.pid not in inside:
            # Only init has no parent. A pid namespace below the node's has more of these, so
            # nothing is judged from there (`Visibility.hides`).
            init = parent.ppid == 0 and not parent.kernel_thread
            found = Parent(pid=parent.process.pid, command=parent.comm, is_init=init)
            break
        child = parent
    if found is not None:
        known.update(dict.fromkeys(way, found))
    return found


def containing(procfs: Procfs, inside: AbstractSet[int]) -> frozenset[int]:
    """Return which of *inside*, the pids of a pod, have a child in another mount namespace.

    Each container has its own mount namespace, and its shim or conmon has the node's. What a
    container starts in further namespaces is left out, because it is not in the node's pid
    namespace. The child counts wherever it is: a program can be moved out of its pod's cgroup.
    Raise HostError where not all of that can be read.
    """
    children: dict[int, set[int]] = defaultdict(set)
    for pid in inside:
        facts = procfs.certain(pid)
        if facts is not None and facts.ppid in inside:
            children[facts.ppid].add(pid)
    outside = [pid for pid in inside if procfs.namespace(pid, "pid") in {None, INIT_PID_NAMESPACE}]
    return frozenset(
        pid
        for pid in outside
        if any(_apart(procfs, pid, child) for child in children[pid] | procfs.children(pid))
    )


class SandboxRoles:
    """What processes are in a sandbox. Of each the program is read once: gVisor's are many."""

    def __init__(self, procfs: Procfs, *, seconds: float) -> None:
        """Read by *procfs* for one look, and for so many *seconds* what takes long to read."""
        self._procfs = procfs
        self._until = time.monotonic() + seconds
        self._read: dict[int, tuple[Program, int] | None] = {}

    def of(self, pid: int) -> Sandbox | None:
        """Return what process *pid* is in a sandbox; None for any other process, or if it is gone.

        Raise HostError if that cannot be told.
        """
        programs: list[Program] = []
        above = pid
        while above > 1 and len(programs) <= _FARTHEST:
            known = self._program(above)
            if known is None:
                break
            program, above = known
            programs.append(program)
        role = sandbox_role(programs[0], programs[1:]) if programs else None
        if role is not None:
            return role
        if not self.in_time:
            raise HostError(f"cannot tell what pid {pid} runs: no time was left for it")
        return Sandbox.MACHINE if self._procfs.runs_a_machine(pid) else None

    @property
    def in_time(self) -> bool:
        """Tell whether what takes long may still be read."""
        return time.monotonic() < self._until

    def _program(self, pid: int) -> tuple[Program, int] | None:
        """Return what *pid* runs, and its parent."""
        if pid not in self._read:
            facts = self._procfs.certain(pid)
            self._read[pid] = None
            if facts is not None:
                # Only gVisor's arguments say something, and a stuck program's take long to read.
                asked = facts.comm in GVISORS and self.in_time
                arguments = self._procfs.arguments(pid) if asked else ()
                program = Program(command=facts.comm, arguments=arguments)
                self._read[pid] = program, facts.ppid
        return self._read[pid]


def _apart(procfs: Procfs, pid: int, child: int) -> bool:
    """Tell whether two processes may be in different mount namespaces; unknown counts as yes.

    A child that has ended is in none, whether or not *pid* reaps it.
    """
    theirs = procfs.namespace(child, "mnt")
    if theirs is None:
        facts = procfs.certain(child)
        return facts is not None and facts.can_act
    return theirs != procfs.namespace(pid, "mnt")
