"""The DRA drivers that a kubelet knows: how it calls them, and what it does when they are away."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from grpc import ChannelConnectivity, aio

from holdfast._pb.dra.v1 import api_pb2 as v1
from holdfast._pb.dra.v1 import api_pb2_grpc as v1_grpc
from holdfast._pb.dra.v1beta1 import api_pb2 as v1beta1
from holdfast._pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from holdfast._pb.drahealth.v1 import api_pb2 as health_v1
from holdfast._pb.drahealth.v1 import api_pb2_grpc as health_v1_grpc
from holdfast._pb.drahealth.v1alpha1 import api_pb2 as health_v1alpha1
from holdfast._pb.drahealth.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from simulated.clock import Clock
from simulated.pluginwatcher import RefusedError

CALL = 45.0
"""Seconds that kubelet gives a driver for one call."""
_AWAY = 30.0
"""Seconds without a connection after which a driver's ResourceSlices are deleted."""
_HEALTH_AGAIN = 5.0

_APIS: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (v1, v1_grpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (v1beta1, v1beta1_grpc.DRAPluginStub),
}
_HEALTH: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (health_v1, health_v1_grpc.DRAResourceHealthStub),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1, health_v1alpha1_grpc.DRAResourceHealthStub),
}
KUBELET_1_37 = (*_APIS, *_HEALTH)
KUBELET_1_36 = (*_APIS, "v1alpha1.DRAResourceHealth")
KUBELET_1_33 = ("v1beta1.DRAPlugin",)

Wipe = Callable[[str | None], Awaitable[None]]
"""Deletes the node's ResourceSlices of one driver, of all drivers for None."""


class Plugin:
    """One instance of a driver, and the connection to it."""

    def __init__(
        self,
        driver: str,
        endpoint: str,
        services: Sequence[str],
        *,
        service: str,
        health: str | None,
    ) -> None:
        """Call *service* and *health* of *services*, which are all that the driver has."""
        self.driver = driver
        self.endpoint = endpoint
        self.services = tuple(services)
        self.service = service
        self.connected = False
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self.channel = aio.insecure_channel(f"unix://{endpoint}", options)
        self.api, stub = _APIS[service]
        self.stub = stub(self.channel)
        self.health = health
        self.tasks: list[asyncio.Task[None]] = []


class NearPlugin(Plugin):
    """A driver whose calls *stub* answers without a socket: only so can time be another's."""

    def __init__(self, driver: str, stub: object) -> None:
        self.driver, self.stub, self.api, self.connected = driver, stub, v1, True


class DraPlugins:
    """Kubelet's handler of plugins of type DRAPlugin."""

    def __init__(self, *, clock: Clock, wipe: Wipe, services: Sequence[str]) -> None:
        """Know *services*; tell *wipe* when a driver's slices are to be deleted."""
        self.plugins: dict[str, list[Plugin]] = {}
        self.health: dict[str, dict[tuple[str, str], Any]] = {}
        """The last DeviceHealth of each pool's device, by driver; gone when the stream ends."""
        self.messages: list[Any] = []
        """All that came on health streams."""
        self._services = services
        self._clock = clock
        self._wipe = wipe
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def validate(self, name: str, endpoint: str, services: Sequence[str]) -> None:
        """Refuse a driver with which there is no common version."""
        self._choose(name, endpoint, services)

    def register(self, name: str, endpoint: str, services: Sequence[str]) -> None:
        """Connect to a driver; refuse an endpoint that is registered already."""
        service = self._choose(name, endpoint, services)
        known = self.plugins.setdefault(name, [])
        if any(each.endpoint == endpoint for each in known):
            raise RefusedError(
                f"endpoint {endpoint} already registered for DRA driver plugin {name}"
            )
        health = next(
            (each for each in services if each in _HEALTH and each in self._services), None
        )
        plugin = Plugin(name, endpoint, services, service=service, health=health)
        known.append(plugin)
        plugin.tasks.append(asyncio.create_task(self._monitor(plugin)))
        if health is not None:
            plugin.tasks.append(asyncio.create_task(self._watch_health(plugin)))

    def deregister(self, name: str, endpoint: str) -> None:
        """Let go of the driver's instance at *endpoint*."""
        for plugin in [each for each in self.plugins.get(name, ()) if each.endpoint == endpoint]:
            self.plugins[name].remove(plugin)
            plugin.connected = False
            self._end(plugin)
            self._connection_changed(name)

    def newest(self, driver: str) -> Plugin | None:
        """Return the instance that is called: the newest that is connected, or else the newest."""
        known = self.plugins.get(driver, [])
        return next(
            (each for each in reversed(known) if each.connected), known[-1] if known else None
        )

    async def stop(self) -> None:
        """Forget all drivers, as kubelet does when it ends: no slices are deleted."""
        for plugin in [each for known in self.plugins.values() for each in known]:
            self._end(plugin)
        for wipe in self._wipes.values():
            wipe.cancel()
        await asyncio.gather(*self._wipes.values(), *self._ends, return_exceptions=True)
        self.plugins.clear()
        self._wipes.clear()
        self.health.clear()

    def _end(self, plugin: Plugin) -> None:
        """Close the connection to *plugin*; whatever was waiting for it ends."""

        async def close() -> None:
            for task in plugin.tasks:
                task.cancel()
            await asyncio.gather(*plugin.tasks, return_exceptions=True)
            await plugin.channel.close()

        task = asyncio.create_task(close())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def _choose(self, name: str, endpoint: str, services: Sequence[str]) -> str:
        for service in services:
            if service in _APIS and service in self._services:
                return service
        raise RefusedError(
            f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: "
            "none of services supported by the plugin are supported by kubelet"
        )

    async def _monitor(self, plugin: Plugin) -> None:
        """Keep the connection, and note when it comes and goes."""
        state = plugin.channel.get_state(try_to_connect=True)
        while True:
            connected = state is ChannelConnectivity.READY
            if connected != plugin.connected:
                plugin.connected = connected
                self._connection_changed(plugin.driver)
            await plugin.channel.wait_for_state_change(state)
            state = plugin.channel.get_state(try_to_connect=True)

    def _connection_changed(self, driver: str) -> None:
        connected = any(each.connected for each in self.plugins.get(driver, ()))
        waiting = self._wipes.pop(driver, None)
        if waiting is not None:
            waiting.cancel()
        if not connected:
            self._wipes[driver] = asyncio.create_task(self._wipe_later(driver))

    async def _wipe_later(self, driver: str) -> None:
        await self._clock.sleep(_AWAY)
        await self._wipe(driver)

    async def _watch_health(self, plugin: Plugin) -> None:
        assert plugin.health is not None
        api, stub = _HEALTH[plugin.health]
        while True:
            stream = stub(plugin.channel).NodeWatchResources(api.NodeWatchResourcesRequest())
            try:
                async for message in stream:
                    self.messages.append(message)
                    self.health[plugin.driver] = {
                        (each.device.pool_name, each.device.device_name): each
                        for each in message.devices
                    }
            except aio.AioRpcError:
                pass
            finally:  # also when the driver is deregistered before its stream has ended
                self.health.pop(plugin.driver, None)
            await self._clock.sleep(_HEALTH_AGAIN)
