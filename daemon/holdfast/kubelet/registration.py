"""Keeps each resource registered with kubelet, whatever happens to either side's sockets."""

import asyncio
import contextlib
import math
from collections.abc import Iterator, Mapping

import structlog
from grpc import aio
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from holdfast.errors import HoldfastError, KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.kubelet.folder import FolderState, FolderWatch
from holdfast.kubelet.plugin import DevicePlugin, PluginParts, PluginServer
from holdfast.kubelet.socket import dial, what_went_wrong
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import KubeletView, Registration
from holdfast.model.node.readiness import ReadinessCheck, check, check_openly
from holdfast.runtime.clock import backoff
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched, first_of

log = structlog.get_logger(__name__)

_API_VERSION = "v1beta1"
"""The one version of the API that any kubelet takes."""


class RegistrationTimes(Struct, frozen=True, kw_only=True):
    """Durations in seconds. `register` is above the 10 s that kubelet takes to dial us back."""

    first_delay: float = 0.01
    last_delay: float = 10.0
    register: float
    own_answer: float = 2.0
    stream: float = 10.0
    """How long kubelet may take to open the stream after it accepted us."""
    steady: float = 10.0
    """A registration that lasted this long was good: the next attempt comes at once."""
    stop: float = 2.5


class Registrar(Struct, frozen=True, kw_only=True):
    """Serves and registers each resource as soon as it is on offer.

    A resource that leaves the offers stays registered, with an empty list: kubelet would otherwise
    count its devices as lost for as long as it remembers them. One that claims serve by then is
    left: kubelet has nothing to lose of it. `registrations` tells where each one stands.

    Each has a servicer over `plugins`. The names of our sockets in `folder` begin with `prefix`.
    """

    plugins: PluginParts
    folder: FolderWatch
    prefix: str
    times: Watched[RegistrationTimes]
    view: Watched[KubeletView]
    registrations: Watched[Mapping[ResourceName, Registration]] = field(
        default_factory=lambda: Watched({})
    )
    _each: "dict[ResourceName, _OneResource]" = {}

    async def run(self) -> None:
        """Keep them all registered, until cancelled; then `close`."""
        with contextlib.suppress(OSError):  # to serve there fails as well, and says why
            for left_by_a_crash in self.folder.state.value.sockets:
                (self.folder.path / left_by_a_crash).unlink(missing_ok=True)
        tasks: dict[ResourceName, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            async for offers in self.plugins.offers.follow():
                for resource in offers.devices:
                    if resource not in self._each:
                        plugin = DevicePlugin(resource, self.plugins)
                        one = self._each[resource] = _OneResource(plugin, self)
                        name = f"register {resource}"
                        tasks[resource] = group.create_task(one.run(), name=name)
                for resource in (self._each.keys() & offers.by_claims) - offers.devices.keys():
                    await self._leave(resource, tasks.pop(resource))

    async def _leave(self, resource: ResourceName, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        await self._each[resource].server.close()
        del self._each[resource]
        left = {name: each for name, each in self.registrations.value.items() if name != resource}
        self.registrations.set(left)
        log.info("no longer registered with kubelet: served by DRA", resource=resource)

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """The resources that kubelet is offered."""
        return tuple(self.plugins.offers.value.devices)

    @property
    def states(self) -> dict[ResourceName, Registration]:
        """Each resource's registration, including those that kubelet does not know yet."""
        return dict.fromkeys(self.resources, Registration()) | dict(self.registrations.value)

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether kubelet has accepted each resource, and has a ListAndWatch stream open.

        Without a stream it counts no device as usable.
        """
        states = [(resource, self.states[resource]) for resource in self.resources]
        for resource, state in states:
            yield check(f"registered {resource}", state.problem)
        for resource, state in states:
            closed = "" if state.streams else "kubelet has no ListAndWatch stream open"
            yield check_openly(f"stream {resource}", closed)

    async def answers(self, resource: ResourceName) -> None:
        """Dial our own socket of *resource*; raise KubeletError when we do not answer there."""
        one = self._each.get(resource)
        if one is None or one.server.socket.file is None:
            raise KubeletError(f"cannot reach our socket of {resource}: none is served yet")
        await one.server.answers(self.times.value.own_answer)

    async def close(self) -> None:
        """End all streams, stop all servers and remove our sockets. `run` must be over."""
        await asyncio.gather(*(each.server.close() for each in self._each.values()))


class _OneResource:
    """One resource's server and registration, kept alive by `run`."""

    def __init__(self, plugin: DevicePlugin, registrar: Registrar) -> None:
        """Register *plugin* for *registrar*, whose `registrations` get each new state."""
        self._of = registrar
        self._folder = registrar.folder
        self._clock = registrar.plugins.clock
        self.server = PluginServer(
            folder=registrar.folder.path,
            prefix=registrar.prefix,
            plugin=plugin,
            patience=registrar.times.value.stop,
        )
        self._plugin = plugin
        self._problem = Problem(log, "not registered with kubelet", resource=plugin.resource)
        self._options = plugin.options()
        self._set(Registration(since=self._clock.wall()))

    async def run(self) -> None:
        """Register, and again whenever the registration ends, until cancelled."""
        delays = self._delays()
        kubelet: FileId | None = None
        while True:
            state = self._folder.state.value
            try:
                state = await self._folder.refresh()
                if state.kubelet is not None and state.kubelet != kubelet:
                    kubelet, delays = state.kubelet, self._delays()
                await self._enrol(state)
                began = self._clock.monotonic()
                problem = await self._over(state)
                if self._clock.monotonic() - began >= self._of.times.value.steady:
                    delays = self._delays()
            except HoldfastError as error:
                problem = str(error)
            self._report(problem)
            await self._pause(next(delays), state)

    def _delays(self) -> Iterator[float]:
        return backoff(self._of.times.value.first_delay, self._of.times.value.last_delay)

    async def _enrol(self, state: FolderState) -> None:
        resource = self._plugin.resource
        if state.folder is None:
            raise KubeletError(
                f"cannot register {resource}: there is no folder {self._folder.path} (waiting for "
                "kubelet to create it; is it kubelet's plugin folder on this node?)"
            )
        if state.kubelet is None:
            raise KubeletError(
                f"cannot register {resource}: there is no {self._folder.kubelet_socket} (waiting "
                "for kubelet to start)"
            )
        if not state.has(self.server.socket):
            await self.server.close()
            await self.server.start()
            await self._folder.refresh()  # `_over` compares what is published with our socket
        # Kubelet dials the socket itself, and waits longer than we would. To dial it first would
        # only make a busy node register later; readiness dials it separately.
        await self._register(self.server.socket.path.name, state)

    async def _register(self, endpoint: str, state: FolderState) -> None:
        resource = self._plugin.resource
        self._plugin.begin_era()
        self._set(replace(self._state, attempts=self._state.attempts + 1))
        call = asyncio.create_task(self._call(endpoint))
        replaced = asyncio.create_task(
            self._folder.state.until(lambda now: _another_kubelet(now, state))
        )
        if call not in await first_of(call, replaced):
            raise KubeletError(f"cannot register {resource}: kubelet was replaced meanwhile")
        call.result()
        self._set(replace(self._state, registrations=self._state.registrations + 1))
        self._report("")

    async def _call(self, endpoint: str) -> None:
        resource = self._plugin.resource
        self._options = self._plugin.options()
        request = api_pb2.RegisterRequest(
            version=_API_VERSION, endpoint=endpoint, resource_name=resource, options=self._options
        )
        try:
            async with dial(self._folder.kubelet_socket) as channel:
                stub = api_pb2_grpc.RegistrationStub(channel)
                await stub.Register(request, timeout=self._of.times.value.register)
        except aio.AioRpcError as error:
            raise KubeletError(
                f"cannot register {resource} with kubelet: {what_went_wrong(error)}"
            ) from error

    async def _over(self, began_with: FolderState) -> str:
        """Return, with the reason, when the registration is good no longer."""
        opened_by = self._clock.monotonic() + self._of.times.value.stream
        socket, resource, had = self.server.socket, self._plugin.resource, False
        while True:
            changes = Changes(
                [self._plugin.streams, self._folder.state, self._of.plugins.offers, self._of.view]
            )
            streams, state = self._plugin.streams.value, self._folder.state.value
            left = opened_by - self._clock.monotonic()
            self._set(self._state)
            if streams.ended:
                return "kubelet closed its ListAndWatch stream; registering again"
            if not streams.opened and left <= 0:
                return (
                    f"kubelet accepted {resource} but opened no ListAndWatch stream "
                    f"in {self._of.times.value.stream:g} s; see kubelet's log"
                )
            if _another_kubelet(state, began_with):
                return f"{self._folder.kubelet_socket} was created again; registering again"
            if self._plugin.options() != self._options:
                await self.server.close()
                return "whether kubelet is to call before starts has changed; registering again"
            # Kubelet drops a resource five minutes after the plugin that registered last has ended,
            # and goes on reading what another one sends it.
            has = resource in self._of.view.value.registered
            if had and not has:
                await self.server.close()
                return f"kubelet has dropped {resource} and its devices; registering again"
            had = has
            if not state.has(socket):
                return f"our socket {socket.path} was removed; serving and registering again"
            await changes.wait(math.inf if streams.opened else left)

    async def _pause(self, seconds: float, tried: FolderState) -> None:
        """Return after *seconds*, or as soon as there is another kubelet to try."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._folder.state.until(lambda now: _another_kubelet(now, tried))

    def _report(self, problem: str) -> None:
        self._set(self._state.turned(problem, at=self._clock.wall()))
        self._problem.set(problem)
        if not problem:
            log.info("registered with kubelet", resource=self._plugin.resource)

    def _set(self, state: Registration) -> None:
        self._state = replace(state, streams=self._plugin.streams.value.open)
        others = self._of.registrations.value
        self._of.registrations.set({**others, self._plugin.resource: self._state})


def _another_kubelet(now: FolderState, before: FolderState) -> bool:
    """Tell whether there is a kubelet.sock, and not the one from *before*."""
    return now.kubelet is not None and now.kubelet != before.kubelet
