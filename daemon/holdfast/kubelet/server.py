"""Serves one resource's plugin on its own unix socket in kubelet's plugin folder."""

import hashlib
from pathlib import Path

import structlog
from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from holdfast.errors import KubeletError
from holdfast.kubelet.checkpoint import FileId
from holdfast.kubelet.plugin import DevicePlugin
from holdfast.kubelet.socket import SocketServer
from holdfast.kubelet.wire import dial, what_went_wrong
from holdfast.model.ids import ResourceName

log = structlog.get_logger(__name__)

_STOP_GRACE = 0.001
_STREAMS_END = 1.0


def socket_name(prefix: str, resource: ResourceName) -> str:
    """Return the file name of *resource*'s socket; no two resources share one."""
    readable = resource.replace("/", "_").replace(".", "-")
    if "-" in resource or "_" in resource:
        readable = f"{readable}-{_digest(resource)}"
    return f"{prefix}-{readable}.sock"


class PluginServer:
    """A gRPC server for one plugin; made anew for each start."""

    def __init__(
        self, *, folder: Path, prefix: str, plugin: DevicePlugin, patience: float = 2.5
    ) -> None:
        """Serve *plugin* in *folder*; a stop waits *patience* seconds for Allocates in flight."""
        self.name = socket_name(prefix, plugin.resource)
        self._plugin = plugin
        self._patience = patience
        self._socket = SocketServer(
            folder / self.name,
            hidden=f".{prefix}-{_digest(plugin.resource)}-",
            what=plugin.resource,
            advice="kubelet's plugin folder must be mounted writable",
        )

    @property
    def path(self) -> Path:
        """Where our socket lies."""
        return self._socket.path

    @property
    def file(self) -> FileId | None:
        """Which socket is ours, while it is served."""
        return self._socket.file

    async def start(self) -> None:
        """Serve, in place of whatever lies at our path; raise KubeletError when that cannot be."""

        def add(server: aio.Server) -> None:
            api_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
            self._plugin.open_streams()

        await self._socket.start(add)
        log.info("plugin socket opened", resource=self._plugin.resource, socket=str(self.path))

    async def answers(self, deadline: float) -> None:
        """Dial our own socket as kubelet will; raise KubeletError when we do not answer there."""
        if not self._socket.in_place:
            raise KubeletError(f"cannot reach our own socket {self.path}: it is not there any more")
        try:
            async with dial(self.path) as channel:
                stub = api_pb2_grpc.DevicePluginStub(channel)
                await stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=deadline)
        except aio.AioRpcError as error:
            raise KubeletError(
                f"cannot reach our own socket {self.path}: {what_went_wrong(error)}"
            ) from error

    async def close(self) -> None:
        """End the streams, let Allocates in flight be answered, stop, and remove our socket."""
        if self.file is None:
            return
        await self._plugin.end_streams(_STREAMS_END)
        await self._plugin.allocates_answered(self._patience)
        await self._socket.stop(_STOP_GRACE)


def _digest(resource: ResourceName) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:8]
