"""Kubelet's plugin manager: finds sockets in plugins_registry, and registers who answers there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from grpc import aio
from msgspec import Struct

from holdfast._pb.pluginregistration.v1 import api_pb2, api_pb2_grpc
from simulated.clock import Clock

DRA_PLUGIN = "DRAPlugin"
_DIAL, _GET_INFO, _NOTIFY = 10.0, 1.0, 5.0
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 122.0


class RefusedError(Exception):
    """A plugin is not taken; the text is kubelet's own."""


class Handler(Protocol):
    """What takes plugins of one type."""

    def validate(self, name: str, endpoint: str, services: Sequence[str]) -> None:
        """Raise RefusedError for a plugin that cannot be taken."""
        ...

    def register(self, name: str, endpoint: str, services: Sequence[str]) -> None:
        """Take a plugin; raise RefusedError when it cannot be."""
        ...

    def deregister(self, name: str, endpoint: str) -> None:
        """Let go of a plugin whose registration socket is gone."""
        ...


class _Known(Struct, frozen=True, kw_only=True):
    """A plugin that was taken, by its socket."""

    file: tuple[int, int]
    name: str
    endpoint: str


class PluginWatcher:
    """Registers each socket of a folder with the handler of its type.

    Whatever fails is begun again from the beginning, after 0.5 s, 1 s, 2 s and so on.
    """

    look = 0.01
    """Seconds between two looks at the folder."""

    def __init__(self, folder: Path, *, clock: Clock, handlers: dict[str, Handler]) -> None:
        """Watch *folder*, which is made when it is missing."""
        self.folder = folder
        self.deaf = False
        """Sockets are not looked at, as where the folder is another one than kubelet's."""
        self.refusal = ""
        """What every plugin is refused with; empty: none is."""
        self.told: list[tuple[bool, str]] = []
        """What plugins were told of their registration."""
        self.failures = 0
        """How often a registration failed, refusals included."""
        self._clock = clock
        self._handlers = handlers
        self._known: dict[Path, _Known] = {}
        self._again: dict[tuple[Path, tuple[int, int]], tuple[float, float]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin: every plugin is registered once more, as after a restart of kubelet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known.clear()
        self._again.clear()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop looking; no plugin hears of it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            if not self.deaf:
                await self._reconcile()
            await asyncio.sleep(self.look)

    async def _reconcile(self) -> None:
        there = dict(_sockets(self.folder))
        for path, known in list(self._known.items()):
            if there.get(path) != known.file:
                del self._known[path]
                self._handlers[DRA_PLUGIN].deregister(known.name, known.endpoint)
        for path, file in there.items():
            pause, at = self._again.get((path, file), (0.0, 0.0))
            if path in self._known or self._clock.monotonic() < at:
                continue
            try:
                self._known[path] = await self._register(path, file)
            except (RefusedError, aio.AioRpcError, TimeoutError, OSError):
                self.failures += 1
                pause = min(max(2 * pause, _FIRST_PAUSE), _LAST_PAUSE)
                self._again[path, file] = (pause, self._clock.monotonic() + pause)

    async def _register(self, path: Path, file: tuple[int, int]) -> _Known:
        async with _dialled(path) as stub:
            info = await stub.GetInfo(api_pb2.InfoRequest(), timeout=_GET_INFO)
            try:
                self._take(info, path)
            except RefusedError as error:
                await self._notify(stub, registered=False, error=f"RegisterPlugin error -- {error}")
                raise
            await self._notify(stub, registered=True, error="")
            return _Known(file=file, name=info.name, endpoint=info.endpoint or str(path))

    def _take(self, info: api_pb2.PluginInfo, path: Path) -> None:
        handler = self._handlers.get(info.type)
        if handler is None:
            raise RefusedError(f"no handler registered for plugin type: {info.type}")
        if self.refusal:
            raise RefusedError(self.refusal)
        _step("validation", handler.validate, info, path)
        _step("registration", handler.register, info, path)

    async def _notify(
        self, stub: api_pb2_grpc.RegistrationStub, *, registered: bool, error: str
    ) -> None:
        self.told.append((registered, error))
        status = api_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        await stub.NotifyRegistrationStatus(status, timeout=_NOTIFY)


def _step(
    name: str, act: Callable[[str, str, Sequence[str]], None], info: api_pb2.PluginInfo, path: Path
) -> None:
    try:
        act(info.name, info.endpoint or str(path), tuple(info.supported_versions))
    except RefusedError as error:
        raise RefusedError(f"plugin {name} failed with err: {error}") from error


def _sockets(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield each socket below *folder* with what tells it from a later one at its path."""
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            if path.is_socket() and not path.name.startswith("."):
                found = path.stat()
                yield path, (found.st_ino, found.st_mtime_ns)


@contextlib.asynccontextmanager
async def _dialled(path: Path) -> AsyncIterator[api_pb2_grpc.RegistrationStub]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(f"unix://{path}", options) as channel:
        async with asyncio.timeout(_DIAL):
            await channel.channel_ready()
        yield api_pb2_grpc.RegistrationStub(channel)
