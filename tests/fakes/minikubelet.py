"""The least of a kubelet that the kubelet side can be driven with: sockets, streams, checkpoint."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as dp_grpc
from holdfast._pb.podresources.v1 import api_pb2 as pr
from holdfast._pb.podresources.v1 import api_pb2_grpc as pr_grpc
from holdfast.kubelet.wire import dial
from holdfast.names import KUBELET_CHECKPOINT


@dataclass
class Grant:
    uid: str
    name: str
    resource: str
    ids: list[str]
    answer: bytes = b""


@dataclass
class MiniKubelet(dp_grpc.RegistrationServicer, pr_grpc.PodResourcesListerServicer):
    folder: Path
    pod_resources: Path
    refuse: str = ""
    silent: bool = False
    close_streams_at_once: bool = False
    busy: bool = False
    writes: bool = True
    lists: int = 0
    allocating: int = 0
    list_while: list[int] = field(default_factory=list)
    """For how many Allocates it waited at each List."""
    registered: list[dp.RegisterRequest] = field(default_factory=list)
    messages: dict[str, list[list[dp.Device]]] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    channels: dict[str, aio.Channel] = field(default_factory=dict)
    streams: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """The streams on which a list of devices has come."""
    servers: list[aio.Server] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.folder / "kubelet.sock"

    async def start(self) -> None:
        for path in (self.socket, self.pod_resources):
            server = aio.server()
            dp_grpc.add_RegistrationServicer_to_server(self, server)
            pr_grpc.add_PodResourcesListerServicer_to_server(self, server)
            server.add_insecure_port(f"unix://{path}")
            await server.start()
            self.servers.append(server)

    async def stop(self) -> None:
        for stream in self.streams.values():
            stream.cancel()
        await asyncio.gather(*self.streams.values(), return_exceptions=True)
        for channel in self.channels.values():
            await channel.close()
        for server in self.servers:
            await server.stop(None)
        self.streams, self.channels, self.servers = {}, {}, []

    async def restart(self) -> None:
        """As kubelet does: plugin sockets are swept, then kubelet.sock is there anew."""
        await self.stop()
        for each in self.folder.iterdir():
            if each.is_socket():
                each.unlink()
        await self.start()

    async def Register(self, request: dp.RegisterRequest, context: object) -> dp.Empty:  # noqa: N802
        if self.silent:
            await asyncio.sleep(3600)
        if self.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse)  # type: ignore[attr-defined]
        name = request.resource_name
        channel = dial(self.folder / request.endpoint)
        stub = dp_grpc.DevicePluginStub(channel)
        options = await stub.GetDevicePluginOptions(dp.Empty(), timeout=10)
        assert options.pre_start_required
        assert options.get_preferred_allocation_available
        self.registered.append(request)
        self.channels[f"{name}-{len(self.registered)}"] = channel
        self.channels[name] = channel
        key = f"{name}-{len(self.registered)}"
        self.streams[key] = asyncio.create_task(self._read(name, key, stub))
        return dp.Empty()

    async def _read(self, name: str, key: str, stub: dp_grpc.DevicePluginStub) -> None:
        call = stub.ListAndWatch(dp.Empty())
        with contextlib.suppress(aio.AioRpcError):
            async for message in call:
                self.messages.setdefault(name, []).append(list(message.devices))
                self.heard.add(key)
                self.write()
                if self.close_streams_at_once:
                    call.cancel()
                    return

    def write(self) -> None:
        if not self.writes:
            return
        entries = [
            {
                "PodUID": each.uid,
                "ContainerName": "main",
                "ResourceName": each.resource,
                "DeviceIDs": {"-1": each.ids},
                "AllocResp": base64.b64encode(each.answer).decode(),
            }
            for each in self.grants
        ]
        temporary = self.folder / ".tmp-checkpoint"
        temporary.write_text(
            json.dumps(
                {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
            )
        )
        temporary.replace(self.folder / KUBELET_CHECKPOINT)

    async def List(self, request: object, context: object) -> pr.ListPodResourcesResponse:  # noqa: N802
        self.lists += 1
        self.list_while.append(self.allocating)
        if self.busy:
            await context.abort(  # type: ignore[attr-defined]
                grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"
            )
        self.grants = [each for each in self.grants if each.uid not in self.over]
        answer = pr.ListPodResourcesResponse()
        for each in self.grants:
            pod = answer.pod_resources.add(name=each.name, namespace="default")
            container = pod.containers.add(name="main")
            for id_ in each.ids:
                container.devices.add(resource_name=each.resource, device_ids=[id_])
        return answer

    async def GetAllocatableResources(  # noqa: N802
        self, request: object, context: object
    ) -> pr.AllocatableResourcesResponse:
        raise NotImplementedError

    async def Get(self, request: object, context: object) -> pr.GetPodResourcesResponse:  # noqa: N802
        raise NotImplementedError

    def plugin(self, resource: str) -> dp_grpc.DevicePluginStub:
        return dp_grpc.DevicePluginStub(self.channels[resource])

    async def allocate(self, uid: str, resource: str, ids: list[str]) -> dp.AllocateResponse:
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        self.allocating += 1
        try:
            answer = await self.plugin(resource).Allocate(request)
        finally:
            self.allocating -= 1
        stored = answer.container_responses[0].SerializeToString()
        self.grants.append(Grant(uid, f"pod-{uid}", resource, ids, stored))
        self.write()
        return answer


@contextlib.asynccontextmanager
async def mini_kubelet(base: Path) -> AsyncIterator[MiniKubelet]:
    folder = base / "dp"
    folder.mkdir(exist_ok=True)
    kubelet = MiniKubelet(folder, base / "pr.sock")
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
