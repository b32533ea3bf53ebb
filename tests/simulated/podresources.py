"""Kubelet's PodResources API, with its side effect, its gaps and its rate limit."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from holdfast._pb.podresources.v1 import api_pb2 as api
from holdfast._pb.podresources.v1 import api_pb2_grpc as rpc
from simulated.devicemanager import DeviceManager
from simulated.pods import Pod

Context = aio.ServicerContext[Any, Any]
_RATE = 100.0
_BURST = 10.0


class PodResourcesServer(rpc.PodResourcesListerServicer):
    """Serves the pods that kubelet has, at its own socket."""

    def __init__(
        self,
        socket: Path,
        devices: DeviceManager,
        *,
        active: Callable[[], list[Pod]],
        sources: Callable[[], bool],
    ) -> None:
        """Answer from *devices*; `active` are the pods that are not over, if `sources` are ready."""
        self._socket = socket
        self._devices = devices
        self._active = active
        self._sources = sources
        self._server: aio.Server | None = None
        self._tokens, self._at = _BURST, time.monotonic()
        self.lists = 0
        self.lists_while_allocating = 0
        self.down = False
        """It takes connections, and says that it is not up."""
        self.busy = False
        """Other clients ask so often that no call is let through."""

    async def start(self) -> None:
        """Serve."""
        self._socket.unlink(missing_ok=True)
        self._server = aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def List(  # noqa: N802 - gRPC's name
        self, _request: api.ListPodResourcesRequest, context: Context
    ) -> api.ListPodResourcesResponse:
        """Name the active pods; drops the devices of all others on the way."""
        await self._limit(context)
        self.lists += 1
        self.lists_while_allocating += bool(self._devices.allocating)
        if self._sources():
            self._devices.drop({pod.uid for pod in self._active()})
        answer = api.ListPodResourcesResponse()
        for pod in self._active():
            self._describe(pod, answer.pod_resources.add())
        return answer

    async def GetAllocatableResources(  # noqa: N802
        self, _request: api.AllocatableResourcesRequest, context: Context
    ) -> api.AllocatableResourcesResponse:
        """Name every healthy device."""
        await self._limit(context)
        answer = api.AllocatableResourcesResponse()
        for resource, endpoint in self._devices.endpoints.items():
            for id_ in sorted(endpoint.healthy):
                answer.devices.add(resource_name=resource, device_ids=[id_])
        return answer

    async def Get(  # noqa: N802
        self, request: api.GetPodResourcesRequest, context: Context
    ) -> api.GetPodResourcesResponse:
        """Name one pod's devices."""
        await self._limit(context)
        for pod in self._active():
            if (pod.spec.name, pod.spec.namespace) == (request.pod_name, request.pod_namespace):
                answer = api.GetPodResourcesResponse()
                self._describe(pod, answer.pod_resources)
                return answer
        return await context.abort(
            grpc.StatusCode.UNKNOWN,
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
        )

    def _describe(self, pod: Pod, into: api.PodResources) -> None:
        into.name, into.namespace = pod.spec.name, pod.spec.namespace
        sidecars = [each for each in pod.spec.init_containers if each.restartable]
        for container in (*sidecars, *pod.spec.containers):
            described = into.containers.add(name=container.name)
            for resource in container.limits:
                entry = self._devices.of(pod.uid, container.name, resource)
                for id_ in entry.ids if entry else ():
                    described.devices.add(resource_name=resource, device_ids=[id_])

    async def _limit(self, context: Context) -> None:
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet is not up")
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._at) * _RATE)
        self._at = now
        if self._tokens < 1 or self.busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1
