"""PreStartContainer: the gate that a container passes only when its devices are free of others."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.allocation.entry import Entry, EntryOutcome, Visit, Wait
from holdfast.allocation.specwriter import CdiSpecs
from holdfast.discovery.source import Sources
from holdfast.errors import GateRefusedError, HoldfastError
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import Message
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.gate.gate import (
    LONGEST_WAIT,
    Caller,
    Obstacle,
    Passage,
    Rights,
    arrive,
    enter,
    is_held_from,
    rights_of_start,
    who_calls,
)
from holdfast.model.gate.promise import breach
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.use.free import Freedom, Verdict, asking_whose, but_for_own_machine
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings import sections

log = structlog.get_logger(__name__)

_LAST_TRY = 1.0
"""How long a try that began in time may go on when the wait is over, in seconds."""
_ASK_AT = (0.0, 1.0, 3.0, 10.0)
"""When kubelet is asked for a start's sake, in seconds of its wait: each answer costs kubelet a
write of its checkpoint, and what makes the answer another one is mostly heard of."""

_UNREAD = "kubelet's checkpoint, which says whose container it is, cannot be read"


class StartObserver(Protocol):
    """Hears how container starts ended."""

    def passed_gate(self, outcome: EntryOutcome, seconds: float) -> None:
        """Hear that one passed or was refused after so many seconds."""


@dataclass(slots=True, kw_only=True, eq=False)
class Start(Visit):
    """One container start: on which devices, and of which pod as far as that is known.

    `questions` is how often kubelet was asked for its sake.
    """

    passage: Passage
    caller: Caller = field(default_factory=Caller)
    questions: int = 0


class OwnMachines:
    """Remembers which pods started on a device before their virtual machine had it.

    So a machine that had the device from the start can be told from one that has not yet released
    it. After a restart of the daemon that is not known, and a pod's own machine does not stop its
    start: a start that fails is tried again, one that is always refused is not.
    """

    def __init__(self) -> None:
        self._had_none: set[tuple[PodUid, DeviceName]] = set()

    def judge(self, verdict: Verdict, pod: PodUid | None, device: Device) -> Verdict:
        """Return whether *device* is free for *pod*, of which *verdict* tells who has it."""
        if device.kind is not DeviceKind.VFIO:
            return verdict
        had_none = pod is not None and (pod, device.name) in self._had_none
        return asking_whose(but_for_own_machine(verdict, pod, had_none=had_none))

    def started(
        self, pod: PodUid | None, free: Collection[DeviceName], *, pods: Collection[PodUid]
    ) -> None:
        """Note that *pod* starts on devices, of which nobody had those in *free*.

        *pods* are all that have anything; what is known of others is dropped.
        """
        self._had_none = {each for each in self._had_none if each[0] in pods}
        if pod is not None:
            self._had_none |= {(pod, device) for device in free}


class Gate(Struct, frozen=True, kw_only=True):
    """Waits, at each container start, until nobody else has the devices; then locks them.

    Kubelet gives it 30 s, blocks only that pod, shows its refusal to the user, and asks again: at
    once where that took long, else after 10 to 15 s.

    It lets starts in by `entry`, for pods that `reader` knows, on devices of `inventory`. What old
    answers promise, `specs` and `sources` say.
    """

    entry: Entry
    ledger: Ledger
    inventory: Watched[Inventory]
    reader: KubeletReader
    sources: Sources
    specs: CdiSpecs
    clock: Clock
    settings: Watched[sections.GateSettings]
    observer: StartObserver
    _machines: OwnMachines = msgspec.field(default_factory=OwnMachines)

    async def pre_start(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> None:
        """Return when the container may start; raise GateRefusedError when it may not yet."""
        if not ids:  # a start on no device has nobody to wait for, and no owner in the checkpoint
            return
        start = Start(
            what=f"{resource} {', '.join(sorted(ids))}",
            passed="gate passed",
            since=self.clock.monotonic(),
            asked=tuple(DeviceName(resource, each) for each in sorted(set(ids))),
            passage=Passage(resource=resource, asked=frozenset(ids), devices={}),
        )
        wait = min(self.settings.value.wait, LONGEST_WAIT)
        longest = min(wait + _LAST_TRY, LONGEST_WAIT)
        try:
            outcome = await self.entry.admit(self, start, wait=wait, longest=longest)
        except Wait as reason:
            waited = self._observed(start, reason.outcome)
            log.log(
                reason.level,
                "gate refused",
                what=start.what,
                outcome=reason.outcome.value,
                reason=str(reason),
                waited=waited,
            )
            raise GateRefusedError(reason.told(start)) from None
        waited = self._observed(start, outcome)
        log.info("gate passed", what=start.what, outcome=outcome.value, waited=waited)

    def _observed(self, start: Start, outcome: EntryOutcome) -> float:
        waited = self.entry.waited(start)
        self.observer.passed_gate(outcome, waited)
        return round(waited, 3)

    # The steps of a try, in their order: `entry.DoorSteps`.

    async def identify(self, start: Start, /) -> None:
        """Find out whose container starts, on which devices, and what its pod was promised."""
        passage = start.passage
        start.devices = devices = self._devices(passage.resource, passage.asked)
        named = {device.name.id: device.keys for device in devices}
        start.passage = replace(passage, devices=named)
        if self.ledger.may_lack((passage.resource, passage.asked)):  # it is no former pod's start
            await self.entry.record(Draft.pay)
        start.doing = "kubelet's checkpoint could not be read in time"
        await self._know_caller(start)
        start.doubt = _UNREAD if self.reader.view.value.unreadable else ""
        self._check_promise(start)

    async def enlist(self, start: Start, /) -> Obstacle | None:
        """Put a start into the book while the checkpoint is silent: an Allocate did so before."""
        if start.doubt:
            await self.entry.record(partial(arrive, passage=start.passage, caller=start.caller))
        return None

    def rights(self, start: Start, book: Book, /) -> Rights:
        """Return what the container's pod has by *book*."""
        return rights_of_start(start.passage, start.caller, book)

    def held(self, start: Start, keys: frozenset[HardwareKey], /) -> None:
        """Ask which pods kubelet counts, as the one in the way may have ended."""
        if start.questions == len(_ASK_AT) or self.entry.waited(start) < _ASK_AT[start.questions]:
            return
        if is_held_from(start.caller.pod, self.ledger.book.value, keys):
            start.questions += 1
            self.reader.ask("a container waits at the gate")

    def judge(self, start: Start, device: Device, shown: Verdict, /) -> Verdict:
        """Return whether *device* is free but for the pod's own virtual machine."""
        return self._machines.judge(shown, start.caller.pod, device)

    async def hand_over(self, start: Start, evidence: str, /) -> Callable[[Draft], Obstacle | None]:
        """Return the rule that writes the start down: Allocate has handed over all there is."""
        return partial(enter, passage=start.passage, caller=start.caller, evidence=evidence)

    def admitted(
        self, start: Start, shown: Mapping[DeviceName, Verdict], outcome: EntryOutcome, /
    ) -> EntryOutcome:
        """Remember which devices nobody had; return *outcome*."""
        free = [name for name, each in shown.items() if each.freedom is not Freedom.IN_USE]
        self._machines.started(start.caller.pod, free, pods=self.ledger.book.value.pods)
        return outcome

    def _devices(self, resource: ResourceName, asked: frozenset[DeviceId]) -> tuple[Device, ...]:
        found, inventory = list[Device](), self.inventory.value
        for id_ in sorted(asked):
            device = inventory.find(resource, id_)
            if device is None:
                why = "is not on this node any more"
                if inventory.may_have(resource):
                    why = "was not found yet; the hardware is still being looked for"
                raise Wait(EntryOutcome.HARDWARE, f"{resource}/{id_} {why}")
            if device.faults:
                raise Wait(EntryOutcome.HARDWARE, f"{device.name}: {device.faults[0].text}")
            found.append(device)
        return tuple(found)

    async def _know_caller(self, start: Start) -> None:
        try:
            view = await self.reader.refresh()
        except HoldfastError as error:
            # What it said before this start may name the pod that had the devices until then.
            if start.caller.pod is None:
                text = f"it cannot be read whose container it is: {error}"
                raise Wait(EntryOutcome.UNKNOWN, text, transient=True) from error
            view = replace(self.reader.view.value, readable=False)
        # Once known, a pod stays the caller.
        book = self.ledger.book.value
        caller = who_calls(start.passage, view, book, known=start.caller.pod)
        if caller.gone is not None:
            raise Wait(
                EntryOutcome.GONE,
                f"kubelet no longer has the devices for pod {caller.gone}, whose container this is",
                said=Message.GONE.filled(owner=book.pod_name(caller.gone)),
            )
        if len(caller.pods) > 1:
            count, named = str(len(caller.pods)), " and ".join(map(book.pod_name, caller.pods))
            raise Wait(
                EntryOutcome.SEVERAL_PODS,
                f"kubelet has given the same devices to {count} pods: "
                f"{' and '.join(caller.pods)}; delete one of them",
                said=Message.SEVERAL_PODS.filled(count=count, owner=named),
            )
        start.caller, start.pods = caller, frozenset(caller.pods)
        looked_up = self.entry.waited(start) >= self.settings.value.caller_lookup
        if caller.pod is None and view.readable and not looked_up:
            raise Wait(
                EntryOutcome.UNKNOWN,
                "kubelet's checkpoint does not yet say whose container it is",
                transient=True,
            )

    def _check_promise(self, start: Start) -> None:
        """After a reboot kubelet replays its old answer, and groups may have other numbers."""
        devices, inventory = start.devices, self.inventory.value
        for entry in self.reader.view.value.entries_of(start.passage.resource, start.passage.asked):
            if entry.pod != start.caller.pod:
                continue
            broken = breach(
                entry, devices, inventory=inventory, published=self.specs.published
            ) or self.sources.of(devices).breach(entry, devices)
            if broken is not None:
                outcome = EntryOutcome.PROMISE if broken.final else EntryOutcome.SPEC
                raise Wait(outcome, broken.reason)
