"""Serves one resource's plugin on its own unix socket in kubelet's plugin folder."""

import contextlib
import hashlib
import itertools
import os
import socket
from pathlib import Path

import structlog
from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from holdfast.errors import KubeletError
from holdfast.kubelet.checkpoint import FileId
from holdfast.kubelet.plugin import DevicePlugin
from holdfast.kubelet.wire import dial, what_went_wrong
from holdfast.model.ids import ResourceName

log = structlog.get_logger(__name__)

_LONGEST_PATH = 107
"""The bytes of a unix socket's path that the kernel takes."""

_STOP_GRACE = 0.001
_STREAMS_END = 1.0
_SERIAL = itertools.count()


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
        self.path = folder / self.name
        self.file: FileId | None = None
        """Which socket is ours, while it is served."""
        self._plugin = plugin
        self._patience = patience
        self._hidden = f".{prefix}-{_digest(plugin.resource)}-"
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve, in place of whatever lies at our path; raise KubeletError when that cannot be."""
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            raise KubeletError(
                f"cannot serve {self._plugin.resource}: the path {self.path} is longer than the "
                f"{_LONGEST_PATH} bytes of a unix socket; choose a shorter folder or prefix"
            )
        # gRPC unlinks the path it has bound when it stops, whoever's socket lies there by then.
        # So it binds a name that nobody else uses, and the rename puts it in place at once.
        hidden = self.path.with_name(f"{self._hidden}{os.getpid()}-{next(_SERIAL)}")
        server = aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
        self._plugin.open_streams()
        try:
            self._sweep()
            server.add_insecure_port(f"unix://{hidden}")
            await server.start()
            hidden.chmod(0o600)
            hidden.rename(self.path)
            self.file = FileId.from_stat(self.path.lstat())
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            reason = _why(hidden, error)
            raise KubeletError(
                f"cannot serve {self._plugin.resource} at {self.path}: {reason}; kubelet's plugin "
                "folder must be mounted writable"
            ) from error
        self._server = server
        log.info("plugin socket opened", resource=self._plugin.resource, socket=str(self.path))

    async def answers(self, deadline: float) -> None:
        """Dial our own socket as kubelet will; raise KubeletError when we do not answer there."""
        if self.file is None or FileId.of(self.path) != self.file:
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
        """End the streams, let Allocates in flight be answered, stop, and remove our socket.

        A socket that another has put at our path stays.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._plugin.end_streams(_STREAMS_END)
        await self._plugin.allocates_answered(self._patience)
        await server.stop(_STOP_GRACE)
        if self.file is not None and FileId.of(self.path) == self.file:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.file = None

    def _sweep(self) -> None:
        for left_by_a_crash in self.path.parent.glob(f"{self._hidden}*"):
            left_by_a_crash.unlink(missing_ok=True)


def _why(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # gRPC says only that it could not bind; the kernel says why.
    try:
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.bind(os.fsencode(path))
        path.unlink(missing_ok=True)
    except OSError as reason:
        return reason.strerror or str(reason)
    return str(error)


def _digest(resource: ResourceName) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:8]
