"""Kubelet's device manager: who has which device, and the checkpoint it writes of that."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from simulated.devicetable import DeviceTable, Entry
from simulated.pods import Container, Pod

CHECKPOINT = "kubelet_internal_checkpoint"


class AdmissionError(Exception):
    """The pod is refused for good; the text is kubelet's own."""


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """A plugin: how to call it, and the devices of its last message."""

    stub: rpc.DevicePluginStub | None
    devices: dict[str, api.Device] = field(default_factory=dict)
    prefers: bool = False
    pre_start: bool = False

    @property
    def healthy(self) -> set[str]:
        """Return the ids that may be allocated."""
        return {each.ID for each in self.devices.values() if each.health == "Healthy"}

    def stop(self) -> None:
        """Move all devices to unhealthy, as kubelet does when the stream ends."""
        for device in self.devices.values():
            device.health = "Unhealthy"
        self.stub = None


class DeviceManager(DeviceTable):
    """Allocates as kubelet 1.36 does; its mistakes included."""

    def __init__(self, folder: Path) -> None:
        """Keep the checkpoint in *folder*."""
        super().__init__()
        self._path = folder / CHECKPOINT
        self.endpoints: dict[str, Endpoint] = {}
        self.allocating = 0
        """How many Allocate calls are in flight."""
        self.writes = True
        self.clock_is_off = 0.0
        """By how many seconds the node's clock is wrong, by which files get their times."""

    def plugin(self, resource: str) -> rpc.DevicePluginStub:
        """Return what calls the plugin of *resource*; raise AdmissionError when there is none."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None or endpoint.stub is None:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        return endpoint.stub

    async def allocate(self, pod: Pod, container: Container) -> None:
        """Allocate all of *container*'s resources; raise AdmissionError with kubelet's text."""
        for resource, wanted in container.limits.items():
            endpoint = self.endpoints.get(resource)
            if endpoint is None:  # not a plugin's resource as far as this kubelet knows
                continue
            known = self.of(pod.uid, container.name, resource)
            if known is not None:
                self._check_again(known, endpoint)
                continue
            await self._allocate(pod, container, resource, wanted, endpoint)
        self.write()

    async def grant(
        self, pod: Pod, container: Container, resource: str, ids: Sequence[str]
    ) -> api.AllocateResponse:
        """Call Allocate for exactly *ids*, note who has them, and return the plugin's answer."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        self.allocating += 1
        try:
            answer = await self.plugin(resource).Allocate(request)
        finally:
            self.allocating -= 1
        stored = answer.container_responses[0].SerializeToString()
        self.note(pod.uid, resource, ids, container=container.name, answer=stored)
        return answer

    def write(self) -> None:
        """Write the checkpoint: at each message of a plugin, and after each allocation."""
        if not self.writes:
            return
        registered = {name: sorted(endpoint.healthy) for name, endpoint in self.endpoints.items()}
        temporary = self._path.with_name(f".{CHECKPOINT}.tmp")
        temporary.write_text(self.checkpoint(registered, self._nodes))
        temporary.chmod(0o600)
        if self.clock_is_off:
            written = temporary.stat().st_mtime + self.clock_is_off
            os.utime(temporary, (written, written))
        temporary.replace(self._path)

    def drop_stopped(self) -> None:
        """Drop what no plugin has come back to, as kubelet does five minutes after a stream's end."""
        kept = {name: each for name, each in self.endpoints.items() if each.stub is not None}
        if kept != self.endpoints:
            self.endpoints = kept
            self.write()

    def read(self) -> None:
        """Read the checkpoint, as at a start; one that cannot be read leaves nothing."""
        try:
            text = self._path.read_text()
        except (OSError, ValueError):
            text = ""
        self.endpoints = {each: Endpoint(stub=None) for each in self.take_up(text)}

    async def _allocate(
        self, pod: Pod, container: Container, resource: str, wanted: int, endpoint: Endpoint
    ) -> None:
        if not endpoint.healthy and endpoint.devices:
            raise AdmissionError(
                "no healthy devices present; cannot allocate unhealthy devices " + resource
            )
        picked = self._reusable(pod, resource)[:wanted]
        free = endpoint.healthy - self.taken(resource)
        missing = wanted - len(picked)
        if missing > len(free):
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(free)}"
            )
        plugin = self.plugin(resource)
        if endpoint.prefers and 0 < missing < len(free):
            picked += await self._preferred(plugin, free, picked, missing)
        rest = sorted(free - set(picked))
        self._random.shuffle(rest)
        picked += rest[: wanted - len(picked)]
        self._random.shuffle(picked)
        try:
            await self.grant(pod, container, resource, picked)
        except Exception as error:
            raise AdmissionError(f"rpc error: desc = {_text(error)}") from error

    async def _preferred(
        self, stub: rpc.DevicePluginStub, free: set[str], picked: list[str], missing: int
    ) -> list[str]:
        request = api.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=sorted(free | set(picked)),
            must_include_deviceIDs=picked,
            allocation_size=missing + len(picked),
        )
        try:
            answer = await stub.GetPreferredAllocation(request)
        except Exception as error:
            raise AdmissionError(f"rpc error: desc = {_text(error)}") from error
        wishes = [id_ for id_ in answer.container_responses[0].deviceIDs if id_ in free]
        return [id_ for id_ in wishes if id_ not in picked][:missing]

    def _check_again(self, entry: Entry, endpoint: Endpoint) -> None:
        """A pod that has its devices already is admitted only while they are healthy."""
        if endpoint.devices and not endpoint.healthy:
            raise AdmissionError(
                "no healthy devices present; cannot allocate unhealthy devices " + entry.resource
            )
        if not set(entry.ids) <= endpoint.healthy:
            raise AdmissionError(
                "previously allocated devices are no longer healthy; "
                "cannot allocate unhealthy devices " + entry.resource
            )

    def _reusable(self, pod: Pod, resource: str) -> list[str]:
        """Return what plain init containers of the pod have, for the next containers to use."""
        plain = {each.name for each in pod.spec.init_containers if not each.restartable}
        ids = [
            id_
            for entry in self.entries
            if entry.pod == pod.uid and entry.resource == resource and entry.container in plain
            for id_ in entry.ids
        ]
        used = {
            id_
            for entry in self.entries
            if entry.pod == pod.uid and entry.container not in plain
            for id_ in entry.ids
        }
        return [id_ for id_ in dict.fromkeys(ids) if id_ not in used]

    def _nodes(self, resource: str, id_: str) -> list[int]:
        endpoint = self.endpoints.get(resource)
        device = endpoint.devices.get(id_) if endpoint is not None else None
        return [node.ID for node in device.topology.nodes] if device is not None else []


def _text(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)
