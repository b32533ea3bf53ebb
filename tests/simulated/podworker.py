"""What kubelet does for one pod: pull, ask the plugin before each start, start, and see it end."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from grpc import aio
from msgspec import Struct

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.devicemanager import AdmissionError, DeviceManager, Endpoint
from simulated.devicetable import Entry
from simulated.dramanager import DraError, DraManager
from simulated.pods import Container, Phase, Pod

_JITTER = 1.5
_STOPPED = (
    "device plugin PreStartContainer rpc failed with err: endpoint "
    "&{{{{{{}} {{0 0}}}} {0} 0x0 {{0 0 0x0}} <nil>}} has been stopped"
)
"""Kubelet prints what it has of the endpoint; its numbers are other ones each time."""


class Runtime(Protocol):
    """The container runtime, as far as kubelet needs it."""

    def enclose(self, pod: Pod) -> None:
        """Make the pod's cgroup, as kubelet does before all else."""
        ...

    async def sandbox(self, pod: Pod) -> None:
        """Start what lives as long as the pod, whichever containers of it run: pause."""
        ...

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        """Start the container with what it was granted; raise OSError when a node is missing."""
        ...

    async def wait(self, pod: Pod, container: Container) -> int:
        """Return the container's exit code when it has ended."""
        ...

    async def stop(self, pod: Pod, grace: float) -> None:
        """End all containers of the pod, by force after *grace* seconds."""
        ...

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup as soon as nothing lives in it."""
        ...


class KubeletTimes(Struct, frozen=True, kw_only=True):
    """What the real one was seen to do, in seconds."""

    dial: float = 10.0
    pre_start: float = 30.0
    retry_first: float = 1.0
    retry: float = 12.0
    sync: float = 60.0
    """Between two tries to prepare claims, and half as long again at the most."""
    unprepare: float = 10.0
    """Between two tries to unprepare claims, and half as long again at the most."""
    finished: float = 1.0
    """From a pod's end to its leaving the list of active pods."""


class PodWorker:
    """Starts the containers of pods that were admitted, and those that end again.

    While `up` is clear kubelet is down, and nothing starts. `begin` runs what goes on beside.
    """

    def __init__(
        self,
        runtime: Runtime,
        devices: DeviceManager,
        dra: DraManager | None,
        *,
        times: KubeletTimes,
        up: asyncio.Event,
        begin: Callable[[Coroutine[Any, Any, None]], object],
        tell: Callable[[Pod], None],
    ) -> None:
        """Start containers by *runtime*, with what *devices* and *dra* say they have.

        *tell* hears of pods whose status is another one now.
        """
        self._runtime = runtime
        self._devices = devices
        self._dra = dra
        self._times = times
        self._up = up
        self._begin = begin
        self._tell = tell
        self._running: set[tuple[str, str]] = set()
        """The containers that run, by their pods."""
        self._found = frozenset[tuple[str, str]]()

    def look(self) -> None:
        """Note which containers run, as kubelet does when it starts."""
        self._found = frozenset(self._running)

    async def run(self, pod: Pod, former: asyncio.Task[None] | None = None) -> None:
        """Be the pod's worker: pull, start the containers, and see them end."""
        if former is not None:
            await asyncio.wait([former])
        self._runtime.enclose(pod)
        if not await self._prepare(pod):
            return
        await self._runtime.sandbox(pod)
        await asyncio.sleep(pod.spec.pull)
        pod.pulled.set()
        for container in pod.spec.init_containers:
            if not await self._start(pod, container):
                return
            if container.restartable:
                self._begin(self._keep(pod, container))
            elif await self._end(pod, container) and not pod.deleting:
                break
        codes = await asyncio.gather(*(self._main(pod, each) for each in pod.spec.containers))
        if pod.deleting:
            return
        self._tell(pod)
        await self._runtime.stop(pod, 0.0)
        await self.unprepare(pod)
        pod.phase = Phase.FAILED if any(codes) else Phase.SUCCEEDED
        self._tell(pod)
        await asyncio.sleep(self._times.finished)
        pod.stopped = True
        await self._runtime.remove(pod)

    async def unprepare(self, pod: Pod) -> None:
        """Give the pod's claims back, however often a driver refuses: it stays Terminating."""
        while pod.spec.claims and self._dra is not None:
            await self._up.wait()
            try:
                await self._dra.unprepare(pod)
            except DraError as error:
                pod.message = str(error)
                await self._dra.clock.sleep(self._times.unprepare * random.uniform(1.0, _JITTER))
            else:
                return

    async def _prepare(self, pod: Pod) -> bool:
        """Have the pod's claims prepared before its sandbox is made; never give up.

        Return False when the pod was deleted before.
        """
        while pod.spec.claims and self._dra is not None:
            await self._up.wait()
            async with pod.sync:
                if pod.deleting:
                    return False
                pod.changed.clear()
                try:
                    await self._dra.prepare(pod)
                except DraError as error:
                    pod.refusals += 1
                    pod.waiting = (
                        f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                    )
                else:
                    pod.waiting = ""
                    return True
            # A pod's next turn comes by itself after a minute, or sooner when it changes.
            pause = self._dra.clock.sleep(self._times.sync * random.uniform(1.0, _JITTER))
            await _first(pause, pod.changed.wait())
        return True

    async def _main(self, pod: Pod, container: Container) -> int:
        while True:
            if not await self._start(pod, container):
                return 0
            pod.phase = Phase.RUNNING
            self._tell(pod)
            code = await self._end(pod, container)
            if pod.deleting or pod.spec.restart == "Never":
                pod.exits[container.name] = code
                return code

    async def _keep(self, pod: Pod, container: Container) -> None:
        while not pod.deleting:
            await self._end(pod, container)
            if not pod.deleting:
                await self._start(pod, container)

    async def _end(self, pod: Pod, container: Container) -> int:
        try:
            return await self._runtime.wait(pod, container)
        finally:
            self._running.discard((pod.uid, container.name))

    async def _start(self, pod: Pod, container: Container) -> bool:
        """Start a container; a refusal of PreStartContainer is retried without limit.

        Return False when the pod was deleted before it started.
        """
        pause = self._times.retry_first
        while True:
            await self._up.wait()
            if pod.deleting:
                return False
            try:
                grant = await self._grant(pod, container)
                await self._runtime.start(pod, container, grant)
            except (_NotYetError, AdmissionError, DraError, OSError) as error:
                pod.waiting = str(error)
                await asyncio.sleep(pause)
                pause = self._times.retry
            else:
                pod.waiting = ""
                pod.starts += 1
                self._running.add((pod.uid, container.name))
                return True

    async def _grant(self, pod: Pod, container: Container) -> api.ContainerAllocateResponse:
        grant = api.ContainerAllocateResponse()
        for resource in (*container.limits, *sorted(container.extended)):
            endpoint = self._devices.endpoints.get(resource)
            entry = self._devices.of(pod.uid, container.name, resource)
            if endpoint is not None:
                await self._ask(pod, container, resource, endpoint, entry)
            elif entry is not None:
                raise _NotYetError(
                    f"endpoint not found in cache for a registered resource: {resource}"
                )
            if endpoint is not None and entry is None and resource in container.limits:
                await self._devices.allocate(pod, container)
                entry = self._devices.of(pod.uid, container.name, resource)
            grant.MergeFromString(entry.answer if entry is not None else b"")
        for name in self._dra.cdi(pod, container) if self._dra is not None else ():
            grant.cdi_devices.add(name=name)
        if pod.deleting:
            raise _NotYetError("the pod is being deleted")
        return grant

    async def _ask(
        self, pod: Pod, container: Container, resource: str, endpoint: Endpoint, entry: Entry | None
    ) -> None:
        """Call PreStartContainer, if the plugin wants it."""
        if not endpoint.pre_start:
            # Of a plugin that is away since this kubelet started it has no options, and asks nobody.
            # But then it admits no container that it has not found running.
            if endpoint.stub is None and (pod.uid, container.name) not in self._found:
                raise _NotYetError("the pod is not admitted yet")
            return
        if entry is None:  # also where a claim has it: 1.36.2 leaves it out of Allocate alone
            raise _NotYetError(
                f"no devices found allocated in local cache for pod {pod.uid}, container "
                f"{container.name}, resource {resource}"
            )
        if endpoint.stub is None:
            raise _NotYetError(_STOPPED.format(resource))
        request = api.PreStartContainerRequest(devices_ids=entry.ids)
        try:
            await endpoint.stub.PreStartContainer(request, timeout=self._times.pre_start)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _NotYetError("kubelet stopped while it waited for the plugin") from None
        except aio.AioRpcError as error:
            pod.refusals += 1
            raise _NotYetError(
                "device plugin PreStartContainer rpc failed with err: rpc error: "
                f"code = {error.code().name} desc = {error.details()}"
            ) from error


class _NotYetError(Exception):
    """A container cannot start yet; the text goes into the pod's status."""


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when the first of *waits* is over."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
