"""PreStartContainer: the gate that a container passes only when its devices are free of others."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from holdfast.allocation.sharedlook import SharedLook
from holdfast.allocation.starts import OwnMachines, Start, StartOutcome, Starts, Wait
from holdfast.discovery.source import Sources
from holdfast.errors import GateRefusedError, HoldfastError, LaneStuckError, LedgerError
from holdfast.host.use.look import Look
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import LockState
from holdfast.model.devices import Device, Inventory
from holdfast.model.gate.cdi import Published
from holdfast.model.gate.gate import (
    LONGEST_WAIT,
    Caller,
    Passage,
    arrive,
    enter,
    who_calls,
    why_held,
    why_kept_away,
)
from holdfast.model.gate.promise import breach
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.reclaim.leak import held_up
from holdfast.model.use.free import Freedom, Verdict, judge_kernel
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings import sections

log = structlog.get_logger(__name__)

T = TypeVar("T")


_LAST_TRY = 1.0
"""How long a try that began in time may go on when the wait is over, in seconds."""
_STIRRED_FOR, _CALM = 2.0, 4
"""So many seconds after the last change a start looks so many times as seldom."""
_ASK_AT = (0.0, 1.0, 3.0, 10.0)
"""When kubelet is asked for a start's sake, in seconds of its wait: each answer costs kubelet a
write of its checkpoint, and what makes the answer another one is mostly heard of."""


class Gate:
    """Waits, at each container start, until nobody else has the devices; then locks them.

    Kubelet gives it 30 s, blocks only that pod, shows its refusal to the user, and asks again: at
    once where that took long, else after 10 to 15 s.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        reader: KubeletReader,
        look: Look,
        looked: asyncio.Event,
        obstacle: Callable[[DeviceName], str],
        at_work: Callable[[frozenset[HardwareKey]], str],
        clock: Clock,
        settings: Watched[sections.Gate],
        published: Callable[[], Published] = Published,
        sources: Sources,
        stirred: Watched[int] | None = None,
    ) -> None:
        """Decide from *inventory*, *reader* and *look*; nobody passes before *looked* is set.

        `obstacle` tells what was last seen to keep a device from its next pod, empty for nothing;
        `at_work` what we ourselves do to hardware, during which nobody passes; `published` what
        the CDI spec files say, *sources* what else old answers promise. `stirred` changes when
        something on the node may have.
        """
        self._ledger = ledger
        self._inventory = inventory
        self._reader = reader
        self.look = SharedLook(
            look,
            locks=lambda: ledger.book.value.locks,
            clock=clock,
            exclusive_open=settings.part(lambda now: now.exclusive_open),
        )
        self._looked = looked
        self._obstacle = obstacle
        self._at_work = at_work
        self._clock = clock
        self._settings = settings
        self._published = published
        self._sources = sources
        self._machines = OwnMachines()
        self._stirred = stirred or Watched(0)
        self.starts = Starts()
        self.observe: Callable[[StartOutcome, float], None] = lambda _outcome, _seconds: None

    async def pre_start(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> None:
        """Return when the container may start; raise GateRefusedError when it may not yet."""
        if not ids:  # a start on no device has nobody to wait for, and no owner in the checkpoint
            return
        now = self._clock.monotonic()
        start = Start(resource=resource, asked=frozenset(ids), since=now, stirred=now)
        try:
            await self._wait(start)
        finally:
            self.starts.leaves(start)

    async def _wait(self, start: Start) -> None:
        wait = min(self._settings.value.wait, LONGEST_WAIT)
        last: Wait | None = None
        while True:
            changes = Changes(
                [self._ledger.book, self._reader.view, self._inventory, self._stirred]
            )
            left = min(wait + _LAST_TRY, LONGEST_WAIT) - self._waited(start)
            patience = asyncio.timeout(left)
            try:
                async with patience:
                    outcome = await self._try(start)
            except Wait as reason:
                self.starts.waits(start, reason)
                left = wait - self._waited(start)
                if left <= 0 or reason.final:
                    raise self._refused(reason, start) from None
                last = None if reason.transient else reason
                start.doing = str(reason)
                if await changes.wait(min(self._pause(start), left)):
                    start.stirred = self._clock.monotonic()
            except TimeoutError:
                if not patience.expired():
                    raise
                late = Wait(StartOutcome.IN_USE, start.doing + self._by_whom(start))
                raise self._refused(last or late, start) from None
            else:
                waited = self._waited(start)
                self.observe(outcome, waited)
                log.info(
                    "gate passed", what=start.what, outcome=outcome.value, waited=round(waited, 3)
                )
                return

    def _pause(self, start: Start) -> float:
        """Return how long to wait for a change, in seconds: what has begun to change goes on."""
        calm = self._clock.monotonic() - start.stirred >= _STIRRED_FOR
        return self._settings.value.poll * (_CALM if calm else 1)

    def _waited(self, start: Start) -> float:
        return self._clock.monotonic() - start.since

    def _refused(self, reason: Wait, start: Start) -> GateRefusedError:
        """Tell of a refusal, and return the error that is its answer."""
        waited = self._waited(start)
        self.observe(reason.outcome, waited)
        log.warning(
            "gate refused",
            what=start.what,
            outcome=reason.outcome.value,
            reason=str(reason),
            waited=round(waited, 3),
        )
        return GateRefusedError(reason.text(start.what))

    async def _try(self, start: Start) -> StartOutcome:
        """Pass, or raise Wait with the reason."""
        if not self._looked.is_set():
            raise Wait(
                StartOutcome.STARTING,
                "holdfast has just started and has not scanned the node yet",
                transient=True,
            )
        devices = self._devices(start)
        passage = Passage(
            resource=start.resource,
            asked=start.asked,
            devices={device.name.id: device.keys for device in devices},
        )
        caller = await self._caller(passage, start)
        self._check_promise(passage, caller, devices)
        withheld = why_kept_away(passage, caller, self._ledger.book.value)
        if withheld is not None:
            raise Wait(StartOutcome.WITHHELD, withheld)
        if self._reader.view.value.unreadable:
            start.doing = "the start could not be recorded in time"
            await self._record(lambda draft: arrive(draft, passage, caller))
        reason = why_held(passage, caller, self._ledger.book.value)
        if reason is not None:
            self._ask_kubelet(passage, caller, start)
            raise Wait(StartOutcome.HELD, reason + self._by_whom(start, passage.keys))
        if doing := self._at_work(passage.keys):  # its pod was over, and has come back
            raise Wait(StartOutcome.IN_USE, doing)
        start.doing = "who uses it could not be found out in time"
        shown = await self._judge(devices)
        verdicts = [
            self._machines.judge(verdict, caller.pod, device)
            for device, verdict in zip(devices, shown, strict=True)
        ]
        _check_free(devices, verdicts, caller)
        unverified = _unverified(verdicts, checkpoint=not self._reader.view.value.unreadable)
        evidence = _evidence(verdicts, unverified)
        start.doing = "the start could not be recorded in time"
        reason = await self._record(lambda draft: enter(draft, passage, caller, evidence))
        if reason is not None:
            raise Wait(StartOutcome.HELD, reason)
        free = [
            device.name
            for device, verdict in zip(devices, shown, strict=True)
            if verdict.freedom is not Freedom.IN_USE
        ]
        self._machines.started(caller.pod, free, pods=self._ledger.book.value.pods)
        return StartOutcome.UNVERIFIED if unverified else StartOutcome.PASSED

    def _ask_kubelet(self, passage: Passage, caller: Caller, start: Start) -> None:
        """Ask which pods kubelet counts, as the one in the way may have ended.

        Where the lock is being released, kubelet has said so already.
        """
        if start.questions == len(_ASK_AT) or self._waited(start) < _ASK_AT[start.questions]:
            return
        locks = self._ledger.book.value.locks_on(passage.keys)
        if caller.pod is None or any(
            lock.state is LockState.HELD and lock.pod != caller.pod for lock in locks
        ):
            start.questions += 1
            self._reader.ask("a container waits at the gate")

    def _by_whom(self, start: Start, keys: frozenset[HardwareKey] = frozenset()) -> str:
        """Return what is known to be in the way of *start*, to complete a text with."""
        own = [DeviceName(start.resource, id_) for id_ in sorted(start.asked)]
        # The same hardware may be locked under another resource's name.
        locks = [lock.device for lock in self._ledger.book.value.locks_on(keys)]
        known = [self._obstacle(name) for name in dict.fromkeys((*own, *locks))]
        return "".join(f"; {text}" for text in known if text)

    def _devices(self, start: Start) -> tuple[Device, ...]:
        found: list[Device] = []
        for id_ in sorted(start.asked):
            device = self._inventory.value.find(start.resource, id_)
            if device is None:
                raise Wait(
                    StartOutcome.HARDWARE, f"{start.resource}/{id_} is not on this node any more"
                )
            if device.faults:
                raise Wait(StartOutcome.HARDWARE, f"{device.name}: {device.faults[0].text}")
            found.append(device)
        return tuple(found)

    async def _caller(self, passage: Passage, start: Start) -> Caller:
        start.doing = "kubelet's checkpoint could not be read in time"
        try:
            view = await self._reader.refresh()
        except HoldfastError:
            view = self._reader.view.value
        caller = who_calls(passage, view, self._ledger.book.value, known=start.pod)
        if caller.gone is not None:
            raise Wait(
                StartOutcome.GONE,
                f"kubelet no longer has the devices for pod {caller.gone}, whose container this is",
            )
        if len(caller.pods) > 1:
            raise Wait(
                StartOutcome.SEVERAL_PODS,
                f"kubelet has given the same devices to {len(caller.pods)} pods: "
                f"{' and '.join(caller.pods)}; delete one of them",
            )
        start.pod = caller.pod  # once known it stays so
        looked_up = self._waited(start) >= self._settings.value.caller_lookup
        if caller.pod is None and view.readable and not looked_up:
            raise Wait(
                StartOutcome.HELD,
                "kubelet's checkpoint does not yet say whose container it is",
                transient=True,
            )
        return caller

    def _check_promise(self, passage: Passage, caller: Caller, devices: tuple[Device, ...]) -> None:
        """After a reboot kubelet replays its old answer, and groups may have other numbers."""
        for entry in self._reader.view.value.entries_of(passage.resource, passage.asked):
            if entry.pod != caller.pod:
                continue
            broken = breach(
                entry, devices, inventory=self._inventory.value, published=self._published()
            ) or self._sources.of(devices).breach(entry, devices)
            if broken is not None:
                outcome = StartOutcome.PROMISE if broken.final else StartOutcome.SPEC
                raise Wait(outcome, broken.reason)

    async def _judge(self, devices: tuple[Device, ...]) -> list[Verdict]:
        """Return whether the kernel shows anybody on each device, the caller's own pod included."""
        try:
            seen = await self.look.facts(devices)
        except LaneStuckError as error:
            raise Wait(StartOutcome.IN_USE, f"the node cannot be scanned: {error}") from error
        return [judge_kernel(seen[device.name]) for device in devices]

    async def _record(self, decide: Callable[[Draft], T]) -> T:
        try:
            return await self._ledger.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            raise Wait(StartOutcome.LEDGER, f"the start cannot be recorded: {error}") from error


def _unverified(verdicts: Sequence[Verdict], *, checkpoint: bool) -> str:
    """Return the first thing that could not be read; *checkpoint*: kubelet's could be."""
    unknown = [each.reason for each in verdicts if each.freedom is Freedom.UNKNOWN]
    if not checkpoint:
        unknown.append("kubelet's checkpoint, which says whose container it is, cannot be read")
    return unknown[0] if unknown else ""


def _evidence(verdicts: Sequence[Verdict], unverified: str) -> str:
    """Return what the history says of a start that passes."""
    if unverified:
        return f"gate passed, unverified: {unverified}"
    return f"gate passed: {verdicts[0].reason}" if verdicts else "gate passed"


def _check_free(devices: tuple[Device, ...], verdicts: Sequence[Verdict], caller: Caller) -> None:
    """Raise Wait for the first device that is in use, or of which that cannot be found out."""
    for device, verdict in zip(devices, verdicts, strict=True):
        if verdict.final:
            raise Wait(
                StartOutcome.IN_USE,
                f"it is unknown whether {device.name} is free: {verdict.reason}",
            )
        if verdict.freedom is Freedom.IN_USE:
            raise Wait(
                StartOutcome.IN_USE,
                f"{device.name} is {verdict.reason}",
                held_up(caller.pod, device.name, verdict.holders),
            )
