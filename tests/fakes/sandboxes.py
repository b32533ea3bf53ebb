"""A gVisor sandbox of a pod as the node sees one: a shim, a sentry, its stub, and who holds what.

The processes are real, with real parents; only /proc's word of their open files is made up, for no
test can open a VFIO device.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fakes.runtimes import RuntimeFolder, spec
from fakes.stage import Stage
from simulated.pods import Pod

_SHIM = """
import subprocess, sys
open("/proc/self/comm", "w").write("containerd-shim")
subprocess.Popen(sys.argv[1:], executable="/bin/sh", stdin=subprocess.DEVNULL)
sys.stdin.read()
"""
# The device stays open in the stub too, as it does with a real one.
_SENTRY = 'exec 7<>"$0"; printf exe > /proc/$$/comm; sleep 1000000 & echo "$$ $!"; wait'


class GvisorSandbox:
    """The processes of one sandbox, and its runtime's files."""

    def __init__(self, stage: Stage, pod: Pod, device: Path) -> None:
        self.id = f"sandbox-of-{pod.spec.name}"
        self._work = f"work-of-{pod.spec.name}"
        self._stage, self._pod = stage, pod
        self._files = RuntimeFolder(stage.node.root.run)
        arguments = ("--root=/run/containerd/runsc/k8s.io", "boot", "--bundle=/b", self.id)
        self._shim = subprocess.Popen(
            [sys.executable, "-c", _SHIM, "runsc-sandbox", "-c", _SENTRY, str(device), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._shim.stdout is not None
        self.sentry, self.stub = map(int, self._shim.stdout.readline().split())
        node = stage.node
        stage.runtime.end_pause(pod)
        node.add_process(self._shim.pid, "/system.slice/containerd.service")
        for pid in self.pids:
            node.enter(pod.uid, "sandbox", pid)
            self._has_only_the_device(pid)
        (node.root.proc / str(self.sentry) / "cmdline").symlink_to(f"/proc/{self.sentry}/cmdline")

    @property
    def pids(self) -> tuple[int, int]:
        return self.sentry, self.stub

    @property
    def lives(self) -> bool:
        return any(pid in self._stage.node.members(self._pod.uid) for pid in self.pids)

    def idle(self) -> None:
        """Let the runtime's files say that nothing but pause runs."""
        self._files.bundle(self.id, spec("sandbox", self.id, uid=self._pod.uid))
        self._files.bundle(self._work, "").unlink()

    def at_work(self) -> None:
        """Let them say that a container runs in it."""
        self.idle()
        self._files.bundle(self._work, spec("container", self.id, uid=self._pod.uid))

    def end_shim(self) -> None:
        """End the shim alone; the sandbox lives on as an orphan."""
        self._shim.kill()
        self._shim.wait()

    def close(self) -> None:
        """End what is left."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shim.kill()
        self._shim.communicate()

    def opens_the_group(self) -> None:
        """Let the sentry have the group's node open as well, as while a program uses the device."""
        fd = self._stage.node.root.proc / str(self.sentry) / "fd"
        (fd / "8").symlink_to(Path(f"/proc/{self.sentry}/fd/7").readlink())

    def _has_only_the_device(self, pid: int) -> None:
        home = self._stage.node.root.proc / str(pid)
        for name in ("fd", "fdinfo"):
            (home / name).unlink()
            (home / name).mkdir()
        (home / "fd/7").symlink_to("anon_inode:[vfio-device]")
        (home / "fdinfo/7").write_text("pos:\t0\nflags:\t02\n")


@contextlib.contextmanager
def gvisor_sandbox(stage: Stage, pod: Pod, *, node: str) -> Iterator[GvisorSandbox]:
    """Give a running pod a sandbox that keeps the device behind *node*, and nothing else open."""
    made = GvisorSandbox(stage, pod, stage.node.node(node))
    try:
        yield made
    finally:
        made.close()


def end_programs(stage: Stage, pod: Pod, sandbox: GvisorSandbox) -> None:
    """End what the pod runs beside its sandbox: in truth that is no process of the node."""
    for pid in set(stage.node.members(pod.uid)) - {*sandbox.pids}:
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def program_beside(stage: Stage, pod: Pod) -> Iterator[int]:
    """Run a process of the pod's that no sandbox contains; yield its pid."""
    with subprocess.Popen(["sleep", "1000000"]) as program:
        stage.node.enter(pod.uid, "main", program.pid)
        try:
            yield program.pid
        finally:
            program.kill()
