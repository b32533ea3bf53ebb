"""The container runtime of the guest: hold_device in the cgroups of real pods, or real gVisor."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.cdi import resolve
from simulated.pods import Container, Pod
from vm.guest import holding, pods
from vm.guest.gvisor import Contained, Program, Sandbox
from vm.guest.holding import HoldFailedError, Holding
from vm.guest.pci import Function
from vm.guest.waits import LOOK

_SHARED = "/dev/vfio/vfio"


class GuestRuntime:
    """Runs each pod's containers by what was written down for the pod's name.

    That is the steps of hold_device, or a Program, which runs in a sandbox of the pod's.
    """

    def __init__(self, specs: Path) -> None:
        """Look CDI names up in the folder *specs*."""
        self._specs = specs
        self.steps: dict[str, Sequence[str] | Program] = {}
        self.running: dict[tuple[str, str], Holding | Contained] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        """The last one of each pod."""
        self.granted: dict[tuple[str, str], tuple[Function, ...]] = {}
        self.failures: list[str] = []
        """Programs that could not use what they were granted: what a user would see."""
        self._cgroups: dict[str, pods.Pod] = {}

    def cgroup(self, uid: str) -> pods.Pod:
        """Return the pod's cgroup, made if it is not there."""
        found = self._cgroups.get(uid)
        if found is None or not found.path.exists():
            found = self._cgroups[uid] = pods.make(uid)
        return found

    def emptied(self, uid: str) -> bool:
        """Kill what is left of a pod, and tell whether its cgroup is gone."""
        if uid in self.sandboxes:
            self.sandboxes[uid].forget()
        cgroup = self._cgroups.get(uid)
        if cgroup is None or not cgroup.path.exists():
            return True
        with contextlib.suppress(OSError):
            cgroup.kill()
            if not cgroup.populated:
                cgroup.remove()
        return not cgroup.path.exists()

    def enclose(self, pod: Pod) -> None:
        """Make the pod's cgroup, as kubelet does before all else."""
        self.cgroup(pod.uid)

    async def sandbox(self, pod: Pod) -> None:
        """No pause: gVisor's sandbox is made with the program that runs in it."""

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        """Start the program on what was granted; a step that fails is hold_device's end."""
        functions = granted_functions(self._paths(grant))
        self.granted[pod.uid, container.name] = functions
        steps = self.steps[pod.spec.name]
        if isinstance(steps, Program):
            contained = await asyncio.to_thread(self._contain, pod, steps, functions)
            self.running[pod.uid, container.name] = contained
            return
        cgroup = self.cgroup(pod.uid).container(container.name)
        try:
            held = await asyncio.to_thread(holding.start, steps, functions, cgroup=cgroup)
        except HoldFailedError as error:
            self.failures.append(f"{pod.spec.name}: {error}")
            held = await asyncio.to_thread(holding.start, (), (), cgroup=cgroup)
        self.running[pod.uid, container.name] = held

    def _paths(self, grant: api.ContainerAllocateResponse) -> list[str]:
        named = resolve(self._specs, [each.name for each in grant.cdi_devices]).nodes
        for node in named:
            # A runtime makes the node by its number; hold_device opens the host's.
            if node.rdev is not None and node.rdev != Path(node.path).stat().st_rdev:
                raise OSError(f"the CDI spec gives {node.path} the number of another device")
        return [*(each.host_path for each in grant.devices), *(node.path for node in named)]

    def _contain(self, pod: Pod, program: Program, functions: Sequence[Function]) -> Contained:
        """Run *program* in the pod's sandbox, made anew if it has none that lives."""
        sandbox = self.sandboxes.get(pod.uid)
        if sandbox is None or not sandbox.alive:
            if sandbox is not None:
                sandbox.forget()
            sandbox = self.sandboxes[pod.uid] = Sandbox(self.cgroup(pod.uid))
            sandbox.start()
        return sandbox.run(program, functions, start=pod.starts + 1)

    async def wait(self, pod: Pod, container: Container) -> int:
        """Return the container's exit code when it has ended."""
        held = self.running[pod.uid, container.name]
        while held.alive:
            await asyncio.sleep(LOOK)
        return await asyncio.to_thread(held.wait)

    async def stop(self, pod: Pod, grace: float) -> None:
        """End the containers of the pod, not what they left behind in its cgroup.

        They get SIGTERM, and SIGKILL after *grace* seconds.
        """
        if pod.uid in self.sandboxes:
            await asyncio.to_thread(self.sandboxes[pod.uid].stop)
            return
        mine = [held for (uid, _), held in self.running.items() if uid == pod.uid]
        alive = [held for held in mine if isinstance(held, Holding) and held.alive]
        if grace > 0:
            for held in alive:
                held.kill(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while any(held.alive for held in alive):
                        await asyncio.sleep(LOOK)
        for held in alive:
            if held.alive:
                held.kill()
            await asyncio.to_thread(held.wait)

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup as soon as nothing lives in it."""
        cgroup = self._cgroups.get(pod.uid)
        if cgroup is None:
            return
        with contextlib.suppress(OSError):
            while cgroup.populated:
                await asyncio.sleep(LOOK)
            cgroup.remove()


def granted_functions(paths: Sequence[str]) -> tuple[Function, ...]:
    """Return the functions that a program reaches through the group nodes *paths*."""
    functions = []
    for path in paths:
        if path == _SHARED:
            continue
        if not Path(path).exists():
            raise FileNotFoundError(f"error gathering device information: no such node {path}")
        members = Path(f"/sys/kernel/iommu_groups/{Path(path).name}/devices").iterdir()
        found = [Function(entry.name) for entry in sorted(members)]
        functions += [each for each in found if each.driver == "vfio-pci"]
    return tuple(functions)
