"""Asks kubelet's PodResources API which pods have which devices, while it allocates none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import grpc
from grpc import aio
from msgspec import Struct

from holdfast._pb.podresources.v1 import api_pb2, api_pb2_grpc
from holdfast.errors import KubeletError
from holdfast.kubelet.socket import LARGEST_MESSAGE, dial, what_went_wrong
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import ListedPod
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

_TOO_LARGE = "larger than max"


class Traffic:
    """The Allocates of all resources that kubelet waits for, and the questions that precede them.

    A List that kubelet handles while it waits for an Allocate, or for which devices it should pick,
    makes it forget that the devices are taken (k/k#137534), and the next pod gets them too.
    """

    def __init__(self) -> None:
        self.in_flight: Watched[int] = Watched(0)
        """How many such calls kubelet waits for."""

    def began(self) -> None:
        """Count a call that kubelet waits for."""
        self.in_flight.set(self.in_flight.value + 1)

    def ended(self) -> None:
        """Count one less: kubelet has the answer, or has gone."""
        self.in_flight.set(self.in_flight.value - 1)

    async def quiet(self, clock: Clock, *, seconds: float) -> None:
        """Return when there has been none for *seconds*.

        That lets kubelet write down the answer that it has just got, and the Allocates of a pod's
        next containers come first.
        """
        while True:
            await self.in_flight.until(lambda count: count == 0)
            version = self.in_flight.version
            await clock.sleep(seconds)
            if self.in_flight.version == version:
                return


class PodResources(Struct, frozen=True):
    """A client of `/v1.PodResourcesLister` at `socket`, which gives up after `deadline` seconds.

    Each List has its own connection: they are rare, and a connection kept across a restart of
    kubelet answers one more call with the old one's error.
    """

    socket: Path
    deadline: Watched[float]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Callable[[], Awaitable[tuple[ListedPod, ...]]]]:
        """Connect, and yield what sends a List at once, see `_list`; close at the end.

        Raise KubeletError when nobody answers in time.
        """
        async with dial(self.socket) as channel:
            await self._connect(channel)
            yield partial(self._list, channel)

    async def _connect(self, channel: aio.Channel) -> None:
        problem = ""
        try:
            async with asyncio.timeout(self.deadline.value):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY and not problem:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        problem = "nothing answers there"
                    else:
                        await channel.wait_for_state_change(state)
                        state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            problem = f"no connection within {self.deadline.value:g} s"
        if problem:
            raise KubeletError(f"cannot list pods at {self.socket}: {problem}; is kubelet running?")

    async def _list(self, channel: aio.Channel) -> tuple[ListedPod, ...]:
        """Return the pods that kubelet has, with their devices; those without any too.

        Not without effect: kubelet first drops the devices of the pods that are over, and it may
        then lose an Allocate in flight. It has no UIDs and leaves out plain init containers. Raise
        KubeletError when kubelet is down, too busy or does not answer in time.
        """
        stub = api_pb2_grpc.PodResourcesListerStub(channel)
        try:
            request = api_pb2.ListPodResourcesRequest()
            answer = await stub.List(request, timeout=self.deadline.value)
        except aio.AioRpcError as error:
            raise KubeletError(
                f"cannot list pods at {self.socket}: {what_went_wrong(error)}; {_hint(error)}"
            ) from error
        return tuple(_pod(pod) for pod in answer.pod_resources)


def _hint(error: aio.AioRpcError) -> str:
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "is kubelet running?"
    if _TOO_LARGE in (error.details() or ""):  # our own gRPC library says so, not kubelet
        return (
            f"holdfast reads at most {LARGEST_MESSAGE >> 20} MiB: there are too many pods or "
            "devices on this node"
        )
    return "another client asks too often; look for other users of pod-resources"


def _pod(pod: api_pb2.PodResources) -> ListedPod:
    return ListedPod(
        namespace=pod.namespace, name=pod.name, devices=frozenset(_devices(pod.containers))
    )


def _devices(containers: Iterable[api_pb2.ContainerResources]) -> Iterable[DeviceName]:
    # Kubelet sends one ContainerDevices for each device, not one for each resource.
    for container in containers:
        for devices in container.devices:
            resource = ResourceName(devices.resource_name)
            yield from (DeviceName(resource, DeviceId(id_)) for id_ in devices.device_ids)
