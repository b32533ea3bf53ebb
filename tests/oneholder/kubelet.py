"""The kubelet of a play: the simulated DRA manager, and workers of pods without a socket.

Only what needs no socket can have a time that is not the machine's.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from holdfast.model.ids import ProcessId
from oneholder.pods import DRIVER, NAMESPACE, PlayedPod
from simulated.dramanager import DraError, DraManager
from simulated.draplugins import NearPlugin
from simulated.drastate import STATE, ClaimCache

if TYPE_CHECKING:
    from oneholder.node import ClaimNode

_AGAIN = {"prepare": 60.0, "unprepare": 15.0}
"""Seconds after which kubelet asks again."""


class _Calls:
    """Kubelet's connection to whichever daemon serves."""

    def __init__(self, node: "ClaimNode") -> None:
        self._node = node

    async def NodePrepareResources(self, request: Any) -> Any:  # noqa: N802 - as gRPC names it
        names = [claim.name for claim in request.claims]
        self._node.preparing.update(names)
        try:
            answer = await self._asked("prepare", request)
        finally:
            self._node.preparing.subtract(names)
        for claim in request.claims:
            if not answer.claims[claim.uid].error:
                self._node.prepared(claim.name)
        return answer

    async def NodeUnprepareResources(self, request: Any) -> Any:  # noqa: N802 - as gRPC names it
        recorded = {each.name: self._node.kubelet.recorded(each.name) for each in request.claims}
        return await self._asked("unprepare", request, recorded)

    async def _asked(
        self, call: str, request: Any, recorded: Mapping[str, Collection[str]] | None = None
    ) -> Any:
        daemon = self._node.daemon
        if not daemon.up or daemon.server is None:
            raise _away()
        for pods in (recorded or {}).values():
            for pod in self._node.pods:
                pod.given = pod.given and pod.uid not in pods

        async def ask() -> Any:
            answer = await getattr(daemon.server, call)(request, None)
            if daemon.dying:
                raise _away()
            for name, pods in (recorded or {}).items():
                if not answer.claims[f"uid-of-{name}"].error:
                    self._node.unprepared(name, pods)
            return answer

        asked = daemon.spawn(ask())
        died = asyncio.ensure_future(daemon.gone.wait())
        try:
            await asyncio.wait({asked, died}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() or asked.cancelled():
                raise _away()
            return asked.result()
        finally:
            asked.cancel()
            died.cancel()
            await asyncio.gather(asked, died, return_exceptions=True)


def _away() -> aio.AioRpcError:
    return aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), details="the driver is away"
    )


class _Record(ClaimCache):
    """Kubelet's record of claims, whose folder the daemon watches."""

    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        super().__init__(path)
        self._written = written

    def write(self) -> None:
        super().write()
        self._written()


class PlayedKubelet:
    """One kubelet after the other: its workers of pods, and its DRA manager."""

    def __init__(self, node: "ClaimNode", *, number: int) -> None:
        self._node = node
        self._number = number
        self.up = False
        self.workers: dict[PlayedPod, asyncio.Task[None]] = {}
        self.joined_at: dict[str, float] = {}
        self.written_at = 0.0
        self._loops: list[asyncio.Task[None]] = []
        self.failed: BaseException | None = None

    @property
    def process(self) -> ProcessId:
        return ProcessId(1000 + self._number, self._number)

    def begin(self) -> None:
        """Start, with what is on disk and what the API server has."""
        node = self._node
        self.manager = DraManager(
            node.root / "kubelet", objects=node.claim_object, clock=node.clock
        )
        self.manager.cache = _Record(node.root / "kubelet" / STATE, self._written)
        self.manager.cache.read()
        self.manager.plugins.plugins[DRIVER] = [NearPlugin(DRIVER, _Calls(node))]
        self.up = True
        node.loop.call_later(0.2, self._announced)
        for pod in node.pods:
            if pod.running and not pod.in_api:  # what it finds in the runtime, and nowhere else
                self._stop(pod)
            elif node.is_scheduled(pod):
                self.admit(pod)
        self._loops = [node.loop.create_task(self._unprepare_inactive())]

    async def restart(self) -> None:
        """Stop, which ends no container, and start half a second later."""
        await self.end()
        await asyncio.sleep(0.5)
        self._number += 1
        self.begin()

    async def end(self) -> None:
        self.up = False
        tasks = [*self.workers.values(), *self._loops]
        self.workers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops = []

    def admit(self, pod: PlayedPod) -> None:
        if self.up and pod not in self.workers:
            task = self._node.loop.create_task(self._work(pod))
            self.workers[pod] = task
            task.add_done_callback(self._noted)

    def recorded(self, claim: str) -> frozenset[str]:
        found = self.manager.cache.claims.get((NAMESPACE, claim))
        return frozenset() if found is None else frozenset(found.pods)

    def _written(self) -> None:
        self.written_at = now = self._node.loop.now
        known = {uid for info in self.manager.cache.claims.values() for uid in info.pods}
        for uid in known:
            self.joined_at.setdefault(uid, now)
        for pod in self._node.pods:
            # With the last pod of a claim a call came first; with any other none comes.
            pod.prepared = pod.prepared and pod.uid in known
            pod.given = pod.given and pod.uid in known
        daemon = self._node.daemon
        if not daemon.dying:
            daemon.written.nudge()

    def _announced(self) -> None:
        self._node.daemon.reader.learn()

    def _noted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failed = task.exception()

    async def _work(self, pod: PlayedPod) -> None:
        if not pod.running and not pod.deleting:
            await self._start(pod)
        await pod.asked.wait()
        self._stop(pod)
        while pod.stuck and pod.holds:
            await asyncio.sleep(1.0)
        await self._unprepare(pod)
        pod.cgroup = False
        del self.workers[pod]
        self._node.gone(pod)

    async def _start(self, pod: PlayedPod) -> None:
        node = self._node
        pod.cgroup = True
        while not pod.asked.is_set():
            try:
                await self.manager.prepare(pod.simulated)
            except DraError:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN["prepare"]):
                        await pod.asked.wait()
                continue
            pod.prepared = pod.given = True
            if pod.asked.is_set():
                return
            await asyncio.sleep(node.pulls)
            if pod.asked.is_set():
                return
            simulated = pod.simulated
            try:
                names = self.manager.cdi(simulated, simulated.spec.containers[0])
            except DraError:  # it has its sandbox, so nothing is prepared again for it
                pod.forgotten = True
                return
            node.starts(pod, names)
            pod.running = pod.holds = True
            return

    def _stop(self, pod: PlayedPod) -> None:
        pod.running = False
        pod.holds = pod.holds and pod.lingers

    async def _unprepare(self, pod: PlayedPod) -> None:
        while True:
            try:
                await self.manager.unprepare(pod.simulated)
            except DraError:
                await asyncio.sleep(_AGAIN["unprepare"])
                continue
            return

    async def _unprepare_inactive(self) -> None:
        await asyncio.sleep(self._node.looks)
        while True:
            active = {pod.uid for pod in self.workers if pod.in_api}
            working = {pod.uid for pod in self.workers} - active
            recorded = self.manager.cache.claims.values()
            self._node.forced += any(info.pods & working for info in recorded)
            await self.manager.unprepare_inactive(active)
            for pod in self._node.pods:
                pod.cgroup = pod.cgroup and pod in self.workers
            await asyncio.sleep(60.0)
