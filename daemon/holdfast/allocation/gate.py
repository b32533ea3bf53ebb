"""PreStartContainer: the gate that a container passes only when its devices are free of others."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.allocation.machines import OwnMachines
from holdfast.allocation.outcomes import Outcome
from holdfast.allocation.starts import Start, Starts
from holdfast.errors import GateRefusedError, HoldfastError, LaneStuckError, LedgerError
from holdfast.host.look import Look
from holdfast.ledger.ledger import Ledger
from holdfast.model.cdi import Published
from holdfast.model.devices import Device, Inventory
from holdfast.model.draft import Draft
from holdfast.model.free import KernelFacts, Opened, judge_kernel
from holdfast.model.gate import (
    Caller,
    Passage,
    arrive,
    enter,
    who_calls,
    why_kept_away,
    why_wait,
)
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.model.leak import HeldUp, held_up
from holdfast.model.promise import breach
from holdfast.model.reconcile import translate
from holdfast.model.verdict import Freedom, Verdict
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

T = TypeVar("T")


class KubeletBooks(Protocol):
    """Kubelet's books, as far as the gate needs them."""

    @property
    def view(self) -> Watched[KubeletView]:
        """Return the published view."""
        ...

    def ask(self, reason: str) -> None:
        """Ask kubelet soon which pods it counts."""
        ...

    async def refresh(self) -> KubeletView:
        """Read the checkpoint now, and return the view with it."""
        ...


class GateTimes(Struct, frozen=True, kw_only=True):
    """Durations of the gate, in seconds. Kubelet itself gives up after 30."""

    wait: float = 25.0
    poll: float = 0.25
    caller_lookup: float = 1.0


_FINAL = frozenset({Outcome.SEVERAL_PODS, Outcome.GONE, Outcome.PROMISE})
"""What waiting does not mend."""


class _Wait(Exception):  # noqa: N818 - not an error: the way in which one try ends
    def __init__(
        self, outcome: Outcome, reason: str, held_up: frozenset[HeldUp] = frozenset()
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.held_up = held_up


class Gate:
    """Waits, at each container start, until nobody else has the devices; then locks them.

    Kubelet gives it 30 s, blocks only that pod, shows its refusal to the user, and asks again
    every 10 to 15 s.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        books: KubeletBooks,
        look: Look,
        looked: asyncio.Event,
        obstacle: Callable[[DeviceName], str],
        at_work: Callable[[frozenset[HardwareKey]], str],
        clock: Clock,
        times: GateTimes,
        published: Callable[[], Published] = Published,
        exclusive_open: bool = True,
    ) -> None:
        """Decide from *inventory*, *books* and *look*; nobody passes before *looked* is set.

        `obstacle` tells what was last seen to keep a device from its next pod, empty for nothing;
        `at_work` what we ourselves do to hardware, during which nobody passes; `published` what
        the CDI spec files say.
        """
        self._ledger = ledger
        self._inventory = inventory
        self._books = books
        self._look = look
        self._looked = looked
        self._obstacle = obstacle
        self._at_work = at_work
        self._clock = clock
        self._times = times
        self._published = published
        self._exclusive_open = exclusive_open
        self._machines = OwnMachines()
        self.starts = Starts()
        self.observe: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None

    async def pre_start(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> None:
        """Return when the container may start; raise GateRefusedError when it may not yet."""
        if not ids:  # a start on no device has nobody to wait for, and no owner in the checkpoint
            return
        start = Start(since=self._clock.monotonic())
        try:
            await self._wait(resource, ids, start)
        finally:
            self.starts.leaves(start)

    async def _wait(self, resource: ResourceName, ids: tuple[DeviceId, ...], start: Start) -> None:
        what = f"{resource} {', '.join(sorted(set(ids)))}"
        while True:
            changes = Changes([self._ledger.book, self._books.view, self._inventory])
            try:
                outcome = await self._try(resource, frozenset(ids), start)
            except _Wait as wait:
                self.starts.waits(start, wait.held_up)
                waited = self._clock.monotonic() - start.since
                left = self._times.wait - waited
                if left <= 0 or wait.outcome in _FINAL:
                    self.observe(wait.outcome, waited)
                    log.warning(
                        "gate refused", what=what, reason=str(wait), waited=round(waited, 3)
                    )
                    message = (
                        f"cannot start on {what} yet: {wait} (waited {waited:.1f} s; kubelet will "
                        "ask again)"
                    )
                    raise GateRefusedError(message) from None
                await changes.wait(min(self._times.poll, left))
            else:
                waited = self._clock.monotonic() - start.since
                self.observe(outcome, waited)
                log.info("gate passed", what=what, outcome=outcome.value, waited=round(waited, 3))
                return

    async def _try(
        self, resource: ResourceName, asked: frozenset[DeviceId], start: Start
    ) -> Outcome:
        """Pass, or raise _Wait with the reason."""
        if not self._looked.is_set():
            raise _Wait(
                Outcome.STARTING, "holdfast has just started and not looked at the node yet"
            )
        devices = self._devices(resource, asked)
        passage = Passage(
            resource=resource,
            asked=asked,
            devices={device.name.id: device.keys for device in devices},
        )
        caller = await self._caller(passage, start)
        self._check_promise(passage, caller, devices)
        withheld = why_kept_away(passage, caller, self._ledger.book.value)
        if withheld is not None:
            raise _Wait(Outcome.WITHHELD, withheld)
        if self._books.view.value.unreadable:
            await self._record(lambda draft: arrive(draft, passage, caller))
        reason = why_wait(passage, caller, self._ledger.book.value)
        if reason is not None:
            # The pod in the way may be over by now: kubelet tells only when it is asked.
            self._books.ask("a container waits at the gate")
            raise _Wait(Outcome.HELD, reason + self._by_whom(passage))
        if doing := self._at_work(passage.keys):  # its pod was over, and has come back
            raise _Wait(Outcome.IN_USE, doing)
        shown = await self._judge(devices)
        verdicts = [
            self._machines.judge(verdict, caller.pod, device)
            for device, verdict in zip(devices, shown, strict=True)
        ]
        for device, verdict in zip(devices, verdicts, strict=True):
            if verdict.final:
                raise _Wait(
                    Outcome.IN_USE, f"it is unknown whether {device.name} is free: {verdict.reason}"
                )
            if verdict.freedom is Freedom.IN_USE:
                raise _Wait(
                    Outcome.IN_USE,
                    f"{device.name} is {verdict.reason}",
                    held_up(caller.pod, device.name, verdict.holders),
                )
        unverified = [each.reason for each in verdicts if each.freedom is Freedom.UNKNOWN]
        if self._books.view.value.unreadable:
            unverified.append(
                "kubelet's checkpoint cannot be read, which tells whose container it is"
            )
        evidence = (
            f"gate passed, unverified: {unverified[0]}"
            if unverified
            else (f"gate passed: {verdicts[0].reason}" if verdicts else "gate passed")
        )
        await self._pass(passage, caller, evidence)
        free = [
            device.name
            for device, verdict in zip(devices, shown, strict=True)
            if verdict.freedom is not Freedom.IN_USE
        ]
        self._machines.started(caller.pod, free, pods=self._ledger.book.value.pods)
        return Outcome.UNVERIFIED if unverified else Outcome.PASSED

    def _by_whom(self, passage: Passage) -> str:
        """Return what is known to be in the way of a start, to complete a text with."""
        own = [DeviceName(passage.resource, id_) for id_ in passage.devices]
        # The same hardware may be locked under another resource's name.
        locks = [lock.device for lock in self._ledger.book.value.locks_on(passage.keys)]
        known = [self._obstacle(name) for name in dict.fromkeys((*own, *locks))]
        return "".join(f"; {text}" for text in known if text)

    def _devices(self, resource: ResourceName, asked: frozenset[DeviceId]) -> tuple[Device, ...]:
        inventory = self._inventory.value
        found: list[Device] = []
        for id_ in sorted(asked):
            device = translate(resource, id_, inventory)
            if device is None:
                raise _Wait(Outcome.HARDWARE, f"{resource}/{id_} is not on this node any more")
            if device.faults:
                raise _Wait(Outcome.HARDWARE, f"{device.name}: {device.faults[0].text}")
            found.append(device)
        return tuple(found)

    async def _caller(self, passage: Passage, start: Start) -> Caller:
        try:
            view = await self._books.refresh()
        except HoldfastError:
            view = self._books.view.value
        caller = who_calls(passage, view, self._ledger.book.value, known=start.pod)
        if caller.gone is not None:
            raise _Wait(
                Outcome.GONE,
                f"kubelet no longer has the devices for pod {caller.gone}, whose container this is",
            )
        if len(caller.pods) > 1:
            raise _Wait(
                Outcome.SEVERAL_PODS,
                f"kubelet has given the same devices to {len(caller.pods)} pods: "
                f"{' and '.join(caller.pods)}; delete one of them",
            )
        start.pod = caller.pod  # once known it stays so
        waited = self._clock.monotonic() - start.since
        if caller.pod is None and view.readable and waited < self._times.caller_lookup:
            raise _Wait(Outcome.HELD, "kubelet's checkpoint does not yet say whose container it is")
        return caller

    def _check_promise(self, passage: Passage, caller: Caller, devices: tuple[Device, ...]) -> None:
        """After a reboot kubelet replays its old answer, and groups may have other numbers."""
        for entry in self._books.view.value.entries_of(passage.resource, passage.asked):
            if entry.pod != caller.pod:
                continue
            broken = breach(
                entry, devices, inventory=self._inventory.value, published=self._published()
            )
            if broken is not None:
                outcome = Outcome.PROMISE if broken.final else Outcome.SPEC
                raise _Wait(outcome, broken.reason)

    async def _judge(self, devices: tuple[Device, ...]) -> list[Verdict]:
        """Return whether the kernel shows anybody on each device, the caller's own pod included.

        One scan serves all the devices that could not be opened exclusively.
        """
        try:
            opened = {device.name: await self._open(device) for device in devices}
            rest = [each for each in devices if opened[each.name] is not Opened.SUCCEEDED]
            seen = await self._look.scan(rest, self._ledger.book.value.locks) if rest else {}
        except LaneStuckError as error:
            raise _Wait(Outcome.IN_USE, f"the node cannot be looked at: {error}") from error
        nothing = KernelFacts()
        return [
            judge_kernel(
                replace(
                    seen.get(device.name, nothing), kind=device.kind, opened=opened[device.name]
                )
            )
            for device in devices
        ]

    async def _open(self, device: Device) -> Opened:
        return await self._look.open(device) if self._exclusive_open else Opened.UNAVAILABLE

    async def _pass(self, passage: Passage, caller: Caller, evidence: str) -> None:
        reason = await self._record(lambda draft: enter(draft, passage, caller, evidence))
        if reason is not None:
            raise _Wait(Outcome.HELD, reason)

    async def _record(self, decide: Callable[[Draft], T]) -> T:
        try:
            return await self._ledger.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            raise _Wait(Outcome.LEDGER, f"the start cannot be recorded: {error}") from error
