"""Asks kubelet's PodResources API which pods have which devices."""

from collections.abc import Iterable
from pathlib import Path

import grpc
from grpc import aio

from holdfast._pb.podresources.v1 import api_pb2, api_pb2_grpc
from holdfast.errors import KubeletError
from holdfast.kubelet.wire import dial, what_went_wrong
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import ListedPod


class PodResources:
    """A client of `/v1.PodResourcesLister`.

    Each List opens its own connection: they are rare, and a connection kept across a restart of
    kubelet answers one more call with the old one's error.
    """

    def __init__(self, socket: Path, *, deadline: float = 5.0) -> None:
        """Ask at *socket*, and give up after *deadline* seconds."""
        self._socket = socket
        self._deadline = deadline

    async def list(self) -> tuple[ListedPod, ...]:
        """Return the pods that kubelet has, with their devices; those without any too.

        Not without effect: kubelet first drops the devices of the pods that are over, and it may
        then lose an Allocate in flight. It has no UIDs and leaves out plain init containers.
        Raise KubeletError when kubelet is down, too busy or does not answer in time.
        """
        try:
            async with dial(self._socket) as channel:
                stub = api_pb2_grpc.PodResourcesListerStub(channel)
                answer = await stub.List(api_pb2.ListPodResourcesRequest(), timeout=self._deadline)
        except aio.AioRpcError as error:
            hint = (
                "another client asks too often; look for other users of pod-resources"
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                else "is kubelet running?"
            )
            raise KubeletError(
                f"cannot list pods at {self._socket}: {what_went_wrong(error)}; {hint}"
            ) from error
        return tuple(_pod(pod) for pod in answer.pod_resources)


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
