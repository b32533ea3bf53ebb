"""A device plugin in gRPC and nothing else: the floor under what the daemon does on the wire.

Run as a script: bareplugin.py FOLDER RESOURCE DEVICES. Each line on standard input is an order:
`register` with the kubelet of FOLDER, or `list`, which tells kubelet that one device more is ill.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

_SOCKET = "bare.sock"


class BarePlugin(api_pb2_grpc.DevicePluginServicer):
    """Answers every call at once, and always the same."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._ill = 0
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Let one device more be ill."""
        self._ill += 1
        self._changed.set()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        del request, context
        return api_pb2.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        del request, context
        while True:
            self._changed.clear()
            yield api_pb2.ListAndWatchResponse(
                devices=[
                    api_pb2.Device(
                        ID=f"bare-{place}", health="Unhealthy" if place < self._ill else "Healthy"
                    )
                    for place in range(self._devices)
                ]
            )
            await self._changed.wait()

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        del context
        answers = [api_pb2.ContainerAllocateResponse() for _ in request.container_requests]
        return api_pb2.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        del request, context
        return api_pb2.PreStartContainerResponse()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        del request, context
        return api_pb2.PreferredAllocationResponse()


async def main(folder: Path, resource: str, devices: int) -> None:
    """Serve until standard input ends."""
    plugin = BarePlugin(devices)
    server: aio.Server | None = None
    while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if order == "list":
            plugin.change()
            continue
        if server is not None:
            await server.stop(None)
        server = aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix://{folder / _SOCKET}")
        await server.start()
        async with aio.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
            await api_pb2_grpc.RegistrationStub(channel).Register(
                api_pb2.RegisterRequest(version="v1beta1", endpoint=_SOCKET, resource_name=resource)
            )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
