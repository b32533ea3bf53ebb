"""A small container runtime: containers are real processes, in pods' cgroups, with devices."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import asdict

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.cdi import resolve
from simulated.node import PAUSE
from simulated.pods import Container, Pod

_WORKLOAD = Path(__file__).with_name("workload.py")
_SHARED = frozenset({"/dev/vfio/vfio", "/dev/nvidiactl", "/dev/nvidia-uvm"})
_LOOK = 0.02


class Node(Protocol):
    """The node that containers run on: its device nodes and its cgroups."""

    def node(self, path: str) -> Path:
        """Return where a container opens the device node that the host calls *path*."""
        ...

    def add_pod(self, uid: str) -> None:
        """Make the pod's cgroup, if it is not there."""
        ...

    def enter(self, uid: str, container: str, pid: int) -> None:
        """Put a process into the container's cgroup; its children are born there."""
        ...

    def lives(self, uid: str) -> bool:
        """Tell whether any process is in the pod's cgroup."""
        ...

    def remove_pod(self, uid: str) -> None:
        """Remove the pod's cgroup, in which nothing lives any more."""
        ...


class Runtime:
    """Runs `workload.py` for each container."""

    def __init__(
        self,
        node: Node,
        *,
        cdi: Path | None = None,
        toolkit: Callable[[Mapping[str, str]], Sequence[str]] | None = None,
    ) -> None:
        """Run containers on *node*; look CDI names up in the folder *cdi*.

        *toolkit* says which nodes a container's environment asks for, as NVIDIA's runtime does.
        """
        self._node = node
        self._toolkit = toolkit
        self._cdi = cdi
        self._running: dict[tuple[str, str], asyncio.subprocess.Process] = {}
        self._sandboxes: dict[str, subprocess.Popen[bytes]] = {}
        self.has_pause = True
        """Whether a process lives as long as its pod; CRI-O drops it where no container needs it."""
        self.failures: list[str] = []
        """What programs said when a device could not be opened: what a user would see."""

    def enclose(self, pod: Pod) -> None:
        """Make the pod's cgroup, as kubelet does before all else."""
        self._node.add_pod(pod.uid)

    async def sandbox(self, pod: Pod) -> None:
        """Start what lives as long as the pod, whichever containers of it run: pause."""
        if not self.has_pause:
            return
        pause = subprocess.Popen(["/bin/sleep", "infinity"])
        self._node.enter(pod.uid, PAUSE, pause.pid)
        self._sandboxes[pod.uid] = pause

    def end_pause(self, pod: Pod) -> None:
        """End the pod's pause: in gVisor there is none beside the sandbox itself."""
        if (pause := self._sandboxes.pop(pod.uid, None)) is not None:
            pause.kill()
            pause.wait()

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        """Start the container and return when it has opened its nodes."""
        nodes = [self._node.node(path) for path in self.paths(grant)]
        for node in nodes:
            if not node.exists():
                raise FileNotFoundError(f"error gathering device information: no such node {node}")
        self._node.add_pod(pod.uid)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_WORKLOAD),
            json.dumps(asdict(container.workload)),
            *map(str, nodes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        # As runc does: it is in its cgroup before its program opens anything.
        self._node.enter(pod.uid, container.name, process.pid)
        if process.stdin is not None:
            process.stdin.write(b"go\n")
        self._running[pod.uid, container.name] = process
        await self._until_ready(pod, container, process)

    def paths(self, grant: api.ContainerAllocateResponse) -> list[str]:
        """Return the nodes that a container with *grant* gets; raise OSError for unknown names."""
        paths = [each.host_path for each in grant.devices]
        found = resolve(self._cdi, [each.name for each in grant.cdi_devices])
        if self._toolkit is not None:
            paths += self._toolkit({**grant.envs, **found.variables})
        for named in found.nodes:
            paths.append(named.path)
            # It makes the node by its number, whatever lies at the path on the host.
            if named.rdev is not None and named.rdev != self._node.node(named.path).stat().st_rdev:
                raise OSError(f"the CDI spec gives {named.path} the number of another device")
        return [path for path in dict.fromkeys(paths) if path not in _SHARED]

    async def _until_ready(
        self, pod: Pod, container: Container, process: asyncio.subprocess.Process
    ) -> None:
        if process.stdout is None or process.stderr is None:
            return
        while line := (await process.stdout.readline()).decode().strip():
            if line == "ready":
                return
            self._node.enter(pod.uid, container.name, int(line.removeprefix("pid ")))
        # Nothing, where it was killed before.
        self.failures += (await process.stderr.read()).decode().strip().splitlines()[-1:]

    async def wait(self, pod: Pod, container: Container) -> int:
        """Return the container's exit code when it has ended."""
        return await self._running[pod.uid, container.name].wait()

    def pid(self, pod: Pod, container: Container) -> int:
        """Return the process that a container's program is."""
        return self._running[pod.uid, container.name].pid

    async def stop(self, pod: Pod, grace: float) -> None:
        """End all containers of the pod, SIGTERM and after *grace* seconds SIGKILL, then its pause."""
        mine = [process for (uid, _), process in self._running.items() if uid == pod.uid]
        for process in mine:
            _signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(process.wait() for process in mine))
        for process in mine:
            _signal(process, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in mine))
        self.end_pause(pod)

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup as soon as nothing lives in it."""
        while self._node.lives(pod.uid):
            await asyncio.sleep(_LOOK)
        self._node.remove_pod(pod.uid)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
