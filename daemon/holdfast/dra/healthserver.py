"""Streams the health of our devices to kubelet, which shows it in the status of pods."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from grpc import aio
from msgspec import Struct

from holdfast._pb.drahealth.v1 import api_pb2
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.health import DeviceHealth, healths
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes

_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Both have the same messages."""

SEND_EVERY = 20.0
GOOD_FOR = 60
"""Seconds after which kubelet takes the health of a device that it heard nothing of for unknown."""
_LEAST_PAUSE = 0.2


class HealthServer(Struct, frozen=True, kw_only=True):
    """The gRPC service of device health, for every version that a kubelet may choose.

    Each message is the whole list: on every change, and often enough that kubelet never takes what
    it has for outdated, every `send_every` seconds at the latest. It tells of the devices in
    `pool`, whose names for the scheduler are `advertised`.
    """

    pool: str
    advertised: Callable[[], Iterable[AdvertisedDevice]]
    standings: DeviceStandings
    clock: Clock
    send_every: float = SEND_EVERY

    def add_to(self, server: aio.Server) -> None:
        """Have *server* answer kubelet."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self.watch,
                request_deserializer=api_pb2.NodeWatchResourcesRequest.FromString,
                response_serializer=api_pb2.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name in _SERVICES]
        )

    async def watch(
        self, _request: api_pb2.NodeWatchResourcesRequest, _context: object
    ) -> AsyncIterator[api_pb2.NodeWatchResourcesResponse]:
        """Send the whole list now, on every change of it, and before it is outdated."""
        sent: tuple[DeviceHealth, ...] | None = None
        again = 0.0
        while True:
            changes = Changes([self.standings.latest])
            now, latest = self.clock.monotonic(), self._latest()
            if latest != sent or now >= again:
                sent, again = latest, now + self.send_every
                yield self._message(latest)
            # Pods come and go in bursts, and of those only the last state is worth a message.
            await self.clock.sleep(_LEAST_PAUSE)
            await changes.wait(max(0.0, again - self.clock.monotonic()))

    def _latest(self) -> tuple[DeviceHealth, ...]:
        return healths(self.advertised(), self.standings.now())

    def _message(self, latest: Iterable[DeviceHealth]) -> api_pb2.NodeWatchResourcesResponse:
        # Kubelet, on the same machine, compares it with the time of day.
        now = int(self.clock.wall())
        return api_pb2.NodeWatchResourcesResponse(
            devices=[
                api_pb2.DeviceHealth(
                    device=api_pb2.DeviceIdentifier(pool_name=self.pool, device_name=each.name),
                    health=api_pb2.HEALTHY if each.healthy else api_pb2.UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=GOOD_FOR,
                    message=each.message,
                )
                for each in latest
            ]
        )
