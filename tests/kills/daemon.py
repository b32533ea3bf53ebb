"""The daemon's deciding parts, put together on the kernel in memory; it can be killed anywhere."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from fakes.books import BOOT
from holdfast.allocation.sharedlook import SharedLook
from holdfast.dra.door import ClaimReader
from holdfast.dra.preparing import Node, Preparing, _NotYetError, _Waits
from holdfast.dra.specs import ClaimSpecs
from holdfast.dra.unpreparing import Unpreparing
from holdfast.errors import ClaimRefusedError, HoldfastError
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.root import HostRoot
from holdfast.ledger.files import FILE
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import DeviceLock
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import plain
from holdfast.model.dra.passage import results_for
from holdfast.model.gate.gate import Passage, enter, who_calls, why_wait
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid, ProcessId
from holdfast.model.reclaim.ending import EndFacts, why_spare
from holdfast.model.use.free import Freedom, KernelFacts, judge_kernel
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim
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
from kills.pods import CLAIMED, TPU

OWN_PID = 4_999_999
_PATIENCE = 120.0

Judge = Callable[[EndFacts], str | None]


class Guards(Struct, frozen=True, kw_only=True):
    """The guards as they are; a test that shows what one is for takes it away."""

    judge: Judge = why_spare
    asks_again: bool = True
    checks_start_times: bool = True
    settings: Reclaim = field(default_factory=Reclaim)


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
        self._ledger = ledger = await open_ledger(self._state, lane, clock=clock, boot=BOOT)
        self._reader = reader = Reader(self._kubelet, self._meanwhile, asks=self._guards.asks_again)
        procfs, cgroups = MemoryProcfs(kernel), MemoryCgroups(kernel)
        self._pidfds = MemoryPidfds(kernel, self._happens, checks=self._guards.checks_start_times)
        self._paths = MemoryPaths(kernel)
        self._look = MemoryLook(kernel, procfs)
        settings = self._guards.settings
        watch = KernelWatch(
            look=self._look,
            pidfds=self._pidfds,
            clock=clock,
            exited=self._holder_exited,
            rescan=Watched(settings.foreign_scan),
            exclusive_open=Watched(False),
        )
        pods = Pods(
            cgroups=cgroups,
            runtimes=MemoryRuntimeFiles(self._kubelet.runtime.state),
            procfs=procfs,
            pidfds=self._pidfds,
            lane=lane,
        )
        sightings = PodSightings(
            cgroups=cgroups,
            procfs=procfs,
            paths=self._paths,
            lane=lane,
            clock=clock,
            changed=self._pod_changed,
        )
        evidence = Evidence(
            ledger=ledger,
            reader=reader,
            pods=pods,
            clock=clock,
            settings=Watched(settings),
            question_timeout=Watched(5.0),
            own_pid=OWN_PID,
            judge=self._guards.judge,
        )
        reclaimer = Reclaimer(
            ledger=ledger,
            evidence=evidence,
            pods=pods,
            pidfds=self._pidfds,
            clock=clock,
        )
        resetter = _NoResetter(
            ledger=ledger,
            control=FunctionControl(HostRoot.under(self._state)),
            clock=clock,
            settings=Watched(settings),
            ended=lambda: None,
        )
        self._watcher = Watcher(
            ledger=ledger,
            inventory=Watched(self._inventory),
            reader=reader,
            kernel=watch,
            pods=sightings,
            reclaimer=reclaimer,
            resetter=resetter,
            clock=clock,
            settings=Watched(settings),
            pending_timeout=Watched(60.0),
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
            node_rdev=lambda _path: None,
            lane=self.lane,
        )
        claimed = [each for each in self._inventory.devices if each.name.resource == CLAIMED]
        self._preparing = Preparing(
            driver=DRIVER,
            pool=NODE,
            claims=cast("ClaimReader", None),  # kubelet has read the claim
            ledger=ledger,
            node=Node(
                inventory=Watched(self._inventory),
                advertised=lambda: list(map(plain, claimed)),
                serves=lambda resource: resource == CLAIMED,
                look=SharedLook(
                    self._look,
                    locks=lambda: ledger.book.value.locks,
                    clock=clock,
                    exclusive_open=Watched(False),
                ),
                looked=watcher.looked,
                obstacle=watcher.obstacle,
                at_work=lambda _keys: "",
                grant=lambda _resource, _devices, _inventory: ContainerGrant(),
                refuses=lambda _shares: "",
                stirred=watcher.nudges,
            ),
            specs=specs,
            clock=clock,
        )
        self._unpreparing = Unpreparing(
            ledger=ledger,
            view=reader.view,
            ask=reader.ask,
            specs=specs,
            obstacle=watcher.obstacle,
            nudges=watcher.nudges,
            clock=clock,
            patience=Watched(_PATIENCE),
        )
        self.claims = ClaimSide(
            self._kubelet,
            ledger=ledger,
            inventory=self._inventory,
            claimed=claimed,
            specs=specs,
            lane=self.lane,
            meanwhile=self._meanwhile,
        )

    def lose_ledger(self) -> None:
        """Let the ledger's files be gone, while nobody runs."""
        for each in self._state.glob(f"{FILE}*"):
            each.unlink()

    async def end(self) -> None:
        """Let it die: what it had in memory is lost."""
        if self._ledger is not None:
            self._pidfds.close()
            self._paths.close()
            self.lane.calls_left = None
            await self._ledger.close()
            self._ledger = None

    async def beat(self) -> None:
        if self._ledger is None:
            return
        try:
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
            return not (await self._preparing._try(claim.read(), results, _Waits(0.0))).error
        except (_NotYetError, ClaimRefusedError) as reason:
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

    def _holder_exited(self, process: ProcessId) -> None:
        self._watcher.holder_exited()

    def _pod_changed(self, pod: PodUid) -> None:
        self._watcher.pod_changed(pod)
