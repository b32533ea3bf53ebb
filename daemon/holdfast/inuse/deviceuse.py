"""What the kernel shows of each device, remembered: /proc is read only when it may differ."""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.use.look import Look
from holdfast.inuse.budget import Budget
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceName, PciAddress, ProcessId
from holdfast.model.use.free import Freedom, KernelFacts, OpenOutcome, judge_kernel, kept_by_driver
from holdfast.model.use.holders import Holder
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only
from holdfast.runtime.watched import Watched

_MOST_FOLLOWED = 32
"""Of one device; each costs an open file, and without any left nothing works."""
_AWAITED = 5.0
"""For so many seconds after a start asked for a device it may ask again."""
_COUNTS_FOR = 60.0
"""For so many seconds after its end a look counts for a start that was answered before that end:
kubelet asks again within 15."""

Enabled = Mapping[DeviceName, tuple[PciAddress, ...]]
"""Which functions of each device are enabled, as one look at all of them showed."""
Facts = Mapping[DeviceName, KernelFacts]
Locks = Mapping[DeviceName, DeviceLock]


class _LastSight(Struct, frozen=True, kw_only=True):
    """What was last seen of a device, by a look that began at `since`, in monotonic seconds.

    `whole`: at every process. `may_open`: its group could be opened as a proof. `to_free`: nobody
    could start on it. At `again` its holders alone were looked at, for `cost` s of CPU time.
    """

    facts: KernelFacts
    since: float
    whole: bool
    may_open: bool = False
    to_free: bool = False
    again: float = -math.inf
    cost: float = 0.0

    @property
    def followed(self) -> tuple[Holder, ...]:
        """Return the holders that are looked at again: while one has the device it is in use."""
        return (self.facts.holders or ())[:_MOST_FOLLOWED]


class _LateLook(Struct, frozen=True, kw_only=True):
    """What a look showed that ended, at `ended`, when the starts it was for had been answered.

    `lock` is the one that was on the device when the look began.
    """

    facts: KernelFacts
    lock: DeviceLock
    ended: float


class _Round:
    """One look, and who waits for it: whatever is wanted before it begins."""

    def __init__(self) -> None:
        self.wanted: dict[DeviceName, Device] = {}
        self.askers: list[frozenset[DeviceName]] = []
        """What each of those wants who still wait."""
        self.found: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()

    @property
    def awaited(self) -> frozenset[DeviceName]:
        """Return the devices that somebody still waits for."""
        return frozenset[DeviceName]().union(*self.askers)


@dataclass(kw_only=True, eq=False)
class DeviceUse:
    """Remembers who holds which device, and looks again where that may have changed.

    `enable` is read each time, which is cheap; all processes, which is not, only when it could tell
    more. Holders are followed by pidfd, a few of many. One that closes the device and keeps running
    gives no sign, so those few are looked at again. What proves a device free is always seen again.

    What stays unexplained is looked for no more often than each `rescan` seconds. A start's look
    attributes holders by the locks of `book`. `exclusive_open`: what seems to be free, and is not
    proven to be, may be opened for a moment.
    """

    look: Look
    pidfds: Pidfds
    clock: Clock
    book: Watched[Book]
    rescan: Watched[float]
    exclusive_open: Watched[bool]

    def __post_init__(self) -> None:
        self.budget = Budget(self.look, rescan=self.rescan)
        self._seen: dict[DeviceName, _LastSight] = {}
        self._followed: Mapping[ProcessId, Sequence[DeviceName]] = {}
        self._asked: dict[DeviceName, float] = {}
        """When a start asked last."""
        self._late: dict[DeviceName, _LateLook] = {}
        self._turn = asyncio.Lock()
        self._next: _Round | None = None
        self._now: _Round | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.exits: Watched[int] = Watched(0)
        """How many holders were seen to exit."""

    @property
    def holders(self) -> Mapping[DeviceName, tuple[Holder, ...]]:
        """Return the holders that were seen and have not exited since."""
        return {name: self.holders_of(name) for name in self._seen}

    def holders_of(self, device: DeviceName) -> tuple[Holder, ...]:
        """Return those of *device*."""
        seen = self._seen.get(device)
        return () if seen is None else seen.facts.holders or ()

    async def facts(self, devices: Iterable[Device]) -> Facts:
        """Return what a look that begins after this call shows of *devices*, for a start.

        One look at a time: whoever asks meanwhile shares the next. Of a device that is in use only
        what showed that is looked at again, its holders or `enable`; all processes are once that
        has changed. A look that ended too late for one call counts for the next one that has the
        same lock. Raise LaneStuckError when the node does not answer.
        """
        devices = tuple(devices)
        names = frozenset(each.name for each in devices)
        under_way = self._now
        if under_way is not None and names <= under_way.wanted.keys() - under_way.awaited:
            await asyncio.wait([under_way.found])
        late = await self._found_late(devices)
        if late is not None:
            return late
        turn = self._next
        if turn is None:
            turn = self._next = _Round()
            task = asyncio.create_task(self._run(turn), name="look for waiting starts")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        turn.wanted.update({device.name: device for device in devices})
        turn.askers.append(names)
        try:
            return await asyncio.shield(turn.found)
        finally:
            turn.askers.remove(names)

    async def known(
        self,
        devices: Iterable[Device],
        locks: Locks,
        *,
        enabled: Enabled,
        pids: Mapping[DeviceName, Sequence[int]] = MappingProxyType({}),
        to_free: Collection[DeviceName] = (),
    ) -> Facts:
        """Return what is known of *devices*, after new looks where those could tell more.

        A look at every process costs the same for one device as for hundreds: all share one.
        *enabled* is what was just read; *pids* of a device are looked at first. *to_free*: the
        answer is to free these, so "nobody" must have been seen now.
        """
        self.budget.holders_cost(sum(each.cost for each in self._seen.values()))
        wanted = {device.name: device for device in devices}
        found: dict[DeviceName, KernelFacts] = {}
        held: dict[Device, _LastSight] = {}
        for name, device in wanted.items():
            seen, freeing = self._seen.get(name), name in to_free
            if seen is None or self._is_due(seen, enabled[name], to_free=freeing):
                continue
            if self._may_have_let_go(seen, to_free=freeing):
                held[device] = seen
            else:
                found[name] = seen.facts
        # No sign tells of a change there: an open does, or a look that is made for others.
        vague = {name for name, facts in found.items() if not (facts.enabled or facts.holders)}
        told = found.keys() - vague
        found |= await self._look_at_holders(held, locks) if held else {}
        for device in [each for name, each in wanted.items() if name not in found]:
            found |= await self._look_first(device, locks, pids.get(device.name, ()))
        if wanted.keys() - found.keys():
            due = [each for name, each in wanted.items() if name not in found or name in vague]
            found |= await self.scan(due, locks, to_free=to_free)
        asked = [each for name, each in wanted.items() if name in to_free and name not in told]
        if asked:  # all at once: no open may grow old behind another; `enable` last, which is cheap
            tried = await asyncio.gather(*(self.tried(each, found[each.name]) for each in asked))
            now = await self.look.enabled(asked)
            for device, facts in zip(asked, tried, strict=True):
                found[device.name] = _enabled_since(facts, now[device.name])
        return found

    async def _look_first(self, device: Device, locks: Locks, pids: Sequence[int]) -> Facts:
        """Return what keeps *device* for all that is looked at before /proc as a whole is read.

        That are *pids*, and its driver, which is cheap to ask: while it says in use, or nothing,
        /proc need not be read for it.
        """
        if not (pids or device.kind is DeviceKind.DRIVER):
            return {}
        began = self.clock.monotonic()
        found = await self.look.scan([device], locks, pids=pids)
        if not _is_kept(found[device.name]):
            return {}
        self._note({device.name: _LastSight(facts=found[device.name], since=began, whole=False)})
        return found

    async def tried(self, device: Device, facts: KernelFacts) -> KernelFacts:
        """Return *facts* with an exclusive open of a device that seems unused.

        What is enabled without a holder is passed on, or in the kernel's own hands, or it was left
        enabled: an exclusive open tells. So it does where not everybody could be seen. Only for a
        device that no pod may start on meanwhile.
        """
        if not self.exclusive_open.value or facts.holders:
            return facts
        if not facts.enabled:
            return replace(facts, opened=await self.look.open(device)) if facts.gaps else facts
        opened = await self.look.open_idle(device, learn=not facts.gaps)
        if opened is OpenOutcome.SUCCEEDED and not facts.gaps:
            self.forget(device.name)  # its idle level is known now, which facts do not tell of
        return replace(facts, opened=opened)

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Locks,
        *,
        pids: Sequence[int] | None = None,
        to_free: Collection[DeviceName] = (),
    ) -> Facts:
        """Look now for all of *devices* at once, among *pids* (None: every process).

        *to_free*: no pod may start on these of them.
        """
        began = self.clock.monotonic()
        found = await self.look.scan(devices, locks, pids=pids)
        self._note(
            {
                name: _LastSight(
                    facts=facts, since=began, whole=pids is None, to_free=name in to_free
                )
                for name, facts in found.items()
            }
        )
        return found

    def forget(self, device: DeviceName) -> None:
        """Drop what was seen of *device*; it is of no interest now."""
        seen = self._seen.pop(device, None)
        if seen is not None and seen.followed:
            self._follow()

    def forget_unless_awaited(self, device: DeviceName) -> None:
        """Drop what was seen of *device*, in which a start alone can have an interest now."""
        if self.clock.monotonic() - self._asked.get(device, -math.inf) >= _AWAITED:
            self._asked.pop(device, None)
            self.forget(device)
        elif (seen := self._seen.get(device)) is not None:
            self._seen[device] = replace(seen, to_free=False)

    def keep(self, devices: Collection[DeviceName]) -> None:
        """Drop what was seen of all but *devices*, which are those of the node."""
        keep_only(devices, self._late, self._asked, self._seen)
        self._follow()

    # What a start asks.

    async def _run(self, turn: _Round) -> None:
        async with self._turn:
            self._next = None  # who asks from here on wants a look that begins later
            self._now = turn
            locks = self.book.value.locks
            try:
                found = await self._look_for_starts(tuple(turn.wanted.values()), locks)
            except Exception as error:  # noqa: BLE001 - handed to those who wait
                turn.found.set_exception(error)
                turn.found.exception()  # they may all have given up
            else:
                self._note_late(found, locks, turn.awaited)
                turn.found.set_result(found)
            finally:
                self._now = None
                turn.found.cancel()  # where this very task was cancelled

    def _note_late(self, found: Facts, locks: Locks, awaited: Collection[DeviceName]) -> None:
        """Keep for the next call what is no obstacle, of those devices that nobody waits for now.

        *locks* are those from before the look.
        """
        ended = self.clock.monotonic()
        for name, facts in found.items():
            lock = locks.get(name)
            if lock is not None and name not in awaited and not _is_obstacle(facts):
                self._late[name] = _LateLook(facts=facts, lock=lock, ended=ended)

    async def _found_late(self, devices: Sequence[Device]) -> Facts | None:
        """Return what a look showed of all *devices* that ended too late for the call before.

        Without it nothing would ever start on a node where a look takes longer than kubelet waits.
        "Nobody" is then older than this call. It counts where each device's lock is the very one
        from before that look, but for the name of its pod, because then nobody could start on it
        since: a lock becomes a pod's only once the end of the pod before was proven, with the
        kernel's word that nothing was left, and each start that passes changes the lock. Only a
        process that no lock stops may have opened the device since. It can do so during any look,
        too; here it has a minute more, and what is cheap to ask tells of it: the exclusive open,
        `enable`, the driver. It counts once, and for all devices of a start together, or each call
        would use up what the former one found out of one of them.
        """
        late = {each: one for each in devices if (one := self._late_of(each.name)) is not None}
        if not late or len(late) < len(devices):
            return None
        opened = await self._opened(devices)
        enabled = await self.look.enabled(devices)
        drivers = [each for each in devices if each.kind is DeviceKind.DRIVER]
        asked = await self.look.scan(drivers, self.book.value.locks, pids=()) if drivers else {}
        found: dict[DeviceName, KernelFacts] = {}
        for each, before in late.items():
            proven = opened[each] is OpenOutcome.SUCCEEDED
            same = proven or enabled[each.name] == before.facts.enabled
            now = asked.get(each.name)
            if not same or opened[each] is not before.facts.opened:
                return None
            if now is not None and _is_obstacle(now):
                return None
            sight = before.facts.sight if now is None else now.sight
            found[each.name] = replace(before.facts, sight=sight)
        if any(self._late_of(each.name) is not before for each, before in late.items()):
            return None  # meanwhile another call used it, or its lock moved
        for name in found:
            del self._late[name]
        return found

    def _late_of(self, device: DeviceName) -> _LateLook | None:
        """Return what still counts of a look at *device* that ended too late."""
        late = self._late.get(device)
        if late is None or self.clock.monotonic() - late.ended >= _COUNTS_FOR:
            return None
        lock = self.book.value.locks.get(device)
        # Kubelet's checkpoint may have named its pod since.
        same = lock is not None and late.lock in {lock, replace(lock, pod=None)}
        return late if same else None

    async def _look_for_starts(self, devices: Sequence[Device], locks: Locks) -> Facts:
        began = self.clock.monotonic()
        may_open = self.exclusive_open.value
        self._asked.update((each.name, began) for each in devices)
        found = await self._held_still(devices, locks)
        found |= await self._busy_still([each for each in devices if each.name not in found])
        rest = [each for each in devices if each.name not in found]
        opened = await self._opened(rest)
        dear = [each for each in rest if opened[each] is not OpenOutcome.SUCCEEDED]
        shown = await self.look.scan(dear, locks) if dear else {}
        new = {
            each.name: _LastSight(
                facts=replace(
                    shown.get(each.name, KernelFacts()), kind=each.kind, opened=opened[each]
                ),
                since=began,
                whole=each.name in shown,
                may_open=may_open,
            )
            for each in rest
        }
        self._note(new)
        return found | {name: seen.facts for name, seen in new.items()}

    async def _held_still(
        self, devices: Sequence[Device], locks: Locks
    ) -> dict[DeviceName, KernelFacts]:
        """Return those devices that their known holders still have, or their driver still keeps.

        Only where everybody was looked for once: who holds it tells whether a start has to wait.
        """
        known = self._seen_whole(devices)
        wanted = {each: seen for each, seen in known.items() if _is_kept(seen.facts)}
        return await self._look_at_holders(wanted, locks) if wanted else {}

    async def _busy_still(self, devices: Sequence[Device]) -> dict[DeviceName, KernelFacts]:
        """Return those devices that are in use by nobody who can be seen, as they were before."""
        now = self.clock.monotonic()
        known = {
            each: seen.facts
            for each, seen in self._seen_whole(devices).items()
            if not seen.facts.holders
            and (seen.facts.enabled or seen.facts.opened is OpenOutcome.BUSY)
            and seen.may_open is self.exclusive_open.value
            and now - seen.since < self.budget.start
        }
        enabled = await self.look.enabled(known) if known else {}
        same = {each: facts for each, facts in known.items() if enabled[each.name] == facts.enabled}
        opened = await self._opened([each for each, facts in same.items() if not facts.enabled])
        return {
            each.name: facts
            for each, facts in same.items()
            if facts.enabled or opened[each] is OpenOutcome.BUSY
        }

    def _seen_whole(self, devices: Sequence[Device]) -> dict[Device, _LastSight]:
        """Return how those of *devices* were last seen whose look was at every process."""
        seen = {each: self._seen.get(each.name) for each in devices}
        return {each: one for each, one in seen.items() if one is not None and one.whole}

    async def _opened(self, devices: Sequence[Device]) -> dict[Device, OpenOutcome]:
        """Open *devices*, where that is allowed, all at once: each may take its driver seconds."""
        if not self.exclusive_open.value:
            return dict.fromkeys(devices, OpenOutcome.UNAVAILABLE)
        opened = await asyncio.gather(*map(self.look.open, devices))
        return dict(zip(devices, opened, strict=True))

    # What is remembered, and for how long.

    def _is_due(self, seen: _LastSight, enabled: tuple[PciAddress, ...], *, to_free: bool) -> bool:
        facts = seen.facts
        if enabled != facts.enabled or facts.holders is None:
            return True
        if facts.holders and not facts.gaps:
            return False  # as long as one of them holds it: see _may_have_let_go
        if kept_by_driver(facts):
            return True
        if to_free and not (facts.holders or (seen.to_free and (enabled or facts.gaps))):
            return True
        # No holder was found, or the look had gaps, which may pass: another look rarely shows more.
        may_pass = bool(enabled or facts.gaps)
        return may_pass and self.clock.monotonic() - seen.since >= self.budget.clock

    def _may_have_let_go(self, seen: _LastSight, *, to_free: bool) -> bool:
        """Tell whether it is time to look again at what the known holders have."""
        if not seen.facts.holders:
            return False
        budget = self.budget
        pause = budget.holders_to_free(seen.cost) if to_free else budget.holders
        return self.clock.monotonic() - max(seen.since, seen.again) >= pause

    async def _look_at_holders(
        self, wanted: Mapping[Device, _LastSight], locks: Locks
    ) -> dict[DeviceName, KernelFacts]:
        """Return what is known now of those of *wanted* that a followed holder still has.

        Or that their driver still keeps.
        """
        followed = {
            device.name: {each.process.pid for each in seen.followed}
            for device, seen in wanted.items()
        }
        pids = sorted(frozenset[int]().union(*followed.values()))
        began = self.clock.monotonic()
        found = await self.look.scan(tuple(wanted), locks, pids=pids)
        scan = self.look.last_scan
        cost = scan.cpu_seconds / len(wanted) if scan is not None else 0.0
        held: dict[DeviceName, KernelFacts] = {}
        for device, seen in wanted.items():
            facts = found[device.name]
            if facts.holders:
                known = {each.process for each in facts.holders}
                rest = (seen.facts.holders or ())[_MOST_FOLLOWED:]
                others = (each for each in rest if each.process not in known)
                facts = replace(facts, holders=(*facts.holders, *others))
            elif facts.unread & followed[device.name]:
                facts = seen.facts  # one that cannot be read has not let go
            elif not kept_by_driver(facts):
                continue
            # What could not be seen elsewhere is as unseen as before.
            held[device.name] = replace(
                facts,
                gaps=seen.facts.gaps,
                unread=seen.facts.unread,
                of_unread=seen.facts.of_unread,
                more=seen.facts.more,
            )
        self._note(
            {
                device.name: replace(seen, facts=held[device.name], again=began, cost=cost)
                for device, seen in wanted.items()
                if device.name in held
            }
        )
        return held

    def _note(self, seen: Mapping[DeviceName, _LastSight]) -> None:
        self._seen.update(seen)
        for name, each in seen.items():
            if _is_obstacle(each.facts):
                self._late.pop(name, None)
        self._follow()

    def _follow(self) -> None:
        # While one of those that are followed lives the device is in use, whoever else exits; when
        # one exits all are looked for again. So a few are enough, of thousands with the same file.
        self._followed = grouped(
            (each.process, name) for name, seen in self._seen.items() for each in seen.followed
        )
        wanted = self._followed.keys()
        for process in self.pidfds.watched - wanted:
            self.pidfds.unwatch(process)
        for process in wanted - self.pidfds.watched:
            try:
                lives = self.pidfds.watch(process, self._on_exit)
            except HostError:  # its end is noticed when it is looked at again
                continue
            if not lives:
                self._drop(process)

    def _on_exit(self, process: ProcessId) -> None:
        self._drop(process)
        # A pod may hand its device to a new process every few milliseconds.
        due = (self.look.full_scan_at or -math.inf) + self.budget.exits
        pause = max(0.0, due - self.clock.monotonic())
        loop = asyncio.get_running_loop()
        loop.call_later(pause, lambda: self.exits.set(self.exits.value + 1))

    def _drop(self, process: ProcessId) -> None:
        for name in self._followed.get(process, ()):
            # Look again at the rest: others may have the same open file.
            self._seen.pop(name, None)


def _is_kept(facts: KernelFacts) -> bool:
    return bool(facts.holders) or kept_by_driver(facts)


def _enabled_since(facts: KernelFacts, now: tuple[PciAddress, ...]) -> KernelFacts:
    """Return *facts* with what is enabled *now*, after the look and the open that they are of.

    What was enabled before the look counts too: nobody was looked for since. And an open is no
    proof any more once more is enabled than before it.
    """
    more = tuple(each for each in now if each not in facts.enabled)
    outdated = more and facts.opened is OpenOutcome.SUCCEEDED
    opened = OpenOutcome.UNAVAILABLE if outdated else facts.opened
    return replace(facts, enabled=(*facts.enabled, *more), opened=opened)


def _is_obstacle(facts: KernelFacts) -> bool:
    """Tell whether *facts* keep any start from its device, whoever it is for."""
    verdict = judge_kernel(facts)
    return verdict.freedom is Freedom.IN_USE or verdict.final
