"""The entry to devices: what container starts and claims go through alike, each by its door."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from holdfast.errors import LaneStuckError, LedgerError
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import (
    BlockReason,
    Demand,
    FilledMessage,
    Message,
    of_blocked,
    of_verdict,
    sentence,
)
from holdfast.model.devices import Device, Inventory
from holdfast.model.gate.gate import (
    Obstacle,
    Rights,
    WaitReport,
    in_the_way,
    locked_devices,
    said_of,
    why_not_yet,
)
from holdfast.model.ids import DeviceName, HardwareKey, PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.leak import WaitingStart, held_up
from holdfast.model.use.free import Freedom, Verdict, judge_kernel
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STIRRED_FOR, _CALM = 2.0, 4
"""So many seconds after the last change a visit looks so many times as seldom."""
_MOST_REFUSED = 1000
"""Of so many visits that were refused it is known what they were told."""
_LOOKING = (
    "who uses the devices could not be found out in time; the look at them goes on, and what it "
    "shows counts for the next try"
)


class EntryOutcome(Enum):
    """How a visit ended, or why it has to wait; metrics show it of container starts."""

    PASSED = "passed"
    UNVERIFIED = "unverified"
    HELD = "held"
    IN_USE = "in-use"
    UNKNOWN = "unknown"
    SEVERAL_PODS = "several-pods"
    GONE = "gone"
    HARDWARE = "hardware"
    PROMISE = "promise"
    SPEC = "spec"
    LEDGER = "ledger"
    STARTING = "starting"
    WITHHELD = "withheld"


PASSES = frozenset({EntryOutcome.PASSED, EntryOutcome.UNVERIFIED})
"""The outcomes that are no refusal."""
_FINAL = frozenset({EntryOutcome.SEVERAL_PODS, EntryOutcome.GONE, EntryOutcome.PROMISE})
"""The outcomes that waiting does not change."""
_MESSAGES = {
    EntryOutcome.HARDWARE: Message.HARDWARE,
    EntryOutcome.PROMISE: Message.PROMISE,
    EntryOutcome.LEDGER: Message.LEDGER,
}
"""What is said of an outcome where a reason in words is all that there is to say."""


class Wait(Exception):  # noqa: N818 - not an error: the way in which one try ends
    """Why a visit has to wait; `transient`: that is soon over, and says nothing of its devices.

    `level` is that of its line in the log: kubelet asks again and again, and is told the same.
    """

    def __init__(
        self,
        outcome: EntryOutcome,
        reason: str,
        held_up: frozenset[WaitingStart] = frozenset(),
        *,
        transient: bool = False,
        said: FilledMessage | None = None,
        kept: int = 0,
    ) -> None:
        """Wait for *reason*; *held_up* is what only its own pod's processes hold up.

        *said* is the reason as people are told it, and *kept* of how many devices it is true.
        """
        super().__init__(reason)
        self.outcome = outcome
        self.held_up = held_up
        self.transient = transient
        self.said = said or _MESSAGES.get(outcome, Message.OTHER).filled(reason=reason)
        self.kept = kept
        self.level = logging.WARNING

    @property
    def final(self) -> bool:
        """Tell whether waiting does not change it."""
        return self.outcome in _FINAL

    def told(self, visit: "Visit") -> str:
        """Return what kubelet is answered to *visit*, and shows in its events.

        It is the same for as long as the reason is: kubelet merges events by their text.
        """
        asked = Demand(what=visit.what, devices=visit.asked, kept=self.kept, final=self.final)
        return sentence(self.said, asked)


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """One call of kubelet's that waits for its devices, and what is known of it so far.

    `what` is its name for people, and `passed` what the history says once it has entered. `since`
    is when it began to wait, in monotonic seconds. `asked` are the devices that it is about, by the
    names under which they are asked for, once known. `pods` are those that it is for and `devices`
    those that nobody else may use, once known; `doubt` is what of that could not be read. `doing`
    is what a try waits for, as the reason if that does not end.
    """

    what: str
    passed: str
    since: float
    asked: tuple[DeviceName, ...] = ()
    pods: frozenset[PodUid] = frozenset()
    devices: tuple[Device, ...] = ()
    doubt: str = ""
    doing: str = "the node did not answer in time"


V_contra = TypeVar("V_contra", bound=Visit, contravariant=True)


class DoorSteps(Protocol[V_contra, T_co]):
    """The steps of a try that are a door's own, in their order; each may raise Wait."""

    async def identify(self, visit: V_contra, /) -> None:
        """Find out who asks and for which devices, and whether what it was promised still holds."""

    async def enlist(self, visit: V_contra, /) -> Obstacle | None:
        """Put it into the queue where it is in none; return why it waits before even that.

        Its `devices` are known afterwards.
        """

    def rights(self, visit: V_contra, book: Book, /) -> Rights:
        """Return what it has by *book*."""

    def held(self, visit: V_contra, keys: frozenset[HardwareKey], /) -> None:
        """Hear that somebody else has the hardware with *keys*, or is before it in the queue."""

    def judge(self, visit: V_contra, device: Device, shown: Verdict, /) -> Verdict:
        """Return whether *device* is free for this one; *shown* is what the kernel shows of it."""

    async def hand_over(
        self, visit: V_contra, evidence: str, /
    ) -> Callable[[Draft], Obstacle | None]:
        """Make ready what its containers are given, and return the rule that writes it down.

        The rule returns what it still waits for. What it needs of *visit* is taken now: it runs on
        the ledger's thread, perhaps too late.
        """

    def admitted(
        self, visit: V_contra, shown: Mapping[DeviceName, Verdict], outcome: EntryOutcome, /
    ) -> T_co:
        """Return the answer for one that has entered."""


class NodeWatch(Protocol):
    """What has been seen of the node: the watcher."""

    @property
    def looked(self) -> asyncio.Event:
        """Return what is set after the first full look at the node."""

    @property
    def nudges(self) -> Watched[int]:
        """Return what changes when something on the node may have."""

    def obstacle(self, device: DeviceName) -> BlockReason | None:
        """Return what was last seen to keep *device* from its next pod; None: nothing was."""


class HardwareWork(Protocol):
    """What we ourselves do to hardware: the resetter."""

    def at_work(self, keys: frozenset[HardwareKey]) -> str:
        """Return what is being done to hardware with any of *keys*; empty: nothing."""


@dataclass(kw_only=True, eq=False)
class Entry:
    """Lets a visit enter once it has its locks and the kernel shows its devices free.

    A door has its own, which knows who waits there. `held_up` is what only the pods of these
    visits themselves hold up.

    It decides by `ledger` and `look`; nobody enters before `watcher` has looked at the node, nor
    while `resetter` is at work on the devices. Who waits tries again every `poll` seconds, and at
    each change of the book, `view`, `inventory` or what `watcher` sees.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    view: Watched[KubeletView]
    look: DeviceUse
    watcher: NodeWatch
    resetter: HardwareWork
    clock: Clock
    poll: Watched[float]

    def __post_init__(self) -> None:
        watcher, look = self.watcher, self.look
        self._followed = (self.ledger.book, self.view, self.inventory, watcher.nudges, look.exits)
        self._waits: dict[Visit, Wait] = {}
        self._refused: dict[tuple[str, frozenset[PodUid]], str] = {}
        """What those who have not entered yet were told last, the latest last."""
        self.held_up: Watched[frozenset[WaitingStart]] = Watched(frozenset())

    @property
    def count(self) -> int:
        """Return how many visits wait."""
        return len(self._waits)

    def waiting(self, now: float) -> Iterator[WaitReport]:
        """Yield each visit for a known pod that waits at *now*, in monotonic seconds."""
        for visit, wait in self._waits.items():
            if visit.pods and not wait.transient:
                yield WaitReport(pods=visit.pods, why=wait.told(visit), seconds=now - visit.since)

    async def admit(
        self, door: DoorSteps[V_contra, T], visit: V_contra, *, wait: float, longest: float
    ) -> T:
        """Return what *door* answers to *visit* once it has entered; raise Wait if it has not.

        It waits for *wait* seconds, and a try that began in time ends after *longest* seconds.
        """
        try:
            answer = await self._admit(door, visit, wait, longest)
        except Wait as reason:
            self._refuse(visit, reason)
            raise
        else:
            self._refused.pop((visit.what, frozenset(visit.pods)), None)
            return answer
        finally:
            self._waits.pop(visit, None)
            self._publish()

    def _refuse(self, visit: Visit, reason: Wait) -> None:
        told, who = reason.told(visit), (visit.what, frozenset(visit.pods))
        if self._refused.pop(who, None) == told:
            reason.level = logging.DEBUG
        self._refused[who] = told
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _admit(
        self, door: DoorSteps[V_contra, T], visit: V_contra, wait: float, longest: float
    ) -> T:
        last: Wait | None = None
        stirred = visit.since
        while True:
            changes = Changes(self._followed)
            patience = asyncio.timeout(longest - self.waited(visit))
            try:
                async with patience:
                    return await self._try(door, visit)
            except Wait as reason:
                self._waits[visit] = reason
                self._publish()
                left = wait - self.waited(visit)
                if left <= 0 or reason.final:
                    raise
                last = None if reason.transient else reason
                visit.doing = str(reason)
            except TimeoutError:
                if not patience.expired():
                    raise
                raise last or self._late(visit) from None
            if await changes.wait(min(self._pause(stirred), left)):
                stirred = self.clock.monotonic()

    def _pause(self, stirred: float) -> float:
        """Return how long to wait for a change, in seconds: what has begun to change goes on."""
        calm = self.clock.monotonic() - stirred >= _STIRRED_FOR
        return self.poll.value * (_CALM if calm else 1)

    def waited(self, visit: Visit) -> float:
        """Return for how many seconds *visit* has waited."""
        return self.clock.monotonic() - visit.since

    async def _try(self, door: DoorSteps[V_contra, T], visit: V_contra) -> T:
        """Return the answer, or raise Wait with the reason."""
        if not self.watcher.looked.is_set():
            raise Wait(
                EntryOutcome.STARTING,
                "holdfast has just started and has not scanned the node yet",
                transient=True,
            )
        await door.identify(visit)
        visit.doing = "it could not be recorded in time"
        obstacle = await door.enlist(visit)
        book = self.ledger.book.value
        rights = door.rights(visit, book)
        obstacle = obstacle or why_not_yet(rights, book)
        if obstacle is not None and obstacle.withheld:
            raise Wait(EntryOutcome.WITHHELD, obstacle.text, said=obstacle.said)
        if obstacle is not None:
            door.held(visit, rights.keys)
            raise self._held(visit, rights.keys, obstacle)
        if doing := self.resetter.at_work(rights.keys):  # its pod was over, and has come back
            raise Wait(EntryOutcome.IN_USE, doing, said=Message.BUSY.filled(reason=doing))
        visit.doing = _LOOKING
        shown = await self._shown(visit.devices)
        verdicts = {each.name: door.judge(visit, each, shown[each.name]) for each in visit.devices}
        _check_free(visit, verdicts, book)
        unverified = _unverified(verdicts, visit.doubt)
        enter = await door.hand_over(visit, _evidence(visit.passed, verdicts, unverified))
        visit.doing = "it could not be recorded in time"
        obstacle = await self.record(enter)
        if obstacle is not None:
            raise self._held(visit, rights.keys, obstacle)
        outcome = EntryOutcome.UNVERIFIED if unverified else EntryOutcome.PASSED
        return door.admitted(visit, shown, outcome)

    async def record(self, decide: Callable[[Draft], T]) -> T:
        """Let *decide* change the book, and return its answer; raise Wait where that fails."""
        try:
            return await self.ledger.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            raise Wait(EntryOutcome.LEDGER, f"it cannot be recorded: {error}") from error

    async def _shown(self, devices: Sequence[Device]) -> Mapping[DeviceName, Verdict]:
        """Return whether the kernel shows anybody on each device, the caller's own pod included."""
        if not devices:
            return {}
        try:
            seen = await self.look.facts(devices)
        except LaneStuckError as error:
            raise Wait(EntryOutcome.UNKNOWN, f"the node cannot be scanned: {error}") from error
        return {each.name: judge_kernel(seen[each.name]) for each in devices}

    def _held(self, visit: Visit, keys: frozenset[HardwareKey], obstacle: Obstacle) -> Wait:
        """Return the Wait for what somebody else has, or is first to have."""
        devices = [(each.name, each.keys) for each in visit.devices]
        said, kept = said_of(obstacle, devices, self.watcher.obstacle, self.ledger.book.value)
        text = obstacle.text + self._by_whom(visit, keys)
        return Wait(EntryOutcome.HELD, text, said=said, kept=kept)

    def _late(self, visit: Visit) -> Wait:
        """Return the Wait of a try that did not end in time, with what is known of the devices."""
        book, text = self.ledger.book.value, visit.doing + self._by_whom(visit)
        seen = (self.watcher.obstacle(each.name) for each in visit.devices)
        blocked = next((each for each in seen if each is not None), None)
        outcome, said = EntryOutcome.UNKNOWN, Message.OTHER.filled(reason=visit.doing)
        if blocked is not None and blocked.holders:  # who has it says more than what took too long
            outcome, said = EntryOutcome.IN_USE, of_blocked(blocked, visit.pods, book)
        return Wait(outcome, text, said=said)

    def _by_whom(self, visit: Visit, keys: frozenset[HardwareKey] = frozenset()) -> str:
        """Return what is known to be in the way of *visit*, to complete a text with."""
        # The same hardware may be locked under another resource's name.
        locked = locked_devices(self.ledger.book.value, keys)
        names = dict.fromkeys((*(each.name for each in visit.devices), *locked))
        known = [self.watcher.obstacle(name) for name in names]
        return "".join(f"; {each}" for each in known if each is not None)

    def _publish(self) -> None:
        every = frozenset[WaitingStart]().union(*(wait.held_up for wait in self._waits.values()))
        if every != self.held_up.value:
            self.held_up.set(every)


def _check_free(visit: Visit, verdicts: Mapping[DeviceName, Verdict], book: Book) -> None:
    """Raise Wait for the first device that is in use, or of which that cannot be found out."""
    blocked = in_the_way(verdicts)
    if not blocked:
        return
    name, text = next(iter(blocked.items()))
    pod = next(iter(visit.pods)) if len(visit.pods) == 1 else None
    in_use = verdicts[name].freedom is Freedom.IN_USE
    raise Wait(
        EntryOutcome.IN_USE if in_use else EntryOutcome.UNKNOWN,
        text,
        held_up(pod, name, verdicts[name].holders),
        said=of_verdict(name, verdicts[name], visit.pods, book),
        kept=len(blocked),
    )


def _unverified(verdicts: Mapping[DeviceName, Verdict], doubt: str) -> str:
    """Return the first thing that could not be read; *doubt* is what of who asks."""
    unknown = (each.reason for each in verdicts.values() if each.freedom is Freedom.UNKNOWN)
    return next(unknown, doubt)


def _evidence(passed: str, verdicts: Mapping[DeviceName, Verdict], unverified: str) -> str:
    """Return what the history says of one that has entered."""
    if unverified:
        return f"{passed}, unverified: {unverified}"
    shown = next((each.reason for each in verdicts.values()), "")
    return f"{passed}: {shown}" if shown else passed
