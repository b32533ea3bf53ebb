"""The daemon's deciding parts, put together on the kernel in memory; it can be killed anywhere."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from msgspec import Struct, field, structs

from fakes.books import BOOT
from fakes.doors import entry_over, why_wait
from fakes.observers import Unobserved
from fakes.reclaimer import reclaimer
from fakes.watchers import watcher_of
from holdfast.allocation.allocator import GrantBuilder
from holdfast.allocation.entry import Wait
from holdfast.discovery.source import Sources
from holdfast.dra.door import ClaimReader
from holdfast.dra.preparation import ClaimPreparation, ClaimRelease, ClaimVisit
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import ClaimRefusedError, HoldfastError
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.root import HostRoot
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.disk import FILE
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.book import DeviceLock
from holdfast.model.book.claims import Wish
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import plain
from holdfast.model.dra.passage import results_for
from holdfast.model.gate.gate import Passage, enter, who_calls
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey
from holdfast.model.reclaim.ending import EndFacts, Member, Warrant, why_spare
from holdfast.model.use.free import Freedom, KernelFacts, judge_kernel
from holdfast.reclaim.evidence import Evidence, PodJudge
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import PodSightings
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings.sections import GateSettings, ReclaimSettings
from kills.claims import DRIVER, NODE, Claim
from kills.claimside import ClaimSide
from kills.edges import (
    DaemonKilledError,
    InlineLane,
    MemoryCgroups,
    MemoryLook,
    MemoryPaths,
    MemoryPidfds,
    MemoryProcfs,
    MemoryRuntimeFiles,
)
from kills.kubelet import Kubelet, Reader
from kills.pods import CLAIMED, LINKS, TPU

OWN_PID = 4_999_999
_PATIENCE = 120.0

Judge = Callable[[EndFacts], str | None]


class Guards(Struct, frozen=True, kw_only=True):
    """The guards as they are; a test that shows what one is for takes it away."""

    judge: Judge = why_spare
    asks_again: bool = True
    checks_start_times: bool = True
    thaws: bool = True
    settings: ReclaimSettings = field(default_factory=ReclaimSettings)


class _Judge(PodJudge, frozen=True, kw_only=True):
    """Judges by a rule that may lack a guard."""

    rule: Judge

    def why_spare(self, each: Member, telling: Sequence[Member]) -> str | None:
        return self.rule(self.evidence.facts(self, each, telling))


class _Evidence(Evidence, frozen=True, kw_only=True):
    rule: Judge

    def judging(
        self, warrant: Warrant, members: tuple[Member, ...], asked_at: float = -math.inf
    ) -> PodJudge:
        made = super().judging(warrant, members, asked_at)
        return _Judge(**structs.asdict(made), rule=self.rule)


class _NoResetter(Resetter):
    """Finds every device in order at once: the true one looks at it on a thread, in real time."""

    async def detains(self, lock: DeviceLock) -> str:
        return ""

    def clears(self, lock: DeviceLock, device: Device | None, facts: KernelFacts) -> str | None:
        return ""


class Daemon:
    """Ledger, watcher and reclaimer as the daemon has them. Its state survives it, no more."""

    def __init__(
        self,
        state: Path,
        *,
        kubelet: Kubelet,
        inventory: Inventory,
        meanwhile: Callable[[], Awaitable[None]],
        happens: Callable[[], None],
        guards: Guards,
    ) -> None:
        """Let things happen at every place where it waits for others."""
        self._state = state
        self._kubelet = kubelet
        self._inventory = inventory
        self._meanwhile = meanwhile
        self._happens = happens
        self._guards = guards
        self._ledger: Ledger | None = None
        self._busy = False

    @property
    def up(self) -> bool:
        return self._ledger is not None

    async def start(self) -> None:
        kernel, clock = self._kubelet.kernel, self._kubelet.kernel.clock
        self.lane = lane = InlineLane()
        self._ledger = ledger = await open_ledger(
            self._state, lane, clock=clock, boot=BOOT, locks=()
        )
        self._reader = reader = Reader(self._kubelet, self._meanwhile, asks=self._guards.asks_again)
        procfs, cgroups = MemoryProcfs(kernel), MemoryCgroups(kernel, lane)
        self._pidfds = MemoryPidfds(kernel, self._happens, checks=self._guards.checks_start_times)
        self._paths = MemoryPaths(kernel)
        self._look = MemoryLook(kernel, procfs)
        settings = self._guards.settings
        self._use = DeviceUse(
            look=self._look,
            pidfds=self._pidfds,
            clock=clock,
            book=ledger.book,
            rescan=Watched(settings.foreign_scan),
            exclusive_open=Watched(False),
        )
        self._pods = pods = Pods(
            cgroups=cgroups,
            runtimes=MemoryRuntimeFiles(self._kubelet.runtime.state),
            procfs=procfs,
            pidfds=self._pidfds,
            lane=lane,
            ledger=ledger,
        )
        nudges = Nudges()
        sightings = PodSightings(
            cgroups=cgroups,
            paths=self._paths,
            lane=lane,
            clock=clock,
            nudges=nudges,
        )
        self._resetter = resetter = _NoResetter(
            ledger=ledger,
            control=FunctionControl(HostRoot.under(self._state)),
            clock=clock,
            settings=Watched(settings),
            nudges=Nudges(),
            count=Unobserved().reclaimed,
        )
        self._watcher = watcher_of(
            ledger=ledger,
            inventory=Watched(self._inventory),
            reader=reader,
            use=self._use,
            pods=sightings,
            reclaimer=reclaimer(
                ledger=ledger,
                reader=reader,
                pods=pods,
                clock=clock,
                settings=Watched(settings),
                own_pid=OWN_PID,
                kind=partial(_Evidence, rule=self._guards.judge),
            ),
            resetter=resetter,
            clock=clock,
            settings=Watched(settings),
            nudges=nudges,
        )
        self._open_second_door(ledger, reader)
        reader.read()
        await self._watcher.catch_up()
        await self.claims.turn()

    def _open_second_door(self, ledger: Ledger, reader: Reader) -> None:
        clock, watcher = self._kubelet.kernel.clock, self._watcher
        folder = self._state / "cdi"
        folder.mkdir(exist_ok=True)
        specs = ClaimSpecs(
            SpecFolder(folder, prefix="claims"),
            driver=DRIVER,
            root=self._links(),
            lane=self.lane,
        )
        claimed = [each for each in self._inventory.devices if each.name.resource == CLAIMED]
        self.claims = ClaimSide(
            self._kubelet,
            ledger=ledger,
            inventory=self._inventory,
            claimed=claimed,
            specs=specs,
            lane=self.lane,
            meanwhile=self._meanwhile,
            reader=reader,
        )
        self._preparing = ClaimPreparation(
            driver=DRIVER,
            pool=NODE,
            entry=entry_over(
                ledger,
                self._use,
                inventory=Watched(self._inventory),
                reader=reader,
                watcher=watcher,
                resetter=self._resetter,
                clock=clock,
                settings=GateSettings(exclusive_open=False),
            ),
            claims=cast("ClaimReader", None),  # kubelet has read the claim
            record=self.claims.records,
            advertised=lambda: [*map(plain, claimed)],
            serves=CLAIMED.__eq__,
            ledger=ledger,
            inventory=Watched(self._inventory),
            granting=GrantBuilder(Sources(), None),
            specs=specs,
            clock=clock,
            observer=Unobserved(),
        )
        self._unpreparing = ClaimRelease(
            ledger=ledger,
            reader=reader,
            record=self.claims.records,
            specs=specs,
            watcher=watcher,
            clock=clock,
            patience=Watched(_PATIENCE),
            observer=Unobserved(),
        )

    def _links(self) -> HostRoot:
        """Return a root with the nodes of what comes by claims."""
        root = HostRoot.under(self._state / "node")
        for path, to in LINKS.items():
            link = root.node(path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(to)
        return root

    def lose_ledger(self) -> None:
        """Let the ledger's files be gone, while nobody runs."""
        for each in self._state.glob(f"{FILE}*"):
            each.unlink()

    async def end(self) -> None:
        """Let it die: what it had in memory is lost."""
        if self._ledger is not None:
            self._kubelet.kernel.answer_late()  # no process ends within a call
            self._pidfds.close()
            self._paths.close()
            self.lane.calls_left = None
            await self._ledger.close()
            self._ledger = None

    async def beat(self) -> None:
        if self._ledger is None:
            return
        try:
            if self._guards.thaws:
                await self._pods.thaw()
            self._reader.turn(active=bool(self._ledger.book.value.locks))
            await self.claims.turn()
            await self._watcher._beat()
        except (HoldfastError, OSError) as error:
            self._kubelet.kernel.say(f"the daemon cannot watch: {error}")
        except DaemonKilledError:
            self._kubelet.kernel.say("the daemon is killed")
            await self.end()

    async def allocate(self, devices: frozenset[DeviceId]) -> bool:
        ledger = self._ledger
        if ledger is None:
            return False
        keys, version = self._keys(devices), self._kubelet.version

        def decide(draft: Draft) -> None:
            draft.allocate(TPU, keys, checkpoint=version)
            settle(draft)

        try:
            await ledger.apply(decide)
        except DaemonKilledError:
            await self.end()
            return False
        return True

    async def pass_gate(self, devices: frozenset[DeviceId]) -> bool:
        ledger = self._ledger
        if ledger is None or not self._watcher.looked.is_set():
            return False
        try:
            return await self._pass(ledger, devices)
        except DaemonKilledError:
            await self.end()
            return False

    async def prepare(self, claim: Claim) -> bool:
        """Try once, and leave it to kubelet to ask again."""
        if self._ledger is None:
            return False
        try:
            results = results_for(claim.read(), claim.ref, driver=DRIVER, pool=NODE)
            visit = ClaimVisit(
                what=f"claim {claim}",
                passed="claim prepared",
                since=0.0,
                claim=claim.read(),
                wish=Wish(ref=claim.ref, pods={}, devices={}),
                results=results,
            )
            return not (await self._preparing.entry._try(self._preparing, visit)).error
        except (Wait, ClaimRefusedError) as reason:
            self._kubelet.kernel.say(f"claim {claim} is not prepared: {reason}")
            return False
        except DaemonKilledError:
            await self.end()
            return False

    async def unprepare(self, claim: Claim) -> bool:
        """Try once, without waiting for its devices."""
        if self._ledger is None:
            return False
        try:
            now = self._kubelet.kernel.clock.monotonic()
            return not await self._unpreparing.unprepare(claim.ref, now)
        except DaemonKilledError:
            await self.end()
            return False

    async def _pass(self, ledger: Ledger, devices: frozenset[DeviceId]) -> bool:
        self._reader.read()
        keys = self._keys(devices)
        passage = Passage(resource=TPU, asked=devices, devices=keys)
        caller = who_calls(passage, self._reader.view.value, ledger.book.value)
        if len(caller.pods) > 1 or why_wait(passage, caller, ledger.book.value) is not None:
            self._reader.ask("a gate waits")
            return False
        wanted = [each for each in self._inventory.devices if each.name.id in devices]
        facts = await self._look.scan(wanted, ledger.book.value.locks)
        if any(judge_kernel(each).freedom is Freedom.IN_USE for each in facts.values()):
            return False
        return await ledger.apply(lambda draft: enter(draft, passage, caller, "free")) is None

    def _keys(self, devices: frozenset[DeviceId]) -> dict[DeviceId, frozenset[HardwareKey]]:
        found: dict[DeviceId, frozenset[HardwareKey]] = {}
        for id_ in sorted(devices):
            device = self._inventory.get(DeviceName(TPU, id_))
            if device is not None:
                found[id_] = device.keys
        return found
