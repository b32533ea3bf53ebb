"""Follows how the GPUs are: hears events, looks now and then, remembers, publishes the health."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import HoldfastError, HostError, LaneStuckError, bug
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.devices import Fault
from holdfast.model.ids import BootId
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuEvent, GpuEventKind, GpuReading
from holdfast.model.nvidia.health import (
    NO_DRIVER,
    GpuHealth,
    GpuState,
    after_event,
    after_observation,
    condemning,
    healths,
    place_of,
    placed,
    restored,
)
from holdfast.model.nvidia.xids import Cure, GpuObservation, XidChecks, XidRecord
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched, pause
from holdfast.vendors.nvidia.gpuusers import GpuUsers, HealthTimes, keep, unanswered

if TYPE_CHECKING:
    from holdfast.host.nvidia.nvml import Nvml

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_RETRY = 1.0
_LAST_RETRY = 60.0
_HANGS = "its events cannot be received: NVML hangs in the wait for events"
_OVERDUE = 5.0
"""How much longer than asked a wait may take before nothing can be said to be heard, in seconds."""


class EventSubscription(Struct, frozen=True, kw_only=True):
    """Whose events are wanted.

    `library` as `GpuReading` has it; another `generation` is the same library, begun again.
    """

    library: str
    uuids: tuple[str, ...]
    generation: int = 0


class GpuEventThread(Struct, kw_only=True):
    """One daemon thread that subscribes, waits, and hands each event to the loop at once.

    It has an NVML of its own, begun and ended on its own thread: an event set that is freed while
    somebody waits on it is the end of the process. Where waiting fails it tries again, ever more
    seldom; an NVML that fails at once must not keep a core busy.

    `event` is called for each event, on the loop that runs when this is made; `source` makes an
    NVML of a library. `heard` is called with why some GPUs cannot be heard, by UUID, whenever that
    may have changed; what happened before is not told. `wait` is how long one wait blocks, in
    seconds.
    """

    source: Callable[[str], "Nvml"]
    event: Callable[[GpuEvent], None]
    heard: Callable[[Mapping[str, str]], None]
    wait: float
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _wanted: EventSubscription | None = None
    _changed: threading.Event = field(default_factory=threading.Event)
    _closed: bool = False
    _works: bool = False
    _due: float | None = None
    _thread: threading.Thread | None = None

    @property
    def overdue(self) -> bool:
        """Tell whether NVML has not come back from a call for far too long."""
        due = self._due
        return due is not None and time.monotonic() > due

    def want(self, wanted: EventSubscription | None) -> None:
        """Listen for *wanted* from now on, or for nothing; a wait that runs is seen to its end."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._changed.set()
        if wanted is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu-events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Hear of nothing more; the thread ends after its wait."""
        self._closed = True
        self._changed.set()

    def _work(self) -> None:
        problem = Problem(log, "cannot receive GPU events")
        retries = backoff(_FIRST_RETRY, _LAST_RETRY)
        while not self._closed:
            self._changed.clear()
            wanted = self._wanted
            if wanted is None:
                self._changed.wait()
                continue
            try:
                self._works = False
                self._listen(wanted)
            except Exception as error:  # noqa: BLE001 - without the thread no GPU is ever heard again
                foreseen = isinstance(error, HoldfastError)
                reason = str(error) if foreseen else bug(error)
                if self._works:
                    problem.set("")
                    retries = backoff(_FIRST_RETRY, _LAST_RETRY)
                problem.set(reason, exc_info=not foreseen)
                self._tell(self.heard, dict.fromkeys(wanted.uuids, reason))
                # A change of what is wanted is worth a new try at once.
                self._changed.wait(next(retries))
            else:
                problem.set("")

    def _listen(self, wanted: EventSubscription) -> None:
        """Hand on events until something else is wanted."""
        source = self.source(wanted.library)
        try:
            self._due = time.monotonic() + _OVERDUE
            source.open()
            unheard = source.subscribe(wanted.uuids)
            self._tell(self.heard, unheard)
            while not (self._closed or self._changed.is_set()):
                self._due = time.monotonic() + self.wait + _OVERDUE
                event = source.wait_event(self.wait)
                if self.overdue:  # somebody may have said that nothing is heard
                    self._tell(self.heard, unheard)
                self._works = True
                if event is not None:
                    self._tell(self.event, event)
        finally:  # which can hang as well as a wait
            self._due = time.monotonic() + _OVERDUE
            source.close()
            self._due = None

    def _tell(self, told: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed while we were away
            self._loop.call_soon_threadsafe(told, what)


class GpuHealthWatch(Struct, kw_only=True, dict=True):
    """Publishes what is wrong with each GPU and MIG slice, by UUID.

    An event is judged and published in the turn of the loop in which it arrives; a look and a
    commit follow. Looks are asked one GPU at a time on a lane of their own. One that hangs costs
    that GPU its health, and the others only their looks: what is known of them stays.

    It begins with what the ledger remembers; `source` makes an NVML of a library's name. `load`
    tells one load of the kernel's module from the next, on the lane; `users` tells who of the
    processes on a GPU has to go before it is over some Xids. `count` is called with each event, and
    whether it is one that condemns.
    """

    source: Callable[[str], "Nvml"]
    readings: Watched[GpuReading]
    ledger: Ledger
    lane: Lane
    clock: Clock
    boot: BootId
    checks: Watched[XidChecks]
    load: Callable[[], int | None]
    users: GpuUsers
    times: Watched[HealthTimes]
    count: Callable[[GpuEvent, bool], None]

    def __post_init__(self) -> None:
        self._kept = LedgerTopic(self.ledger, "nvidia/health", GpuState)
        self._states = {
            uuid: left
            for uuid, state in self._kept.value.items()
            if (left := restored(state, self.boot, self.clock.uptime(), self.checks.value))
            != GpuState(uuid=uuid, boot=self.boot)
        }
        self._reading = GpuReading()
        self._generation = 0
        self._loaded: int | None = None
        self._hears = False
        self._driver = ""
        """The version and load that the last look found; empty: none since the driver is ready."""
        self._since = 0.0
        """Since when events are those of the present driver, in seconds since the boot."""
        self._probe: tuple[tuple[str, str, int], Nvml] | None = None
        self._asked = ""
        """The GPU that the call on the lane is at; empty while it ends NVML."""
        self._look_wanted = asyncio.Event()
        # Kept from the start: what was dropped must not be back after the next restart.
        self._to_keep: Watched[Mapping[str, GpuState]] = Watched({})
        self._ears = GpuEventThread(
            source=self.source,
            event=self.hear,
            heard=self._heard,
            wait=self.times.value.event_wait,
        )
        self.health: Watched[Mapping[str, GpuHealth]] = Watched({})
        self.faults: Watched[Mapping[str, tuple[Fault, ...]]] = Watched({})
        """The same, without the notes, for the inventory."""
        self._publish()

    async def run(self) -> None:
        """Follow the GPUs until cancelled."""
        problem = Problem(log, "cannot save the health of GPUs", over="health of GPUs saved again")
        breath = self.times.value.breath
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._poke_now_and_then())
                tasks.create_task(self._look_when_wanted())
                tasks.create_task(
                    keep(self._to_keep, self._kept, problem, self.clock, breath=breath)
                )
                tasks.create_task(self._go_by_settings())
                async for reading in self.readings.follow():
                    self._follow(reading)
        finally:
            self._ears.close()

    def hear(self, event: GpuEvent) -> None:
        """Take note of *event*; that of a GPU which is not known yet is kept for when it is."""
        event = placed(event, self._reading.gpus)
        counts = event.kind is GpuEventKind.XID and self.checks.value.watches(event.xid)
        self.count(event, counts)
        now = self.clock.uptime()
        if counts and event.uuid:
            self._states.setdefault(event.uuid, GpuState(uuid=event.uuid, boot=self.boot))
        for uuid, state in self._states.items():
            after = after_event(state, event, now, self.checks.value)
            if len(after.xids) > len(state.xids):
                log.warning("GPU reported an error", gpu=uuid, reason=after.xids[-1].text)
            self._states[uuid] = after
        self._publish()
        self._look_wanted.set()  # after an Xid that is ignored, too: the driver may ask for a reset

    @property
    def waits_in_vain(self) -> bool:
        """Tell whether the wait for events has not come back from the driver for far too long."""
        return self._ears.overdue

    def xids_on(self, uuid: str) -> tuple[XidRecord, ...]:
        """Return the records that condemn the GPU or slice *uuid*."""
        gpu, place = place_of(uuid, self._reading.gpus)
        return condemning(self._states[gpu], place) if gpu in self._states else ()

    def forgive(self, uuid: str, xids: Collection[object]) -> None:
        """Drop *xids* of *uuid*: only a person's word clears the gravest Xids."""
        gpu, _ = place_of(uuid, self._reading.gpus)
        if (state := self._states.get(gpu)) is None:
            return  # the slice is no more
        heard = {each.heard for each in xids if isinstance(each, XidRecord)}
        left = tuple(record for record in state.xids if record.heard not in heard)
        self._states[gpu] = replace(state, xids=left)
        self._publish()
        self._look_wanted.set()

    def _follow(self, reading: GpuReading) -> None:
        """Take note of what GPUs there are, and of a driver that goes or is back."""
        before, self._reading = self._reading, reading
        if reading.state is not DriverState.READY:
            self._generation += 1
            self._driver = ""
        elif before.state is not DriverState.READY:
            # All that a former driver told was heard: its library was let go before (DriverWatch).
            self._since = self.clock.uptime()
        if reading.state is DriverState.ABSENT:
            # One that was gone from the kernel has begun again with every GPU when it is back.
            self._states = {
                uuid: replace(state, driver=NO_DRIVER) for uuid, state in self._states.items()
            }
        uuids = tuple(gpu.uuid for gpu in reading.gpus if gpu.uuid)
        for gpu in reading.gpus:
            if gpu.uuid:
                state = self._states.get(gpu.uuid, GpuState(uuid=gpu.uuid, boot=self.boot))
                self._states[gpu.uuid] = replace(state, pci=gpu.pci or state.pci)
        at = {gpu.pci: gpu.uuid for gpu in reading.gpus if gpu.uuid}
        for uuid, state in self._states.items():
            if state.pci is not None and at.get(state.pci, uuid) != uuid:
                self._states[uuid] = replace(state, pci=None)  # replaced, and nowhere to be missed
        ready = reading.state is DriverState.READY
        self._hears = ready and bool(uuids) and self.checks.value.listening
        wanted = EventSubscription(
            library=reading.library, uuids=uuids, generation=self._generation
        )
        self._ears.want(wanted if self._hears else None)
        self._take_unheard({uuid: state.unmonitored for uuid, state in self._states.items()})
        self._look_wanted.set()

    def _heard(self, unheard: Mapping[str, str]) -> None:
        self._take_unheard(unheard)
        self._look_wanted.set()  # what happened until now was not heard

    def _take_unheard(self, unheard: Mapping[str, str]) -> None:
        # That they cannot be heard, also if it comes late, is no news where nobody listens.
        self._states = {
            uuid: replace(state, unmonitored=unheard.get(uuid, "") if self._hears else "")
            for uuid, state in self._states.items()
        }
        self._publish()

    async def _poke_now_and_then(self) -> None:
        while True:
            await pause(self.clock, self.times, lambda times: times.beat)
            self._look_wanted.set()

    async def _go_by_settings(self) -> None:
        """Judge what is known again whenever a setting changes."""
        while True:
            changes = Changes([self.checks, self.times])
            await changes.wait()
            now, checks = self.clock.uptime(), self.checks.value
            self._states = {
                uuid: restored(state, self.boot, now, checks)
                for uuid, state in self._states.items()
            }
            self._follow(self._reading)  # whether events are listened to may have changed, too

    async def _look_when_wanted(self) -> None:
        while True:
            await self._look_wanted.wait()
            self._look_wanted.clear()
            await self._look_at_all()
            await self.clock.sleep(self.times.value.breath)

    async def _look_at_all(self) -> None:
        if self._ears.overdue:
            self._take_unheard(dict.fromkeys(self._states, _HANGS))
        if self.lane.stuck_since is not None:
            self._take_no_answer()
            return
        reading = self._reading
        if reading.state is not DriverState.READY:
            try:
                await self.lane.run(self._let_go)
            except LaneStuckError as error:
                log.warning("cannot shut down NVML", reason=str(error))
            return
        for gpu in reading.gpus:
            if gpu.uuid not in self._states:
                continue
            try:
                observed = await self.lane.run(partial(self._observe, reading, gpu))
            except LaneStuckError:
                self._take_no_answer()
                return
            except HoldfastError as error:  # the library does not start: the inventory says so
                log.debug("cannot check the health of GPUs", reason=str(error))
                return
            if self._reading is not reading:
                return  # it is of another driver, or another layout; the next look is wanted
            self._compare(observed.driver)
            self._take(gpu.uuid, observed)

    def _take_no_answer(self) -> None:
        """Judge the GPU that gives no answer; where NVML does not end, that is none."""
        self._take(self._asked, unanswered(self.clock.uptime(), self.lane.deadline))

    def _take(self, uuid: str, observed: GpuObservation) -> None:
        """Judge the GPU by *observed*, and publish and keep what changed."""
        before = self._states.get(uuid)
        if before is None:
            return
        after = after_observation(
            before,
            observed,
            self.clock.uptime(),
            since=self._since,
            quiet=self.times.value.quiet,
        )
        self._states[uuid] = after
        left = {(each.first, each.xid) for each in after.xids}
        for record in before.xids:
            if (record.first, record.xid) not in left:
                log.info("GPU error cleared", gpu=uuid, was=record.text)
        if before.judged != after.judged:  # judges all, also those that were not looked at
            self._publish()
        if before.condition.lost and observed.answered:
            self._begin_again()  # it was not listened to, or is another to the driver now

    def _observe(self, reading: GpuReading, gpu: Gpu) -> GpuObservation:
        """Ask the GPU; on the lane."""
        version, load = reading.driver_version, self._loaded
        with contextlib.suppress(HostError):
            load = self.load() or load  # sysfs shows no module now: it is no other one for that
        self._loaded = load
        driver = version if load is None else f"{version}/{load}"
        self._asked = gpu.uuid
        try:
            probe, xids = self._begun(reading.library, driver), self._states[gpu.uuid].xids
            waits_for_users = any(record.cure is Cure.RESTART for record in xids)
            return GpuObservation(
                at=self.clock.uptime(),
                driver=driver,
                condition=probe.condition(gpu.uuid),
                users=self.users.at_work(probe, gpu) if waits_for_users else None,
                mig=gpu.mig,
            )
        finally:
            self._asked = ""

    def _begin_again(self) -> None:
        """Begin with a new NVML, and listen to every GPU again."""
        self._generation += 1
        self._follow(self._reading)

    def _compare(self, driver: str) -> None:
        """Begin with a new NVML after the driver was loaded again: the old one hears nothing."""
        before, self._driver = self._driver, driver
        if before not in {"", driver}:
            self._since = self.clock.uptime()
            self._begin_again()

    def _begun(self, library: str, driver: str) -> "Nvml":
        wanted = (library, driver, self._generation)
        if self._probe is not None and self._probe[0] == wanted:
            return self._probe[1]
        self._let_go()
        probe = self.source(library)
        probe.open()
        self._probe = (wanted, probe)
        return probe

    def _let_go(self) -> None:
        """End NVML, so that the driver can be replaced and the library begun again."""
        former, self._probe = self._probe, None
        if former is not None:
            asked, self._asked = self._asked, ""
            former[1].close()
            self._asked = asked

    def _publish(self) -> None:
        found = healths(self._states, self._reading.gpus, conditions=self.checks.value.conditions)
        before = self.health.value
        self.health.set(found)
        self.faults.set({uuid: health.faults for uuid, health in found.items() if health.faults})
        self._to_keep.set({uuid: state.kept for uuid, state in self._states.items()})
        for uuid, health in found.items():
            known = before.get(uuid, GpuHealth())
            if health.faults != known.faults:
                log.info("GPU health changed", gpu=uuid, reasons=[f.text for f in health.faults])
