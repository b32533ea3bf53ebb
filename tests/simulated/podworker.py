"""What kubelet does for one pod: pull, ask the plugin before each start, start, and see it end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from grpc import aio
from msgspec import Struct

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.devicemanager import DeviceManager
from simulated.pods import Container, Phase, Pod


class Runtime(Protocol):
    """The container runtime, as far as kubelet needs it."""

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
        *,
        times: KubeletTimes,
        up: asyncio.Event,
        begin: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Start containers by *runtime*, with what *devices* says they have."""
        self._runtime = runtime
        self._devices = devices
        self._times = times
        self._up = up
        self._begin = begin

    async def run(self, pod: Pod, former: asyncio.Task[None] | None = None) -> None:
        """Be the pod's worker: pull, start the containers, and see them end."""
        if former is not None:
            await asyncio.wait([former])
        await asyncio.sleep(pod.spec.pull)
        pod.pulled.set()
        for container in pod.spec.init_containers:
            if not await self._start(pod, container):
                return
            if container.restartable:
                self._begin(self._keep(pod, container))
            elif await self._runtime.wait(pod, container) and not pod.deleting:
                break
        codes = await asyncio.gather(*(self._main(pod, each) for each in pod.spec.containers))
        if pod.deleting:
            return
        await self._runtime.stop(pod, 0.0)
        pod.phase = Phase.FAILED if any(codes) else Phase.SUCCEEDED
        await asyncio.sleep(self._times.finished)
        pod.stopped = True
        await self._runtime.remove(pod)

    async def _main(self, pod: Pod, container: Container) -> int:
        while True:
            if not await self._start(pod, container):
                return 0
            pod.phase = Phase.RUNNING
            code = await self._runtime.wait(pod, container)
            if pod.deleting or pod.spec.restart == "Never":
                return code

    async def _keep(self, pod: Pod, container: Container) -> None:
        while not pod.deleting:
            await self._runtime.wait(pod, container)
            if not pod.deleting:
                await self._start(pod, container)

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
            except (_NotYetError, OSError) as error:
                pod.waiting = str(error)
                await asyncio.sleep(pause)
                pause = self._times.retry
            else:
                pod.waiting = ""
                pod.starts += 1
                return True

    async def _grant(self, pod: Pod, container: Container) -> api.ContainerAllocateResponse:
        grant = api.ContainerAllocateResponse()
        for resource in container.limits:
            entry = self._devices.of(pod, container, resource)
            endpoint = self._devices.endpoints.get(resource)
            if entry is None:
                continue
            if endpoint is not None and endpoint.stub is None:
                raise _NotYetError(
                    f"endpoint not found in cache for a registered resource: {resource}"
                )
            if endpoint is not None and endpoint.stub is not None and endpoint.pre_start:
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
            grant.MergeFromString(entry.answer)
        if pod.deleting:
            raise _NotYetError("the pod is being deleted")
        return grant


class _NotYetError(Exception):
    """A container cannot start yet; the text goes into the pod's status."""
