"""What the kernel shows of each device, remembered: /proc is read only when it may differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.use.look import Look
from holdfast.model.book.locks import DeviceLock
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import DeviceName, PciAddress, ProcessId
from holdfast.model.use.free import KernelFacts, Opened, kept_by_driver
from holdfast.model.use.holders import Holder
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

_SCAN_SHARE = 0.0005
"""How much CPU time scans by the clock may take, however many processes there are."""
_HOLDERS_SHARE = 0.001
"""How much CPU time the looks at known holders may take."""
_MOST_FOLLOWED = 32
"""Of one device; each costs an open file, and without any left nothing works."""

_SOON = 1.0
_LATEST = 5.0
_LATEST_OF_MANY = 60.0
"""Seconds between two looks at what known holders have: while somebody waits, otherwise, and where
so many devices are held by living pods that looking takes more than its share of CPU time."""


class _Seen(Struct, frozen=True, kw_only=True):
    """What was seen of a device; `at` by a whole look, `again_at` by one at its holders alone.

    Both in monotonic seconds; `cost` is what the latter took, in seconds of CPU time.
    """

    at: float
    again_at: float
    facts: KernelFacts
    cost: float = 0.0


class KernelWatch:
    """Reads `enable` each time, which is cheap, and scans processes, which is not, only when due.

    Holders are followed by pidfd, a few of many; `exited` is called on the loop when one ends. One
    that closes the device and keeps running gives no event, so those few are looked at again.
    """

    def __init__(
        self,
        *,
        look: Look,
        pidfds: Pidfds,
        clock: Clock,
        exited: Callable[[ProcessId], None],
        rescan: Watched[float],
        exclusive_open: Watched[bool],
    ) -> None:
        """Scan what stays unexplained no more often than `rescan_pause`: at least *rescan* seconds.

        *exclusive_open*: what seems to be nobody's, and is not proven to be, may be opened for a
        moment.
        """
        self._look = look
        self._pidfds = pidfds
        self._clock = clock
        self._exited = exited
        self._rescan = rescan
        self._exclusive_open = exclusive_open
        self._seen: dict[DeviceName, _Seen] = {}
        self._held_pause = _LATEST
        self._ahead: set[DeviceName] = set()

    @property
    def holders(self) -> Mapping[DeviceName, tuple[Holder, ...]]:
        """Return the holders that were seen and have not exited since."""
        return {name: seen.facts.holders or () for name, seen in self._seen.items()}

    @property
    def rescan_pause(self) -> float:
        """Return how many seconds to wait between two scans that nothing calls for.

        A scan of thousands of processes takes a second of CPU time: the more, the rarer it is.
        """
        return max(self._rescan.value, self._look.full_scan_cpu_seconds / _SCAN_SHARE)

    async def enabled(
        self, devices: Sequence[Device]
    ) -> Mapping[DeviceName, tuple[PciAddress, ...]]:
        """Return which functions of each device are enabled now."""
        return await self._look.enabled(devices)

    async def facts(
        self,
        device: Device,
        locks: Mapping[DeviceName, DeviceLock],
        *,
        enabled: tuple[PciAddress, ...],
        pids: Sequence[int] = (),
        to_free: bool = False,
    ) -> KernelFacts:
        """Return what is known of *device*, after a new scan where that could tell more.

        *enabled* is what was just read; *pids* are looked at first. *to_free*: the answer is to
        free the device, so "nobody" must have been seen now.
        """
        seen = self._seen.get(device.name)
        if seen is not None and self._used_ahead(device.name) and enabled == seen.facts.enabled:
            return await self.tried(device, seen.facts) if to_free else seen.facts
        if seen is not None and not self._is_due(seen, enabled, to_free=to_free):
            if not self._may_have_let_go(seen, to_free=to_free):
                return seen.facts
            held = await self._look_at_holders({device: seen}, locks)
            if device.name in held:
                return held[device.name]
        # A driver is cheap to ask: while it says in use, or nothing, /proc need not be read for it.
        if pids or device.kind is DeviceKind.DRIVER:
            found = (await self._look.scan([device], locks, pids=pids))[device.name]
            if found.holders or kept_by_driver(found):
                return self._remember(device.name, found)
        found = (await self._look.scan([device], locks))[device.name]
        self._remember(device.name, found)
        return await self.tried(device, found) if to_free else found

    async def look_again(
        self, devices: Iterable[Device], locks: Mapping[DeviceName, DeviceLock]
    ) -> None:
        """Look at once at the known holders of those of *devices*, which pods have, that are due.

        `facts` would look at each alone. All of these looks together take their share of CPU time
        and no more: what they would notice late is that one of several holders let go.
        """
        took = sum(each.cost for each in self._seen.values())
        self._held_pause = max(_LATEST, min(_LATEST_OF_MANY, took / _HOLDERS_SHARE))
        due = {
            device: seen
            for device in devices
            if (seen := self._seen.get(device.name)) is not None
            and self._may_have_let_go(seen, to_free=False)
        }
        if due:
            await self._look_at_holders(due, locks)

    async def look_ahead(
        self, devices: Sequence[Device], locks: Mapping[DeviceName, DeviceLock]
    ) -> None:
        """Look at once at those of *devices*, all to be freed, that `facts` would each look at.

        `facts` uses what was seen here once, and only until the next call. One look at every
        process costs the same for one device as for all, and many pods may end together.
        """
        self._ahead = set()
        if len(devices) < 2:  # noqa: PLR2004 - one has nobody to share a look with
            return
        enabled = await self.enabled(devices)
        due = [each for each in devices if self._is_to_be_looked_at(each, enabled[each.name])]
        if len(due) > 1:
            await self.look_at_all(due, locks)
            self._ahead = {each.name for each in due}

    async def tried(self, device: Device, facts: KernelFacts) -> KernelFacts:
        """Return *facts*, just seen, with an exclusive open of a device that seems unused.

        What is enabled without a holder is passed on, or in the kernel's own hands, or it was left
        enabled: an exclusive open tells. So it does where not everybody could be seen. Only for a
        device that no pod may start on meanwhile.
        """
        if not self._exclusive_open.value or facts.holders:
            return facts
        if not facts.enabled:
            proven = facts.gaps and await self._look.open(device) is Opened.SUCCEEDED
            return replace(facts, opened=Opened.SUCCEEDED) if proven else facts
        opened = await self._look.open_idle(device, learn=not facts.gaps)
        if opened is Opened.SUCCEEDED and not facts.gaps:
            self.forget(device.name)  # its idle level is known now, which facts do not tell of
        return replace(facts, opened=opened)

    async def look_at_all(
        self,
        devices: Sequence[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> Mapping[DeviceName, KernelFacts]:
        """Scan for all of *devices* at once, among *pids* (None: every process)."""
        found = await self._look.scan(devices, locks, pids=pids)
        for name, facts in found.items():
            self._remember(name, facts)
        return found

    def forget(self, device: DeviceName) -> None:
        """Drop what was seen of *device*; it is of no interest now."""
        if self._seen.pop(device, None) is not None:
            self._follow()

    def _used_ahead(self, device: DeviceName) -> bool:
        """Tell whether *device* was looked at ahead, and remember that it is used now."""
        used = device in self._ahead
        self._ahead.discard(device)
        return used

    def _is_to_be_looked_at(self, device: Device, enabled: tuple[PciAddress, ...]) -> bool:
        seen = self._seen.get(device.name)
        return seen is None or self._is_due(seen, enabled, to_free=True)

    def _is_due(self, seen: _Seen, enabled: tuple[PciAddress, ...], *, to_free: bool) -> bool:
        age = self._clock.monotonic() - seen.at
        if enabled != seen.facts.enabled:
            return True
        if seen.facts.holders and not seen.facts.gaps:
            return False  # as long as one of them holds it: see _may_have_let_go
        if kept_by_driver(seen.facts):
            return True
        # No holder was found, or the look had gaps, which may pass: another look rarely shows more.
        if enabled or seen.facts.gaps:
            return age >= self.rescan_pause
        return to_free

    def _may_have_let_go(self, seen: _Seen, *, to_free: bool) -> bool:
        """Tell whether it is time to look again at what the known holders have."""
        if not seen.facts.holders:
            return False
        pause = self._held_pause
        if to_free:
            pause = min(_LATEST, max(_SOON, seen.cost / _HOLDERS_SHARE))
        return self._clock.monotonic() - seen.again_at >= pause

    async def _look_at_holders(
        self, wanted: Mapping[Device, _Seen], locks: Mapping[DeviceName, DeviceLock]
    ) -> dict[DeviceName, KernelFacts]:
        """Return what is known now of those of *wanted* that a followed holder still has."""
        followed = {
            device.name: [each.process.pid for each in (seen.facts.holders or ())[:_MOST_FOLLOWED]]
            for device, seen in wanted.items()
        }
        pids = sorted(frozenset[int]().union(*followed.values()))
        found = await self._look.scan(tuple(wanted), locks, pids=pids)
        scan = self._look.last_scan
        cost = scan.cpu_seconds / len(wanted) if scan is not None else 0.0
        held: dict[DeviceName, KernelFacts] = {}
        for device, seen in wanted.items():
            facts = found[device.name]
            if facts.holders:
                known = {each.process for each in facts.holders}
                rest = (seen.facts.holders or ())[_MOST_FOLLOWED:]
                others = (each for each in rest if each.process not in known)
                # What could not be seen elsewhere is as unseen as before.
                facts = replace(facts, holders=(*facts.holders, *others), gaps=seen.facts.gaps)
            elif facts.unread.intersection(followed[device.name]):
                facts = seen.facts  # one that cannot be read has not let go
            else:
                continue
            held[device.name] = facts
            self._note(device.name, facts, whole_at=seen.at, cost=cost)
        self._follow()
        return held

    def _remember(self, device: DeviceName, facts: KernelFacts) -> KernelFacts:
        self._note(device, facts, whole_at=self._clock.monotonic())
        self._follow()
        return facts

    def _note(
        self, device: DeviceName, facts: KernelFacts, *, whole_at: float, cost: float = 0.0
    ) -> None:
        now = self._clock.monotonic()
        self._seen[device] = _Seen(at=whole_at, again_at=now, facts=facts, cost=cost)

    def _follow(self) -> None:
        # While one of those that are followed lives the device is in use, whoever else exits; when
        # one exits all are looked for again. So a few are enough, of thousands with the same file.
        wanted = {
            each.process for holders in self.holders.values() for each in holders[:_MOST_FOLLOWED]
        }
        for process in self._pidfds.watched - wanted:
            self._pidfds.unwatch(process)
        for process in wanted - self._pidfds.watched:
            if not self._pidfds.watch(process, self._on_exit):
                self._drop(process)

    def _on_exit(self, process: ProcessId) -> None:
        self._drop(process)
        self._exited(process)

    def _drop(self, process: ProcessId) -> None:
        for name, seen in list(self._seen.items()):
            if any(each.process == process for each in seen.facts.holders or ()):
                # Look again at the rest: others may have the same open file.
                del self._seen[name]
