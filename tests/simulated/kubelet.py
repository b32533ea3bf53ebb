"""A small kubelet: admits pods one by one, calls plugins as the real one does, starts pods."""

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from simulated.devicemanager import AdmissionError, DeviceManager, Endpoint
from simulated.dramanager import DraManager
from simulated.podresources import PodResourcesServer
from simulated.pods import Container, Phase, Pod, PodSpec
from simulated.podworker import KubeletTimes, PodWorker, Runtime

SOCKET = "kubelet.sock"
_RECONCILE = 60.0
"""Seconds between two looks for claims whose pods no longer count."""
Context = aio.ServicerContext[Any, Any]
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(
    rf"(?=[^/]{{1,244}}/){_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
)


class Kubelet(rpc.RegistrationServicer):
    """Kubelet 1.36 on one node, in one process with its caller.

    `pods` are those its sources name. Nothing here is quicker or kinder than the real one: see
    the reference for where each oddity was seen.
    """

    def __init__(
        self,
        folder: Path,
        pod_resources: Path,
        runtime: Runtime,
        *,
        times: KubeletTimes | None = None,
        dra: DraManager | None = None,
    ) -> None:
        """Serve kubelet.sock in *folder*; containers are started by *runtime*.

        Claims are *dra*'s; without, there are none.
        """
        self.folder = folder
        self.pods: dict[str, Pod] = {}
        self.devices = DeviceManager(folder)
        self.dra = dra
        self.sources_ready = True
        """Without its API server kubelet's sources are never ready, and it knows no pods."""
        self.hears = asyncio.Event()
        """While clear, messages of plugins wait to be read, as under load."""
        self.hears.set()
        self.pod_resources = PodResourcesServer(
            pod_resources, self.devices, active=self.active, sources=lambda: self.sources_ready
        )
        self.silent = False
        """Register is never answered."""
        self.refusal = ""
        """What Register is refused with; empty: it is not."""
        self.ends_streams = False
        """Each stream of a plugin is ended at its first message."""
        self.registrations: list[api.RegisterRequest] = []
        self.messages: dict[str, list[dict[str, str]]] = {}
        """The health of each device in each message of each resource's plugin."""
        self.tell: Callable[[Pod], None] = lambda _pod: None
        """Hears of pods whose status is another one now, as the API server does."""
        self._runtime = runtime
        self._times = times or KubeletTimes()
        self._server: aio.Server | None = None
        self._channels: defaultdict[str, list[aio.Channel]] = defaultdict(list)
        self._streams: list[asyncio.Task[None]] = []
        self._loops: list[asyncio.Task[None]] = []
        self._heard = asyncio.Event()
        """A message has come on the stream that was opened last."""
        self._workers: set[asyncio.Task[None]] = set()
        self._sync_loop = asyncio.Lock()
        self._up = asyncio.Event()
        self._worker = PodWorker(
            runtime,
            self.devices,
            self.dra,
            times=self._times,
            up=self._up,
            begin=self._work,
            tell=self._told,
        )
        self._stopping: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Sweep the plugins' sockets, read the checkpoint, serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        self.devices.read()
        self._worker.look()
        if self.dra is not None:
            await self.dra.start()
            self._loops.append(asyncio.create_task(self._unprepare_inactive(self.dra)))
        await self.pod_resources.start()
        self._server = aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.folder / SOCKET}")
        await self._server.start()
        self._up.set()

    @property
    def listens(self) -> bool:
        """Tell whether any plugin's stream is still read."""
        return not all(each.done() for each in self._streams)

    async def stop(self) -> None:
        """Stop, as at a restart: containers run on, and kubelet.sock stays without a listener."""
        self._up.clear()
        await _cancel(self._loops)
        if self.dra is not None:
            await self.dra.stop()
        await _cancel(self._streams)
        for channel in [each for known in self._channels.values() for each in known]:
            await channel.close()
        self._channels.clear()
        await self.pod_resources.stop()
        if self._server is not None:
            left = self.folder / f".{SOCKET}"
            # gRPC removes its socket when it stops; the real kubelet leaves its own behind.
            with contextlib.suppress(OSError):
                (self.folder / SOCKET).rename(left)
            await self._server.stop(None)
            with contextlib.suppress(OSError):
                left.rename(self.folder / SOCKET)

    async def restart(self) -> None:
        """Stop, and start again."""
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """End everything at once, for good or as when the node reboots: `start` and `readmit` follow."""
        await _cancel(list(self._workers))
        for pod in list(self.pods.values()):
            await self._runtime.stop(pod, 0.0)
        await self.stop()

    def active(self) -> list[Pod]:
        """Return the pods that count: not terminal, or not stopped yet."""
        if not self.sources_ready:
            return []
        return [pod for pod in self.pods.values() if not (pod.phase.terminal and pod.stopped)]

    async def submit(self, spec: PodSpec) -> Pod:
        """Admit a pod, or refuse it for good; either way return it with its status."""
        # One worker for each UID: a static pod that comes back under its own is admitted at once,
        # and starts when its former self is gone.
        former = self._stopping.get(spec.uid)
        pod = Pod(spec=spec)
        self.pods[spec.uid] = pod
        async with self._sync_loop:
            try:
                await self._admit(pod)
            except AdmissionError as error:
                _reject(pod, error)
                self.tell(pod)
                return pod
        self.tell(pod)
        self._work(self._worker.run(pod, former))
        return pod

    async def give(self, uid: str, resource: str, *ids: str) -> api.AllocateResponse:
        """Allocate exactly *ids* for a new pod, which does not start; return the plugin's answer."""
        pod = _unstarted(uid, f"pod-{uid}", resource, len(ids))
        async with self._sync_loop:
            answer = await self.devices.grant(pod, pod.spec.containers[0], resource, ids)
        self.pods[uid] = pod
        self.devices.write()
        return answer

    def count(self, resource: str, *ids: str, name: str = "counted") -> Pod:
        """Count a new pod that has *ids* without a call to the plugin, and does not start."""
        pod = _unstarted(str(uuid4()), name, resource, len(ids))
        self.pods[pod.uid] = pod
        self.devices.note(pod.uid, resource, ids)
        self.devices.write()
        return pod

    def forget(self) -> None:
        """Know no pods any more, and have no devices of any in the checkpoint."""
        self.pods.clear()
        self.devices.drop(())

    def delete(self, pod: Pod, *, grace: float = 30.0, force: bool = False) -> None:
        """Delete a pod; *force* (or a static pod's manifest removed) forgets it at once."""
        pod.deleting = True
        pod.changed.set()
        if force:
            self.pods.pop(pod.uid, None)
        self._stopping[pod.uid] = self._work(self._terminate(pod, grace))

    async def readmit(self) -> None:
        """Admit every pod anew, as after a reboot: with what the checkpoint says it has."""
        for pod in [pod for pod in self.pods.values() if not pod.phase.terminal]:
            pod.phase = Phase.PENDING
            async with self._sync_loop:
                try:
                    await self._admit(pod)
                except AdmissionError as error:
                    _reject(pod, error)
                    self.tell(pod)
                    continue
            self.tell(pod)
            self._work(self._worker.run(pod))

    async def Register(  # noqa: N802 - gRPC's name
        self, request: api.RegisterRequest, context: Context
    ) -> api.Empty:
        """Dial the plugin back and ask for its options, and only then answer."""
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        name = request.resource_name
        if request.version != "v1beta1":
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f'requested API version "{request.version}" is not supported by kubelet. '
                'Supported version is ["v1beta1"]',
            )
        if not _NAME.fullmatch(name) or "kubernetes.io/" in name or name.startswith("requests."):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{name}" is invalid')
        channel = aio.insecure_channel(
            f"unix://{self.folder / request.endpoint}", [("grpc.use_local_subchannel_pool", 1)]
        )
        stub = rpc.DevicePluginStub(channel)
        try:
            await asyncio.wait_for(channel.channel_ready(), self._times.dial)
            options = await stub.GetDevicePluginOptions(api.Empty())
        except (TimeoutError, aio.AioRpcError):
            await channel.close()
            await context.abort(
                grpc.StatusCode.UNKNOWN, "failed to dial device plugin: context deadline exceeded"
            )
        self._channels[name].append(channel)
        before = self.devices.endpoints.get(name)
        self.devices.endpoints[name] = Endpoint(
            stub=stub,
            devices=before.devices if before else {},
            prefers=options.get_preferred_allocation_available,
            pre_start=options.pre_start_required,
        )
        self.registrations.append(request)
        self._heard = asyncio.Event()
        self._streams.append(asyncio.create_task(self._listen(name, stub, self._heard)))
        return api.Empty()

    async def end_stream(self) -> None:
        """End the stream that was opened last, once a message has come on it."""
        await self._heard.wait()
        self._streams[-1].cancel()
        self.devices.endpoints[self.registrations[-1].resource_name].stop()

    async def _listen(
        self, resource: str, stub: rpc.DevicePluginStub, heard: asyncio.Event
    ) -> None:
        """Read one plugin's messages; when the stream ends it is not opened again."""
        stream = stub.ListAndWatch(api.Empty())
        with contextlib.suppress(aio.AioRpcError):
            async for message in stream:
                await self.hears.wait()
                endpoint = self.devices.endpoints.setdefault(resource, Endpoint(stub=None))
                endpoint.devices = {device.ID: device for device in message.devices}
                self.messages.setdefault(resource, []).append(
                    {device.ID: device.health for device in message.devices}
                )
                self.devices.write()
                heard.set()
                if self.ends_streams:
                    stream.cancel()
                    break
        # By name, even if this was the stream of a former plugin: a bug of kubelets before 1.37. It
        # closes the connection of the one that registered last.
        if left := self.devices.endpoints.get(resource):
            left.stop()
            await self._channels[resource][-1].close()

    async def _admit(self, pod: Pod) -> None:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            if container.limits and self.sources_ready:
                self.devices.drop({each.uid for each in self.active()})
            await self.devices.allocate(pod, container)

    async def _terminate(self, pod: Pod, grace: float) -> None:
        async with pod.sync:
            await self._runtime.stop(pod, grace)
        await self._worker.unprepare(pod)
        # No program here handles SIGTERM: what did not end by itself was ended by a signal.
        pod.phase = Phase.FAILED if not pod.phase.terminal else pod.phase
        pod.stopped = True
        self.tell(pod)
        if self.pods.get(pod.uid) is pod:  # and not its next incarnation
            del self.pods[pod.uid]
        await self._runtime.remove(pod)
        pod.gone = True
        self.tell(pod)

    async def _unprepare_inactive(self, dra: DraManager) -> None:
        while True:
            await dra.clock.sleep(_RECONCILE)
            await dra.unprepare_inactive({pod.uid for pod in self.active()})

    def _told(self, pod: Pod) -> None:
        self.tell(pod)

    def _work(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)
        return task


def _unstarted(uid: str, name: str, resource: str, count: int) -> Pod:
    container = Container(limits={resource: count})
    return Pod(spec=PodSpec(name=name, uid=uid, containers=(container,)))


def _reject(pod: Pod, error: AdmissionError) -> None:
    """Fail the pod for good."""
    pod.phase, pod.reason, pod.stopped = Phase.FAILED, "UnexpectedAdmissionError", True
    pod.message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
