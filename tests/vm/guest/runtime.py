"""The container runtime of the guest: containers are hold_device, in the cgroups of real pods."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.demo.pods import Container, Pod
from vm.guest import holding, pods
from vm.guest.holding import HoldFailedError, Holding
from vm.guest.pci import Function

_SHARED = "/dev/vfio/vfio"
_LOOK = 0.01


class GuestRuntime:
    """Runs each pod's containers by the steps that were written down for the pod's name."""

    def __init__(self) -> None:
        self.steps: dict[str, Sequence[str]] = {}
        self.running: dict[tuple[str, str], Holding] = {}
        self.granted: dict[str, tuple[Function, ...]] = {}
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
        cgroup = self._cgroups.get(uid)
        if cgroup is None or not cgroup.path.exists():
            return True
        with contextlib.suppress(OSError):
            cgroup.kill()
            if not cgroup.populated:
                cgroup.remove()
        return not cgroup.path.exists()

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        """Start hold_device on what was granted; a step that fails is the program's end."""
        functions = granted_functions([each.host_path for each in grant.devices])
        cgroup = self.cgroup(pod.uid).container(container.name)
        self.granted[pod.uid] = functions
        steps = self.steps[pod.spec.name]
        try:
            held = await asyncio.to_thread(holding.start, steps, functions, cgroup=cgroup)
        except HoldFailedError as error:
            self.failures.append(f"{pod.spec.name}: {error}")
            held = await asyncio.to_thread(holding.start, (), (), cgroup=cgroup)
        self.running[pod.uid, container.name] = held

    async def wait(self, pod: Pod, container: Container) -> int:
        """Return the container's exit code when it has ended."""
        held = self.running[pod.uid, container.name]
        while held.alive:
            await asyncio.sleep(_LOOK)
        return held.wait()

    async def stop(self, pod: Pod, grace: float) -> None:
        """End the containers of the pod, not what they left behind in its cgroup."""
        for (uid, _), held in self.running.items():
            if uid == pod.uid and held.alive:
                held.kill()
                await asyncio.to_thread(held.wait)

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup as soon as nothing lives in it."""
        cgroup = self._cgroups.get(pod.uid)
        if cgroup is None:
            return
        with contextlib.suppress(OSError):
            while cgroup.populated:
                await asyncio.sleep(_LOOK)
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
