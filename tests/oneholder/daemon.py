"""The daemon of a play: its real door of claims, ledger and CDI folder, and a watcher of one chip."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fakes.doors import WatchedNode
from fakes.observers import Unobserved
from holdfast.allocation.allocator import GrantBuilder
from holdfast.allocation.entry import Entry
from holdfast.discovery.source import Sources
from holdfast.dra.claimdoor import LONGEST, ClaimDoor
from holdfast.dra.preparation import POLL, ClaimPreparation, ClaimRelease
from holdfast.dra.records import ClaimRecords
from holdfast.dra.server import DEADLINE, ClaimServer
from holdfast.dra.specs import ClaimSpecs
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.root import HostRoot
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.book.claims import release
from holdfast.model.book.pods import Observation, PodSighting, reconcile
from holdfast.model.book.proof import call_foreign
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, plain
from holdfast.model.ids import (
    BootId,
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import KubeletView
from holdfast.model.use.free import (
    FormerPod,
    Freedom,
    KernelFacts,
    ReleaseFacts,
    is_foreign,
    judge_release,
)
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.watched import Nudges, Watched
from oneholder.pods import CHIP, DRIVER, POOL, TPU
from oneholder.virtualtime import VirtualLane
from simulated.drastate import STATE

if TYPE_CHECKING:
    from oneholder.node import ClaimNode

_BOOT = BootId("boot-1")
PATIENCE = 120.0
"""`dra.unprepareWait` as it comes."""
_READS = 6
"""Reads of kubelet's record until it is compared: one comparison may just have begun."""
_COMPARE = 20.0
"""Seconds after which the book is compared although nothing has changed."""


class _Use(DeviceUse):
    """What the kernel shows of the chip."""

    def __init__(self, node: "ClaimNode") -> None:
        self._node = node
        self.exits = Watched(0)

    async def facts(self, devices: Iterable[Device]) -> dict[DeviceName, KernelFacts]:
        await asyncio.sleep(0)
        return {each.name: self.now() for each in devices}

    def now(self) -> KernelFacts:
        holders = [
            Holder(
                process=ProcessId(100 + number, 1),
                command="work",
                access=frozenset({DeviceAccess.NODE}),
                pod=PodUid(pod.uid),
            )
            for number, pod in enumerate(self._node.pods)
            if pod.holds
        ]
        return KernelFacts(holders=tuple(holders))


class _Reader(KubeletReader):
    """The kubelet that the daemon knows: it learns of another one a moment later."""

    def __init__(self, node: "ClaimNode") -> None:
        self._node = node
        self.view = Watched(KubeletView())

    def ask(self, _reason: str) -> None:
        self._node.loop.call_later(0.2, self.learn)

    def learn(self) -> None:
        now = self._node.clock.uptime()
        view = KubeletView(readable=True, read_at=now, answered=True, asked_at=now)
        kubelet = self._node.kubelet
        if kubelet.up and self.view.value.kubelet != kubelet.process:
            self.view.set(replace(view, kubelet=kubelet.process))

    async def refresh(self) -> KubeletView:
        return self.view.value

    async def answered_after(self, _moment: float, _timeout: float) -> KubeletView | None:
        return self.view.value


class PlayedDaemon:
    """The daemon's parts for claims, and a watcher of its one chip."""

    def __init__(self, node: "ClaimNode", folder: Path) -> None:
        self.folder = folder
        self.dying = False
        self.gone = asyncio.Event()
        self.up = False
        self.written = Nudges()
        self.reader = _Reader(node)
        self._node = node
        self._use = _Use(node)
        self._watch = WatchedNode()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ledger: Ledger | None = None
        self.server: ClaimServer | None = None
        self._calm_at = 0.0
        self._compared_at = 0.0
        self._known: object = None

    @property
    def calm(self) -> bool:
        """Whether it has had the time to see what there is."""
        compared = self._node.loop.now - _READS * self._node.reads
        return self.up and compared >= max(self._calm_at, self._node.kubelet.written_at)

    @property
    def locks(self) -> list[DeviceLock]:
        return [] if self._ledger is None else [*self._ledger.book.value.locks.values()]

    async def start(self) -> None:
        """Do what the daemon does at its start, in that order."""
        node, clock = self._node, self._node.clock
        lost = not any(self.folder.iterdir())
        try:
            lane = VirtualLane("ledger", around=self._around)
            ledger = await open_ledger(self.folder, lane, clock=clock, boot=_BOOT, locks=())
            self._ledger = ledger
            ledger.store._db.set_trace_callback(lambda _text: node.point())
            self._build(ledger)
            self.reader.learn()
            await self._beat()
            await self._records.catch_up()
        except asyncio.CancelledError:
            return
        self.spawn(self._watches())
        self.spawn(self._records.run())
        self.up = True
        # Without a ledger what a claim has is foreign at first, until the second beat.
        self._calm_at = self._node.loop.now + (2.5 if lost else 1.0)
        self.reader.ask("the start")

    def _build(self, ledger: Ledger) -> None:
        node, clock = self._node, self._node.clock
        inventory = Watched(Inventory(resources=(TPU,), devices=(CHIP,)))
        specs = ClaimSpecs(
            SpecFolder(node.specs, prefix=f"{DRIVER}-claim"),
            driver=DRIVER,
            root=HostRoot.under(node.root),
            lane=VirtualLane("cdi", around=self._around_spec),
        )
        granting = GrantBuilder(Sources(), None)
        self._records = ClaimRecords(
            driver=DRIVER,
            pool=POOL,
            file=node.root / "kubelet" / STATE,
            claims=node,
            ledger=ledger,
            inventory=inventory,
            sight=self,
            specs=specs,
            granting=granting,
            lane=VirtualLane("kubelet", around=self._around, takes=node.reads),
            written=self.written,
            kubelet=lambda: self.reader.view.value.kubelet,
            clock=clock,
        )
        entry = Entry(
            ledger=ledger,
            inventory=inventory,
            view=self.reader.view,
            look=self._use,
            watcher=self._watch,
            resetter=self._watch,
            clock=clock,
            poll=Watched(POLL),
        )
        preparing = ClaimPreparation(
            driver=DRIVER,
            pool=POOL,
            entry=entry,
            claims=node,
            record=self._records,
            advertised=self.advertised,
            serves=self.serves,
            ledger=ledger,
            inventory=inventory,
            granting=granting,
            specs=specs,
            clock=clock,
            observer=Unobserved(),
        )
        unpreparing = ClaimRelease(
            ledger=ledger,
            reader=self.reader,
            record=self._records,
            specs=specs,
            watcher=self._watch,
            clock=clock,
            patience=Watched(PATIENCE),
            observer=Unobserved(),
        )
        door = ClaimDoor(preparing, unpreparing, clock=clock, longest=LONGEST)
        self.server = ClaimServer(door, deadline=DEADLINE)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._node.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        """End as by SIGKILL: nothing that is left of its work has an effect."""
        self.up = False
        self.gone.set()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ledger is not None:
            self._ledger.store.close()
            self._ledger = None

    def advertised(self) -> Sequence[AdvertisedDevice]:
        return (plain(CHIP),)

    def known(self) -> Mapping[str, AdvertisedDevice]:
        return {each.name: each for each in self.advertised()}

    def serves(self, resource: ResourceName) -> bool:
        return resource == TPU

    async def with_cgroup(self, pods: Collection[PodUid]) -> Mapping[PodUid, bool]:
        await asyncio.sleep(0)
        there = (each for each in self._node.pods if each.cgroup or each.holds)
        return {uid: each.holds for each in there if (uid := PodUid(each.uid)) in pods}

    def _around(self, call: Callable[[], Any]) -> Any:
        if self.dying:
            raise asyncio.CancelledError
        answer = call()
        if self.dying:
            raise asyncio.CancelledError
        return answer

    def _around_spec(self, call: Callable[[], Any]) -> Any:
        self._node.point()
        answer = self._around(call)
        self._node.point()
        if self.dying:
            raise asyncio.CancelledError
        return answer

    async def _watches(self) -> None:
        self._watch.looked.set()
        while True:
            await asyncio.sleep(1.0)
            await self._beat()

    async def _beat(self) -> None:
        """Do as the watcher does: compare the book, and free what is free."""
        ledger, node = self._ledger, self._node
        assert ledger is not None
        pods = [(pod.uid, pod.cgroup, pod.holds) for pod in node.pods]
        known = (ledger.book.version, self.reader.view.version, pods)
        if known == self._known and node.loop.now < self._compared_at + _COMPARE:
            return
        self._known, self._compared_at = known, node.loop.now
        seen = {
            PodUid(pod.uid): PodSighting(
                cgroup=f"/{pod.uid}",
                inode=1,
                populated=pod.holds,
                processes=(1,) if pod.holds else (),
            )
            for pod in node.pods
            if pod.cgroup or pod.holds
        }
        observed = Observation(
            view=self.reader.view.value,
            inventory=Inventory(resources=(TPU,), devices=(CHIP,)),
            boot=_BOOT,
            sightings=seen,
            pending_timeout=60.0,
        )
        await ledger.apply_if_changing(lambda draft: reconcile(draft, observed))
        kernel = self._use.now()
        if is_foreign(kernel):
            await ledger.apply_if_changing(partial(call_foreign, device=CHIP, reason="in use"))
        for lock in [*ledger.book.value.locks.values()]:
            if lock.state is LockState.HELD:
                continue
            facts = ReleaseFacts(
                unseen_grace=30.0,
                kernel=kernel,
                pod=_former(ledger.book.value, lock.pod, seen),
                nobodys=lock.state is LockState.FOREIGN,
            )
            if judge_release(facts).freedom is Freedom.FREE:
                await ledger.if_unmoved(lock, partial(release, lock=lock, evidence="free"))
        self._watch.nudges.set(self._watch.nudges.value + 1)


def _former(book: Book, pod: PodUid | None, seen: Mapping[PodUid, PodSighting]) -> FormerPod | None:
    if pod is None:
        return None
    record, sighting = book.pods.get(pod), seen.get(pod)
    return FormerPod(
        counted=False,
        populated=False if sighting is None else sighting.populated,
        processes=None if sighting is None else sighting.processes,
        cgroup_seen=record is not None and record.cgroup is not None,
        uncounted_for=60.0,
    )
