"""Answers kubelet's calls for one resource; every decision is a collaborator's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TypeVar

import grpc
import structlog
from grpc import aio
from msgspec import Struct
from msgspec.structs import replace

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from holdfast.errors import GateRefusedError, HoldfastError, LaneStuckError, LedgerError
from holdfast.kubelet.traffic import Traffic
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.text import printable
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")

_LOOK_AGAIN = 3600.0
_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"


Ids = tuple[DeviceId, ...]
Allocate = Callable[[ResourceName, Ids], Coroutine[object, object, ContainerGrant]]
"""Returns what the container is given, within milliseconds.

Raises AllocationRefusedError only for what can never work: the pod is then lost.
"""
PreStart = Callable[[ResourceName, Ids], Coroutine[object, object, None]]
"""Returns when the container may start; raises GateRefusedError when it may not yet.

It is cancelled when kubelet gives up, and must leave nothing half done then.
"""
Prefer = Callable[[ResourceName, Ids, Ids, int], Ids]
"""Returns so many of the available ids (first), among them those that must be included (second)."""
Observe = Callable[[str, str, float], None]
"""Hears of each call: its name, its status code and its seconds, for metrics."""


class Streams(Struct, frozen=True, kw_only=True):
    """The ListAndWatch streams of one resource.

    An era begins with each Register. `opened` and `ended` count the streams of this era alone: the
    end of one from before tells nothing about the present registration.
    """

    era: int = 0
    open: int = 0
    opened: int = 0
    ended: int = 0


class DevicePlugin(api_pb2_grpc.DevicePluginServicer):
    """The servicer of one resource; `streams` tells who listens."""

    def __init__(
        self,
        *,
        resource: ResourceName,
        offers: Watched[Offers],
        allocate: Allocate,
        pre_start: PreStart,
        prefer: Prefer,
        traffic: Traffic,
        clock: Clock,
        observe: Observe = lambda _call, _code, _seconds: None,
        allocate_deadline: float = 10.0,
        gate_deadline: float = 28.0,
    ) -> None:
        """Serve *resource*.

        The deadlines (seconds) are the last resort where a decision does not come in its own time.
        Kubelet has none for Allocate, and its whole node waits. It gives the gate 30 s, and then
        shows a text of its own, which tells nobody what is wrong.
        """
        self.resource = resource
        self.streams: Watched[Streams] = Watched(Streams())
        self._offers = offers
        self._allocate = allocate
        self._pre_start = pre_start
        self._prefer = prefer
        self._traffic = traffic
        self._clock = clock
        self._observe = observe
        self._allocate_deadline = allocate_deadline
        self._gate_deadline = gate_deadline
        self._serving: Watched[bool] = Watched(True)
        self._unfinished: set[asyncio.Task[ContainerGrant]] = set()

    def begin_era(self) -> None:
        """Forget the streams so far: a new registration is about to be made."""
        streams = self.streams.value
        self.streams.set(replace(streams, era=streams.era + 1, opened=0, ended=0))

    def open_streams(self) -> None:
        """Take ListAndWatch calls from now on."""
        self._serving.set(True)

    async def end_streams(self, patience: float) -> None:
        """End every stream, and each new one at once, until `open_streams`.

        Return when they are over, or after *patience* seconds: a peer that does not read holds
        its stream open.
        """
        self._serving.set(False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.streams.until(lambda streams: streams.open == 0)

    async def allocates_answered(self, patience: float) -> None:
        """Return when no Allocate is in flight, or after *patience* seconds: each is a pod."""
        try:
            async with asyncio.timeout(patience):
                await self._traffic.none_in_flight()
        except TimeoutError:
            log.warning("Allocate cut off at shutdown", resource=self.resource, patience=patience)

    async def GetDevicePluginOptions(  # noqa: N802
        self,
        request: api_pb2.Empty,  # noqa: ARG002
        context: aio.ServicerContext[api_pb2.Empty, Awaitable[api_pb2.DevicePluginOptions]],  # noqa: ARG002
    ) -> api_pb2.DevicePluginOptions:
        """Ask kubelet to call before each start, and to ask which devices go together."""
        return options()

    async def ListAndWatch(  # noqa: N802
        self,
        request: api_pb2.Empty,  # noqa: ARG002
        context: aio.ServicerContext[api_pb2.Empty, AsyncIterator[api_pb2.ListAndWatchResponse]],
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        """Send the whole list now and whenever it has changed, always only the latest."""
        era = self.streams.value.era
        self._stream_opened()
        _when_over(context, lambda: self._stream_ended(era))
        sent: tuple[tuple[OfferedDevice, ...], int] | None = None
        while self._serving.value:
            changes = Changes([self._offers, self._serving])
            offers = self._offers.value
            latest = (offers.of(self.resource), offers.resend)
            if latest != sent:
                sent = latest
                yield device_list(latest[0])
            else:
                await changes.wait(_LOOK_AGAIN)

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: api_pb2.PreferredAllocationRequest,
        context: aio.ServicerContext[  # noqa: ARG002
            api_pb2.PreferredAllocationRequest, Awaitable[api_pb2.PreferredAllocationResponse]
        ],
    ) -> api_pb2.PreferredAllocationResponse:
        """Say which devices go together. Never an error: kubelet would leak the devices."""
        began = self._clock.monotonic()
        response = api_pb2.PreferredAllocationResponse()
        for each in request.container_requests:
            response.container_responses.add(deviceIDs=self._preferred(each))
        self._observed("GetPreferredAllocation", grpc.StatusCode.OK, began)
        return response

    async def Allocate(  # noqa: N802
        self,
        request: api_pb2.AllocateRequest,
        context: aio.ServicerContext[api_pb2.AllocateRequest, Awaitable[api_pb2.AllocateResponse]],
    ) -> api_pb2.AllocateResponse:
        """Grant devices, with exactly one answer for each container asked for."""
        self._traffic.began()
        # When the answer has left, not when it is made: kubelet still waits until then.
        _when_over(context, self._traffic.ended)
        work = self._allocate_all(request)
        return await self._answer("Allocate", context, work, self._allocate_deadline)

    async def PreStartContainer(  # noqa: N802
        self,
        request: api_pb2.PreStartContainerRequest,
        context: aio.ServicerContext[
            api_pb2.PreStartContainerRequest, Awaitable[api_pb2.PreStartContainerResponse]
        ],
    ) -> api_pb2.PreStartContainerResponse:
        """Hold the container's start until its devices are free of others."""
        ids = tuple(DeviceId(id_) for id_ in request.devices_ids)
        work = self._pre_start(self.resource, ids)
        await self._answer("PreStartContainer", context, work, self._gate_deadline)
        return api_pb2.PreStartContainerResponse()

    async def _allocate_all(self, request: api_pb2.AllocateRequest) -> api_pb2.AllocateResponse:
        response = api_pb2.AllocateResponse()
        for each in request.container_requests:
            ids = tuple(DeviceId(id_) for id_ in each.devices_ids)
            task = asyncio.create_task(self._allocate(self.resource, ids))
            self._unfinished.add(task)
            task.add_done_callback(self._unfinished.discard)
            # What is being written down is written to its end, whoever stops waiting for it.
            response.container_responses.append(container_answer(await asyncio.shield(task)))
        return response

    async def _answer(
        self,
        call: str,
        context: aio.ServicerContext[Request, Awaitable[Response]],
        work: Coroutine[object, object, T],
        deadline: float,
    ) -> T:
        """Return what *work* returns; end the call with one status code for any error of it."""
        began = self._clock.monotonic()
        patience = asyncio.timeout(deadline)
        try:
            async with patience:
                answer = await work
            self._observed(call, grpc.StatusCode.OK, began)
        except asyncio.CancelledError:
            self._observed(call, grpc.StatusCode.CANCELLED, began)
            raise
        except HoldfastError as error:
            code, text = _code_of(error), str(error)
            if not isinstance(error, GateRefusedError):  # the gate has logged it, with more
                log.warning("kubelet call refused", call=call, resource=self.resource, reason=text)
        except Exception as error:
            if isinstance(error, TimeoutError) and patience.expired():
                code = grpc.StatusCode.FAILED_PRECONDITION
                text = (
                    f"cannot answer {call} for {self.resource}: no decision in {deadline:g} s; is "
                    "the node overloaded? `holdfast status` shows what does not answer"
                )
            else:
                code = grpc.StatusCode.INTERNAL
                text = (
                    f"cannot answer {call} for {self.resource}: {type(error).__name__}: {error}; "
                    "this is a bug in holdfast, see its log"
                )
            log.exception("kubelet call failed", call=call, resource=self.resource)
        else:
            return answer
        self._observed(call, code, began)
        # Kubelet logs it, and shows it in events and in a pod's status.
        return await context.abort(code, printable(text))

    def _preferred(self, asked: api_pb2.ContainerPreferredAllocationRequest) -> list[str]:
        available = tuple(DeviceId(id_) for id_ in asked.available_deviceIDs)
        must_include = tuple(DeviceId(id_) for id_ in asked.must_include_deviceIDs)
        size = asked.allocation_size
        try:
            chosen = self._prefer(self.resource, available, must_include, size)
        except Exception:
            log.exception("GetPreferredAllocation failed", resource=self.resource)
            chosen = tuple(dict.fromkeys((*must_include, *sorted(available))))[: max(size, 0)]
        return [*chosen]

    def _stream_opened(self) -> None:
        streams = self.streams.value
        self.streams.set(replace(streams, open=streams.open + 1, opened=streams.opened + 1))
        log.info("ListAndWatch stream opened", resource=self.resource, streams=streams.open + 1)

    def _stream_ended(self, era: int) -> None:
        streams = self.streams.value
        ended = streams.ended + (era == streams.era)
        self.streams.set(replace(streams, open=streams.open - 1, ended=ended))
        log.info("ListAndWatch stream closed", resource=self.resource, streams=streams.open - 1)

    def _observed(self, call: str, code: grpc.StatusCode, began: float) -> None:
        self._observe(call, code.name, self._clock.monotonic() - began)


def _code_of(error: HoldfastError) -> grpc.StatusCode:
    """Return the status code that *error* becomes on the wire."""
    if isinstance(error, LedgerError | LaneStuckError):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION


def _when_over(context: aio.ServicerContext[Request, Response], act: Callable[[], None]) -> None:
    """Call *act* once the call of *context* is over: answered, failed or given up by its caller."""
    # The stub's callback type is a class where a protocol is meant; no function can satisfy it.
    context.add_done_callback(lambda _: act())  # type: ignore[arg-type]


def options() -> api_pb2.DevicePluginOptions:
    """Return which calls every plugin asks kubelet for."""
    return api_pb2.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )


def device_list(devices: tuple[OfferedDevice, ...]) -> api_pb2.ListAndWatchResponse:
    """Return *devices* as one message of ListAndWatch."""
    return api_pb2.ListAndWatchResponse(devices=[_device(device) for device in devices])


def container_answer(grant: ContainerGrant) -> api_pb2.ContainerAllocateResponse:
    """Return *grant* as the answer for one container."""
    return api_pb2.ContainerAllocateResponse(
        envs=dict(grant.envs),
        mounts=[
            api_pb2.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in grant.mounts
        ],
        devices=[
            api_pb2.DeviceSpec(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in grant.nodes
        ],
        annotations=dict(grant.annotations),
        cdi_devices=[api_pb2.CDIDevice(name=name) for name in grant.cdi_devices],
    )


def _device(device: OfferedDevice) -> api_pb2.Device:
    message = api_pb2.Device(ID=device.id, health=_HEALTHY if device.healthy else _UNHEALTHY)
    # Only where it is known: each NUMA node named makes kubelet's search for a place longer.
    if device.numa_node is not None:
        message.topology.nodes.add(ID=device.numa_node)
    return message
