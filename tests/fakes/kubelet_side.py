"""The kubelet side of the daemon, wired as the daemon wires it, with decisions a test can set.

The kubelet that it meets is the simulated one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.deciding import Decisions
from fakes.observers import Unobserved
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast.discovery.source import Sources
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.plugin import (
    CallDeadlines,
    DeviceDoor,
    DevicePlugin,
    PluginParts,
    PluginServer,
)
from holdfast.kubelet.podresources import PodResources, Traffic
from holdfast.kubelet.reader import CALM, DeviceLists, ViewReader
from holdfast.kubelet.registration import Registrar, RegistrationTimes
from holdfast.ledger.standings import EmptyPods
from holdfast.model.book.book import Book
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.grants import ContainerGrant, GrantedMount
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import QuestionSettings
from simulated.kubelet import Kubelet
from simulated.pods import Container, Pod
from waiting import until

TPU = ResourceName("google.com/tpu")
OTHER = ResourceName("example.com/other")

_DEADLINES = CallDeadlines()


def chips(*ids: str, unhealthy: str = "") -> tuple[OfferedDevice, ...]:
    return tuple(
        OfferedDevice(id=DeviceId(each), healthy=each != unhealthy, numa_node=0) for each in ids
    )


@dataclass
class Deciding(Decisions):
    """Allocator, gate and preference; each can be told to fail, and two of them to wait."""

    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def allocate(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> ContainerGrant:
        self.asked.append(ids)
        await self.decided()
        return ContainerGrant(
            nodes=tuple(f"/dev/vfio/{each}" for each in ids),
            envs={"CHIPS": ",".join(ids)},
            mounts=(GrantedMount(host_path="/lib/x", container_path="/lib/y"),),
            annotations={"a": "b"},
            cdi_devices=("google.com/tpu=0",),
        )

    async def pre_start(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> None:
        self.asked.append(ids)
        await self.decided()

    def preferred(
        self,
        resource: ResourceName,
        available: tuple[DeviceId, ...],
        must_include: tuple[DeviceId, ...],
        size: int,
    ) -> tuple[DeviceId, ...]:
        if self.fail is not None:
            raise self.fail
        return available[:size]

    @property
    def door(self) -> DeviceDoor:
        return DeviceDoor(
            allocate=self.allocate, pre_start=self.pre_start, preferred=self.preferred
        )


class _Lists(DeviceLists):
    def __init__(self, offers: Watched[Offers]) -> None:
        self._offers = offers

    @property
    def silent(self) -> bool:
        return False

    async def ready(self) -> None:
        await self._offers.until(lambda now: bool(now.devices))

    def resend(self) -> None:
        self._offers.set(replace(self._offers.value, resend=self._offers.value.resend + 1))


class _Processes(Procfs):
    """Those of this machine; it calls `dialled` when kubelet's socket was, and can pretend."""

    def __init__(self, dialled: Callable[[], None]) -> None:
        super().__init__(HostRoot.under())
        self._dialled = dialled
        self.pretended: list[int] = []

    def start_ticks(self, pid: int) -> int | None:
        self._dialled()
        return self.pretended.pop(0) if self.pretended else super().start_ticks(pid)


@dataclass
class Side:
    folder: Path
    offers: Watched[Offers]
    deciding: Deciding
    traffic: Traffic
    watch: FolderWatch
    registrar: Registrar
    reader: ViewReader
    started: list[int]
    """When kubelet is to seem to have started, in ticks, at its next questions."""

    def state(self, resource: ResourceName = TPU) -> object:
        return self.registrar.registrations.value.get(resource)

    def registered(self, resource: ResourceName = TPU, *, times: int = 1) -> bool:
        state = self.registrar.registrations.value.get(resource)
        return (
            state is not None
            and state.registered
            and state.registrations >= times
            and state.streams > 0
        )

    def problem(self, resource: ResourceName = TPU) -> str:
        state = self.registrar.registrations.value.get(resource)
        return "" if state is None else state.problem

    def offer(self, resource: ResourceName, devices: tuple[OfferedDevice, ...]) -> None:
        now = self.offers.value
        self.offers.set(replace(now, devices={**now.devices, resource: devices}))

    def resend(self) -> None:
        _Lists(self.offers).resend()


_ENROLMENT, _QUESTION = RegistrationTimes(register=12.0), QuestionSettings()


@contextlib.asynccontextmanager
async def kubelet_side(
    base: Path,
    *,
    resources: tuple[ResourceName, ...] = (TPU,),
    enrolment: RegistrationTimes = _ENROLMENT,
    questions: QuestionSettings = _QUESTION,
    calm: float = CALM,
    book: Watched[Book] | None = None,
    interval: float = 0.5,
    dialled: Callable[[], None] = lambda: None,
    deadlines: CallDeadlines = _DEADLINES,
) -> AsyncIterator[Side]:
    """Yield the kubelet side of a daemon below *base*.

    `dialled` is called on the lane, where it may block, whenever kubelet's socket was dialled.
    """
    clock, paths, lane = SystemClock(), PathWatcher(), Lane("kubelet", deadline=60.0)
    offers = Watched(Offers(devices={each: chips("a", "b") for each in resources}))
    deciding, traffic = Deciding(), Traffic()
    folder = base / "dp"
    watch = FolderWatch(
        folder=folder, prefix="holdfast-", paths=paths, lane=lane, interval=Watched(interval)
    )
    view = Watched(KubeletView())
    registrar = Registrar(
        plugins=PluginParts(
            offers=offers,
            door=deciding.door,
            traffic=traffic,
            emptied=EmptyPods(),
            calls=Unobserved(),
            clock=clock,
            deadlines=deadlines,
        ),
        folder=watch,
        prefix="holdfast",
        times=Watched(enrolment),
        view=view,
    )
    processes = _Processes(dialled)
    reader = ViewReader(
        view=view,
        folder=watch,
        pods=PodResources(base / "pr.sock", deadline=Watched(2.0)),
        traffic=traffic,
        procfs=processes,
        lists=_Lists(offers),
        book=book or Watched(Book()),
        promises=Sources(),
        lane=lane,
        clock=clock,
        settings=Watched(questions),
        calm=calm,
    )
    side = Side(folder, offers, deciding, traffic, watch, registrar, reader, processes.pretended)
    tasks = [asyncio.create_task(each.run()) for each in (watch, registrar, reader)]
    try:
        yield side
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        deciding.hold.set()
        await registrar.close()
        paths.close()
        lane.close(patience=2.0)
        for end in ended:
            assert isinstance(end, asyncio.CancelledError), end


class _NoContainers:
    """A runtime for pods of which no container is ever started."""

    def enclose(self, pod: Pod) -> None:
        """It has no cgroup."""

    async def sandbox(self, pod: Pod) -> None:
        """Nothing of it runs."""

    async def start(
        self, pod: Pod, container: Container, grant: dp.ContainerAllocateResponse
    ) -> None:
        raise AssertionError("no container is to be started here")

    async def wait(self, pod: Pod, container: Container) -> int:
        raise AssertionError("no container was started here")

    async def stop(self, pod: Pod, grace: float) -> None:
        """Nothing of it runs."""

    async def remove(self, pod: Pod) -> None:
        """It has no cgroup."""


@contextlib.asynccontextmanager
async def kubelet_below(base: Path) -> AsyncIterator[Kubelet]:
    """Yield the kubelet that `kubelet_side` with the same *base* finds."""
    kubelet = Kubelet(base / "dp", base / "pr.sock", _NoContainers())
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.close()


async def registered(side: Side, *, times: int = 1) -> None:
    await until(lambda: side.registered(times=times), what=f"registration {times}")


@contextlib.asynccontextmanager
async def registered_side(base: Path, **options: Any) -> AsyncIterator[tuple[Kubelet, Side]]:
    """Yield a kubelet below *base* and a kubelet side with *options* that has registered there."""
    async with kubelet_below(base) as kubelet, kubelet_side(base, **options) as side:
        await registered(side)
        yield kubelet, side


def bare_plugin(deciding: Deciding, traffic: Traffic | None = None) -> DevicePlugin:
    return DevicePlugin(
        TPU,
        PluginParts(
            offers=Watched(Offers()),
            door=deciding.door,
            traffic=traffic or Traffic(),
            emptied=EmptyPods(),
            calls=Unobserved(),
            clock=SystemClock(),
        ),
    )


def plugin_server(folder: Path, plugin: DevicePlugin) -> PluginServer:
    return PluginServer(folder=folder, prefix="holdfast", plugin=plugin, patience=2.5)
