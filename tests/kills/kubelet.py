"""Kubelet with its checkpoint, and the daemon's view of both, which may be old, lost or corrupt.

Who has which device, and what becomes of claims, is kept and written by the simulated kubelet's own
parts. Pods have steps of their own, since a story has no sockets: its time is not the machine's.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from holdfast.discovery.source import Sources
from holdfast.errors import KubeletError
from holdfast.kubelet.checkpoint import parse
from holdfast.model.ids import CheckpointId, DeviceId, DeviceName
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.runtime.watched import Watched
from kills.claims import Claims, Door
from kills.kernel import Kernel, Process
from kills.pods import TPU, Container, Pod, Runtime
from simulated.devicetable import DeviceTable

_SERVICE = "/system.slice/kubelet.service"
EMPTY = DeviceTable().checkpoint({})
"""A checkpoint in which no pod has anything."""
CORRUPT = "{"


class Plugin(Door, Protocol):
    """What kubelet calls; False: refused, or nobody is there."""

    async def allocate(self, devices: frozenset[DeviceId]) -> bool:
        """Answer Allocate."""
        ...

    async def start(self, devices: frozenset[DeviceId]) -> bool:
        """Answer PreStartContainer."""
        ...


class Kubelet:
    """Admits, starts and ends pods; its checkpoint are what the daemon asks for."""

    def __init__(
        self,
        kernel: Kernel,
        runtime: Runtime,
        devices: frozenset[DeviceId],
        claimed: frozenset[DeviceName],
        record: Path,
        *,
        plugin: Plugin,
    ) -> None:
        """Have *devices* by *plugin*, and *claimed* by claims, as *record* has them."""
        self.kernel = kernel
        self.claims = Claims(kernel, claimed, record, plugin)
        self._plugin = plugin
        self.runtime = runtime
        self.devices = devices
        self.pods: list[Pod] = []
        self.table = DeviceTable()
        self.file = EMPTY
        """The checkpoint."""
        self.version = CheckpointId("0")
        self._versions = itertools.count(1)
        self.api = True
        self.ready = True
        """Whether all sources of pods have been heard since its start."""
        self.network = True
        """Whether sandboxes get a network; without, claims are prepared and no pod starts."""
        self.process: Process | None = None
        self.start()

    def start(self) -> None:
        self.process = self.kernel.spawn("kubelet", _SERVICE, lambda: "it is kubelet")
        self.table.take_up(self.file)
        self.claims.record.start()
        self.ready = self.api

    def end(self) -> None:
        if self.process is not None:
            self.kernel.exit(self.process)
        self.process = None

    def write(self) -> None:
        self.kernel.clock.shift(0.01)
        self.file = self.table.checkpoint({TPU: sorted(self.devices)})
        self.touch()

    def touch(self) -> None:
        """Make the checkpoint another file than it was."""
        self.version = CheckpointId(str(next(self._versions)))

    def answer_list(self) -> None:
        """Drop what pods had that are over, where all sources have been heard."""
        self.ready |= self.api
        if self.ready:
            self.table.drop({pod.uid for pod in self.pods if pod.listed and not pod.over})

    async def admit(self, pod: Pod) -> bool:
        """Ask for the devices of each container; a refusal is the end of the pod."""
        if self.process is None or not (self.api or pod.static):
            pod.wanted, pod.over = False, True
            return False
        self.answer_list()
        self.pods.append(pod)
        for container in pod.containers:
            if not container.devices or await self._plugin.allocate(container.devices):
                if container.devices:
                    self._note(pod, container)
                    self.write()
                continue
            pod.wanted, pod.over = False, True
            return False
        return True

    async def sync(self) -> None:
        """Bring each pod nearer to what it is to be."""
        if self.process is None:
            return
        for pod in list(self.pods):
            if pod.over:
                continue
            if pod.deadline is not None:
                self._end_when_due(pod)
            elif pod.listed and self.runtime.up:
                await self._run(pod)
        await self.claims.unprepare()

    def end_pod(self, pod: Pod, *, leaks: bool) -> None:
        self.runtime.remove(pod, leaks=leaks)
        pod.wanted, pod.over = False, True

    def free(self) -> list[DeviceId]:
        return sorted(self.devices - self.table.taken(TPU))

    def _note(self, pod: Pod, container: Container) -> None:
        former = self.table.of(pod.uid, container.name, TPU)
        if former is not None:  # of a static pod that has come back
            self.table.entries.remove(former)
        self.table.note(pod.uid, TPU, sorted(container.devices), container=container.name)

    def _end_when_due(self, pod: Pod) -> None:
        now = self.kernel.clock.monotonic()
        runs = self.runtime.lives(pod)
        due = pod.deadline is not None and now >= pod.deadline
        if self.runtime.up and (due or not runs):
            self.end_pod(pod, leaks=self.kernel.rng.random() < 0.6)

    async def _run(self, pod: Pod) -> None:
        if not self.runtime.lives(pod):
            if not await self.claims.prepare(pod) or pod.over or not self.network:
                return
            for container in pod.containers:  # the runtime has lost them
                container.running = False
            self.runtime.start_sandbox(pod)
        for container in pod.containers:
            if container.running or container.done:
                continue
            if not await self._may_start(pod, container):
                return
            self.kernel.say(f"{pod} starts {container.name}")
            self.runtime.start(pod, container)
            if container.init:
                self.runtime.stop(pod, container, leaks=False)

    async def _may_start(self, pod: Pod, container: Container) -> bool:
        if not container.devices:
            return True
        known = self.table.of(pod.uid, container.name, TPU)  # else it refuses by itself
        return known is not None and await self._plugin.start(container.devices) and not pod.over


class Reader:
    """What the daemon knows of kubelet's checkpoint, by the rules of the daemon's own reader of it."""

    def __init__(
        self, kubelet: Kubelet, meanwhile: Callable[[], Awaitable[None]], *, asks: bool
    ) -> None:
        """Let *meanwhile* happen around each answer that is waited for; *asks*: as it should."""
        self.view: Watched[KubeletView] = Watched(KubeletView())
        self.wanted = False
        self._kubelet = kubelet
        self._clock = kubelet.kernel.clock
        self._meanwhile = meanwhile
        self._asks = asks
        self._read: tuple[CheckpointId, object] | None = None
        self._last = float("-inf")
        self._asking: asyncio.Future[KubeletView | None] | None = None

    def ask(self, reason: str) -> None:
        self.wanted = True

    async def answered_after(self, moment: float, timeout: float) -> KubeletView | None:
        if not self._asks:
            return self.view.value
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._asked())
        view = await self._asking
        return view if view is not None and moment < view.asked_at else None

    async def _asked(self) -> KubeletView | None:
        """Answer all who wait at once; who has his answer acts on it before anything happens."""
        for _ in range(100):
            await asyncio.sleep(0)
        await self._meanwhile()
        answered = self._question()
        view = self.view.value
        await self._meanwhile()
        return view if answered else None

    def turn(self, *, active: bool) -> None:
        """Do what is due: read a checkpoint that changed, ask where somebody wished it."""
        self.read()
        since = self._clock.monotonic() - self._last
        if (self.wanted and since >= 1.0) or (active and since >= 60.0):
            self._question()

    async def refresh(self) -> KubeletView:
        self.read()
        return self.view.value

    def read(self) -> None:
        kubelet, was = self._kubelet, self.view.value
        file = (kubelet.version, kubelet.file)
        if file == self._read:
            return
        self._read = file
        try:
            entries = _entries(kubelet.file)
        except KubeletError as error:
            self.view.set(
                replace(
                    was,
                    readable=False,
                    answered=False,
                    problem=str(error),
                    file=kubelet.version,
                    read_at=self._clock.uptime(),
                )
            )
            return
        same = set(entries) == set(was.entries)
        self.view.set(
            replace(
                was,
                entries=was.entries if same else entries,
                readable=True,
                problem="",
                file=kubelet.version,
                read_at=self._clock.uptime(),
                answered=was.answered and same,
            )
        )
        self.wanted = True

    def _question(self) -> bool:
        kubelet, was = self._kubelet, self.view.value
        self._last = self._clock.monotonic()
        if kubelet.process is None:
            self.wanted = True
            return False
        self._clock.shift(0.01)
        began = self._clock.uptime()
        kubelet.answer_list()
        kubelet.write()
        self.wanted = False
        self._read = (kubelet.version, kubelet.file)
        self.view.set(
            KubeletView(
                entries=_entries(kubelet.file),
                readable=True,
                problem="",
                file=kubelet.version,
                read_at=self._clock.uptime(),
                kubelet=kubelet.process.id,
                questions=was.questions + 1,
                asked_at=began,
                sent_at=began,
                answered=True,
            )
        )
        return True


def _entries(checkpoint: str) -> tuple[CheckpointEntry, ...]:
    return parse(checkpoint.encode(), Sources()).entries
