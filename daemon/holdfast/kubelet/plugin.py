"""Answers kubelet's calls for one resource, on its own socket, and keeps its device list true."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from grpc import aio
from msgspec import Struct
from msgspec.structs import replace

from holdfast._pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from holdfast.errors import (
    GateRefusedError,
    HoldfastError,
    KubeletError,
    LaneStuckError,
    LedgerError,
    bug,
    no_decision,
)
from holdfast.kubelet.podresources import Traffic
from holdfast.kubelet.reader import CALM, DeviceLists
from holdfast.kubelet.socket import SocketServer, dial, what_went_wrong
from holdfast.ledger.standings import DeviceStandings, EmptyPods
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.book.standing import Standing
from holdfast.model.devices import Inventory
from holdfast.model.grants import ContainerGrant, in_container
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.text import printable
from holdfast.names import LONGEST_SOCKET_PATH
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched

log = structlog.get_logger(__name__)

T = TypeVar("T")
_Call = aio.ServicerContext[Any, Any]

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"


Ids = tuple[DeviceId, ...]
_STREAMS_END = 1.0


@dataclass(kw_only=True, eq=False)
class Offering(DeviceLists):
    """Publishes `offers`, again whenever a standing changes what kubelet sees of a device.

    It offers what kubelet hands out of `inventory`, by its `standings`. What is served by DRA is on
    no list. While pods still have some of its devices, kubelet is sent a list without any: else it
    would not show their end. Nor is it asked to call before starts once all of them have started:
    it would call for pods that have a claim, and fail.
    """

    standings: DeviceStandings
    inventory: Watched[Inventory]
    has_dra: Watched[bool]
    """Whether the settings have any hardware served by DRA."""

    def __post_init__(self) -> None:
        self._resend = 0
        self.offers: Watched[Offers] = Watched(Offers())

    @property
    def silent(self) -> bool:
        """Whether no device comes by the device plugin: all of them come by claims."""
        if not self.has_dra.value or self.offers.value.devices:
            return False
        return not any(each.granted for each in self.standings.now())

    async def ready(self) -> None:
        """Return once something is offered, or nothing is to come."""
        while not (self.offers.value.devices or self.silent):
            await Changes([self.offers, self.standings.latest]).wait()

    def resend(self) -> None:
        """Send the lists once more, unchanged or not, so that kubelet writes its checkpoint."""
        self._resend += 1
        self.refresh()

    def refresh(self) -> None:
        """Publish what holds now."""
        standings, before = self.standings.now(), self.offers.value.devices
        here = [each for each in self.inventory.value.resources if each not in standings.by_claims]
        lists: dict[ResourceName, list[OfferedDevice]] = {each: [] for each in here}
        left: dict[ResourceName, tuple[OfferedDevice, ...]] = {}
        unstarted = {each.name.resource for each in standings if each.unstarted}
        for each in standings:
            if each.by_claims:
                left |= {each.name.resource: ()} if each.granted else {}
            elif each.name.resource in lists and (each.listed or each.named):
                lists[each.name.resource].append(_line(each))
        # A node has no use for the name of hardware that it does not have; but a name that kubelet
        # has heard stays, or kubelet would count its devices as lost.
        told = {name: tuple(each) for name, each in lists.items() if each or name in before}
        by_claims = frozenset({*standings.by_claims, *left})
        self.offers.set(
            Offers(
                devices=told | left,
                resend=self._resend,
                by_claims=by_claims,
                ungated=by_claims - unstarted,
            )
        )

    async def run(self) -> None:
        """Follow the standings until cancelled."""
        while True:
            changes = Changes([self.standings.latest, self.inventory])
            self.refresh()
            await changes.wait()


def _line(each: Standing) -> OfferedDevice:
    numa = None if each.device is None else each.device.numa_node
    return OfferedDevice(id=each.name.id, healthy=each.offered, numa_node=numa)


class DeviceDoor(Struct, frozen=True, kw_only=True):
    """Decides what kubelet's calls are answered."""

    allocate: Callable[[ResourceName, Ids], Coroutine[Any, Any, ContainerGrant]]
    """Returns what the container is given, within milliseconds.

    Raises AllocationRefusedError only for what can never work: the pod is then lost.
    """
    pre_start: Callable[[ResourceName, Ids], Coroutine[Any, Any, None]]
    """Returns when the container may start; raises GateRefusedError when it may not yet.

    It is cancelled when kubelet gives up, and must leave nothing half done then.
    """
    preferred: Callable[[ResourceName, Ids, Ids, int], Ids]
    """Returns so many of the first ids, with all of the second."""


class CallObserver(Protocol):
    """Hears of kubelet's calls, for metrics; see `telemetry.metrics`."""

    def called(self, resource: str, call: str, code: str, seconds: float) -> None:
        """Note a *call* about *resource* that ended with the status *code* after *seconds*."""


class CallDeadlines(Struct, frozen=True, kw_only=True):
    """Seconds after which a call is answered although there is no decision: the last resort.

    Kubelet has none for Allocate, and its whole node waits. It gives the gate 30 s, and then shows
    a text of its own, which tells nobody what is wrong.
    """

    allocate: float = 10.0
    gate: float = 28.0


class PluginParts(Struct, frozen=True, kw_only=True):
    """What the plugins of all resources have in common."""

    offers: Watched[Offers]
    door: DeviceDoor
    traffic: Traffic
    emptied: EmptyPods
    calls: CallObserver
    clock: Clock
    deadlines: CallDeadlines = CallDeadlines()


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

    def __init__(self, resource: ResourceName, parts: PluginParts) -> None:
        """Serve *resource*."""
        self.resource = resource
        self.streams: Watched[Streams] = Watched(Streams())
        self._parts = parts
        self._serving: Watched[bool] = Watched(True)
        self._unfinished: set[asyncio.Task[ContainerGrant]] = set()

    def options(self) -> api_pb2.DevicePluginOptions:
        """Return which calls kubelet is asked for.

        Where claims serve the resource it is not to call before starts: of 1.36 it would for each
        pod that asks for the resource, and fail the start of one that has it by a claim.
        """
        return api_pb2.DevicePluginOptions(
            pre_start_required=self.resource not in self._parts.offers.value.ungated,
            get_preferred_allocation_available=True,
        )

    def begin_era(self) -> None:
        """Forget the streams so far: a new registration is about to be made."""
        streams = self.streams.value
        self.streams.set(replace(streams, era=streams.era + 1, opened=0, ended=0))
        self._parts.emptied.registered()

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
        """Return when no more Allocates come, or after *patience* seconds: each is a pod."""
        try:
            async with asyncio.timeout(patience):
                await self._parts.traffic.quiet(self._parts.clock, seconds=CALM)
        except TimeoutError:
            log.warning("Allocate cut off at shutdown", resource=self.resource, patience=patience)

    async def GetDevicePluginOptions(  # noqa: N802
        self,
        request: api_pb2.Empty,  # noqa: ARG002
        context: _Call,  # noqa: ARG002
    ) -> api_pb2.DevicePluginOptions:
        """Ask kubelet to call before each start, and to ask which devices go together."""
        return self.options()

    async def ListAndWatch(  # noqa: N802
        self,
        request: api_pb2.Empty,  # noqa: ARG002
        context: _Call,
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        """Send the whole list now and whenever it has changed, always only the latest."""
        era = self.streams.value.era
        self._stream_opened()
        _when_over(context, lambda: self._stream_ended(era))
        sent: tuple[tuple[OfferedDevice, ...], int] | None = None
        while self._serving.value:
            changes = Changes([self._parts.offers, self._serving])
            offers = self._parts.offers.value
            latest = (offers.of(self.resource), offers.resend)
            if latest != sent:
                sent = latest
                yield api_pb2.ListAndWatchResponse(devices=[_device(each) for each in latest[0]])
            else:
                await changes.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: api_pb2.PreferredAllocationRequest,
        context: _Call,
    ) -> api_pb2.PreferredAllocationResponse:
        """Say which devices go together. Never an error: kubelet would leak the devices."""
        self._count(context)
        began = self._parts.clock.monotonic()
        response = api_pb2.PreferredAllocationResponse()
        for each in request.container_requests:
            response.container_responses.add(deviceIDs=self._preferred(each))
        self._observed("GetPreferredAllocation", grpc.StatusCode.OK, began)
        return response

    async def Allocate(  # noqa: N802
        self,
        request: api_pb2.AllocateRequest,
        context: _Call,
    ) -> api_pb2.AllocateResponse:
        """Grant devices, with exactly one answer for each container asked for."""
        self._count(context)
        work = self._allocate_all(request)
        return await self._answer("Allocate", context, work, self._parts.deadlines.allocate)

    async def PreStartContainer(  # noqa: N802
        self,
        request: api_pb2.PreStartContainerRequest,
        context: _Call,
    ) -> api_pb2.PreStartContainerResponse:
        """Hold the container's start until its devices are free of others."""
        ids = tuple(DeviceId(id_) for id_ in request.devices_ids)
        work = self._parts.door.pre_start(self.resource, ids)
        await self._answer("PreStartContainer", context, work, self._parts.deadlines.gate)
        return api_pb2.PreStartContainerResponse()

    async def _allocate_all(self, request: api_pb2.AllocateRequest) -> api_pb2.AllocateResponse:
        response = api_pb2.AllocateResponse()
        for each in request.container_requests:
            ids = tuple(DeviceId(id_) for id_ in each.devices_ids)
            task = asyncio.create_task(self._parts.door.allocate(self.resource, ids))
            self._unfinished.add(task)
            task.add_done_callback(self._unfinished.discard)
            # What is being written down is written to its end, whoever stops waiting for it.
            response.container_responses.append(container_answer(await asyncio.shield(task)))
        return response

    async def _answer(
        self,
        call: str,
        context: _Call,
        work: Coroutine[object, object, T],
        deadline: float,
    ) -> T:
        """Return what *work* returns; end the call with one status code for any error of it."""
        began = self._parts.clock.monotonic()
        code = grpc.StatusCode.CANCELLED
        patience = asyncio.timeout(deadline)
        try:
            async with patience:
                answer = await work
            code = grpc.StatusCode.OK
        except HoldfastError as error:
            code, text = _code_of(error), str(error)
            if not isinstance(error, GateRefusedError):  # the gate has logged it, with more
                log.warning("kubelet call refused", call=call, resource=self.resource, reason=text)
        except Exception as error:
            late = isinstance(error, TimeoutError) and patience.expired()
            code = grpc.StatusCode.FAILED_PRECONDITION if late else grpc.StatusCode.INTERNAL
            why = no_decision(deadline) if late else bug(error)
            text = f"cannot answer {call} for {self.resource}: {why}"
            log.exception("kubelet call failed", call=call, resource=self.resource)
        else:
            return answer
        finally:
            self._observed(call, code, began)
        # Kubelet logs it, and shows it in events and in a pod's status.
        return await context.abort(code, printable(text))

    def _count(self, context: _Call) -> None:
        """Count a call for which kubelet has already picked devices, until its answer has left."""
        self._parts.traffic.began()
        _when_over(context, self._parts.traffic.ended)

    def _preferred(self, asked: api_pb2.ContainerPreferredAllocationRequest) -> list[str]:
        available = tuple(DeviceId(id_) for id_ in asked.available_deviceIDs)
        must_include = tuple(DeviceId(id_) for id_ in asked.must_include_deviceIDs)
        size = asked.allocation_size
        try:
            chosen = self._parts.door.preferred(self.resource, available, must_include, size)
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
        seconds = self._parts.clock.monotonic() - began
        self._parts.calls.called(self.resource, call, code.name, seconds)


def _code_of(error: HoldfastError) -> grpc.StatusCode:
    """Return the status code that *error* becomes on the wire."""
    if isinstance(error, LedgerError | LaneStuckError):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION


def _when_over(context: _Call, act: Callable[[], None]) -> None:
    """Call *act* once the call of *context* is over: answered, failed or given up by its caller."""
    # The stub's callback type is a class where a protocol is meant; no function can satisfy it.
    context.add_done_callback(lambda _: act())  # type: ignore[arg-type]


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
            api_pb2.DeviceSpec(container_path=in_container(path), host_path=path, permissions="rw")
            for path in grant.nodes
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


def socket_path(folder: Path, prefix: str, resource: ResourceName) -> Path:
    """Return the path of *resource*'s socket; no two resources share one.

    A name that makes the path longer than a socket's may be is cut off.
    """
    readable, digest = resource.replace("/", "_").replace(".", "-"), f"-{_digest(resource)}"
    whole = folder / f"{prefix}-{readable}.sock"
    if "-" not in resource and "_" not in resource and _excess(whole) <= 0:
        return whole
    excess = max(0, _excess(folder / f"{prefix}-{readable}{digest}.sock"))
    return folder / f"{prefix}-{readable[: len(readable) - excess]}{digest}.sock"


def _excess(path: Path) -> int:
    """Return by how many bytes *path* is too long for a socket."""
    return len(os.fsencode(path)) - LONGEST_SOCKET_PATH


class PluginServer:
    """Serves one plugin on its socket, again after each close."""

    def __init__(self, *, folder: Path, prefix: str, plugin: DevicePlugin, patience: float) -> None:
        """Serve *plugin* in *folder*; a stop waits *patience* seconds for Allocates in flight."""
        self._plugin = plugin
        self._patience = patience
        self.socket = SocketServer(
            socket_path(folder, prefix, plugin.resource),
            hidden=f".{prefix}-{_digest(plugin.resource)}-",
            what=plugin.resource,
            advice="kubelet's plugin folder must be mounted writable",
        )

    async def start(self) -> None:
        """Serve, in place of whatever lies at our path; raise KubeletError when that cannot be."""

        def add(server: aio.Server) -> None:
            api_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
            self._plugin.open_streams()

        await self.socket.start(add)
        path = str(self.socket.path)
        log.info("plugin socket opened", resource=self._plugin.resource, socket=path)

    async def answers(self, deadline: float) -> None:
        """Dial our own socket as kubelet will; raise KubeletError when we do not answer there."""
        path = self.socket.path
        if not self.socket.in_place:
            raise KubeletError(f"cannot reach our own socket {path}: it is not there any more")
        try:
            async with dial(path) as channel:
                stub = api_pb2_grpc.DevicePluginStub(channel)
                await stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=deadline)
        except aio.AioRpcError as error:
            raise KubeletError(
                f"cannot reach our own socket {path}: {what_went_wrong(error)}"
            ) from error

    async def close(self) -> None:
        """Let Allocates in flight be answered, end the streams, stop, and remove our socket.

        One that was cut short is to be called again.
        """
        if self.socket.file is None:
            return
        # First: kubelet closes its connection, with every call on it, when a stream has ended.
        if self._plugin.streams.value.open:
            await self._plugin.allocates_answered(self._patience)
        await self._plugin.end_streams(_STREAMS_END)
        await self.socket.stop()


def _digest(resource: ResourceName) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:8]
