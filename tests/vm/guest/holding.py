"""Processes of the guest that hold devices: the program hold_device, seen from Python."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vm.guest.pci import Function
from vm.guest.waits import SLOW, wait_until

NODE_ONLY = ("group",)
ALL = ("container", "group", "attach", "device")
"""What libtpu does: container, group and device stay open."""
LEAK = (*ALL, "close-group", "close-container")
"""Only the device fd is left, as in gVisor's leak."""
MAPPED = (*ALL, "map", "close-device", "close-group", "close-container")
"""No fd is left at all, only a mapping of the BAR."""
IN_FLIGHT = (*LEAK, "send")
"""The device fd is nowhere but in a socket's queue."""
IN_KVM = ("container", "group", "kvm", "close-group", "close-container")
"""The group's file is nowhere but in a virtual machine's kernel side."""
FORKED = (*ALL, "fork")
"""A child has inherited everything; see Holding.child."""
ZOMBIE_LEADER = (*ALL, "leader-exit")
"""The first thread has ended, another lives on."""
IDLE: tuple[str, ...] = ()
"""A process that holds nothing and could open the device at any time."""


class HoldFailedError(AssertionError):
    """A step of hold_device failed; `step` and `error` (ENOENT, EBUSY...) say which and how."""

    def __init__(self, step: str, error: str) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.error = error


@dataclass(slots=True)
class Holding:
    """A running hold_device, which may be an orphan: then init is its parent, and not we."""

    process: subprocess.Popen[str]
    child: int | None = None
    pid: int = 0
    _handle: int | None = None
    """A pidfd of an orphan."""

    @property
    def alive(self) -> bool:
        if self._handle is None:
            return self.process.poll() is None
        ended, _, _ = select.select([self._handle], [], [], 0)
        return not ended

    def became_orphan(self) -> None:
        """Follow an orphan by a pidfd, once its parent has ended."""
        self.process.wait()
        self._handle = os.pidfd_open(self.pid)

    @property
    def fd_texts(self) -> list[str]:
        """What its open fds point to."""
        return fd_texts(self.pid)

    @property
    def tasks(self) -> list[int]:
        """The ids of its threads."""
        return sorted(int(entry.name) for entry in Path(f"/proc/{self.pid}/task").iterdir())

    def await_dead_leader(self) -> None:
        """Wait until its first thread is a zombie, after the step leader-exit."""
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z",
            what="the first thread's end",
        )

    def do(self, step: str) -> None:
        """Have it do one more step; raises HoldFailedError with the error's name."""
        self.begin(step)
        self.expect("OK")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process alone, not to a child that it forked."""
        if self._handle is None:
            self.process.send_signal(number)
        else:
            signal.pidfd_send_signal(self._handle, number)

    def wait(self) -> int:
        """Wait for its end and return its exit status, which of an orphan only init learns."""
        assert self._handle is None
        return self.process.wait(timeout=SLOW)

    def await_end(self) -> None:
        """Wait for its end, whoever its parent is."""
        wait_until(lambda: not self.alive, what=f"the end of pid {self.pid}")

    def release(self) -> float:
        """Let it close everything and exit, as a workload does; return when it was let, wall time.

        Once it has ended the daemon may have seen that as well.
        """
        assert self.process.stdin is not None
        let = time.time()
        self.process.stdin.close()
        self.await_end()
        return let

    def destroy(self) -> None:
        """End it and its child, whatever they are doing."""
        if self.child is not None:
            _kill(self.child)
        if self.alive:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.await_end()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def begin(self, step: str) -> None:
        """Have it begin a step that may never end."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def expect(self, word: str) -> None:
        """Read what it prints until a line begins with *word*; raises HoldFailedError."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *rest = line.split()
            if kind == "CHILD":
                self.child = int(rest[0])
            elif kind == "FAILED":
                raise HoldFailedError(rest[0], rest[1])
            elif kind == word:
                if kind == "READY":
                    self.pid = int(rest[0])
                return
        raise HoldFailedError("start", f"exit status {self.process.wait()}")


def start(
    steps: Sequence[str],
    functions: Sequence[Function],
    *,
    cgroup: Path | None = None,
    uid: int | None = None,
    orphan: bool = False,
) -> Holding:
    """Start hold_device on *functions*, in *cgroup*, and become *uid* once it holds them."""
    targets = ",".join(f"{function.group}:{function.address}" for function in functions)
    after = (f"uid={uid}",) if uid is not None else ()
    # The end of the leader must stay the last thing that it does.
    ordered = (
        *(s for s in steps if s != "leader-exit"),
        *after,
        *(s for s in steps if s == "leader-exit"),
    )
    command = [
        os.environ["HOLD_DEVICE"],
        *(("-o",) if orphan else ()),
        *(("-c", str(cgroup)) if cgroup else ()),
        targets or "-",
        *ordered,
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holding = Holding(process)
    try:
        holding.expect("READY")
    except HoldFailedError:
        holding.destroy()
        raise
    if orphan:
        holding.became_orphan()
    return holding


def fd_texts(pid: int, *, task: int | None = None) -> list[str]:
    """What the open fds of any process, or of one of its threads, point to."""
    folder = Path(f"/proc/{pid}/fd" if task is None else f"/proc/{pid}/task/{task}/fd")
    found = []
    for fd in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile: the others still count
            found.append(str(fd.readlink()))
    return sorted(found)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
