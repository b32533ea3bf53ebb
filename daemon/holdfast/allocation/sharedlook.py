"""One look at the kernel for all container starts that wait at the gate."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.host.use.look import Look
from holdfast.model.book.locks import DeviceLock
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceName
from holdfast.model.use.free import Freedom, KernelFacts, Opened, judge_kernel, kept_by_driver
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

_SCAN_SHARE = 0.005
"""How much CPU time scans may take that only tell who has a device that is in use anyway."""
_LONGEST_PAUSE = 60.0
_MOST_FOLLOWED = 32
"""Holders of one device that are looked at again: while one of them has it, it is in use."""

Facts = Mapping[DeviceName, KernelFacts]
Locks = Mapping[DeviceName, DeviceLock]


class _InUse(Struct, frozen=True, kw_only=True):
    """What showed a device in use, and when all processes were looked at for it.

    `may_open`: whether its group could be opened as a proof.
    """

    facts: KernelFacts
    scanned_at: float
    may_open: bool


class _Round:
    """One look, and who waits for it: whatever is wanted before it begins."""

    def __init__(self) -> None:
        self.wanted: dict[DeviceName, Device] = {}
        self.found: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()


class SharedLook:
    """Tells who uses devices: one look at a time, whoever asks meanwhile shares the next.

    What proves a device free is always seen anew. Of one that is in use only what showed that is
    looked at again, its holders or `enable`; all processes are once that has changed.
    """

    def __init__(
        self,
        look: Look,
        *,
        locks: Callable[[], Locks],
        clock: Clock,
        exclusive_open: Watched[bool],
    ) -> None:
        """Look with *look*; `locks` returns those of the present book."""
        self._look = look
        self._locks = locks
        self._clock = clock
        self._exclusive_open = exclusive_open
        self._in_use: dict[DeviceName, _InUse] = {}
        self._turn = asyncio.Lock()
        self._next: _Round | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def facts(self, devices: Iterable[Device]) -> Facts:
        """Return what a look that begins after this call shows of *devices*.

        Raise LaneStuckError when the node does not answer.
        """
        turn = self._next
        if turn is None:
            turn = self._next = _Round()
            task = asyncio.create_task(self._run(turn), name="look for waiting starts")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        turn.wanted.update({device.name: device for device in devices})
        return await asyncio.shield(turn.found)

    async def _run(self, turn: _Round) -> None:
        async with self._turn:
            self._next = None  # who asks from here on wants a look that begins later
            try:
                found = await self._look_at(tuple(turn.wanted.values()))
            except Exception as error:  # noqa: BLE001 - handed to those who wait
                turn.found.set_exception(error)
                turn.found.exception()  # they may all have given up
            else:
                turn.found.set_result(found)
            finally:
                turn.found.cancel()  # where this very task was cancelled

    async def _look_at(self, devices: Sequence[Device]) -> Facts:
        locks = self._locks()
        found = await self._held_still(devices, locks)
        found |= await self._busy_still([each for each in devices if each.name not in found])
        rest = [each for each in devices if each.name not in found]
        opened = {each.name: await self._open(each) for each in rest}
        dear = [each for each in rest if opened[each.name] is not Opened.SUCCEEDED]
        seen = await self._look.scan(dear, locks) if dear else {}
        for device in rest:
            facts = seen.get(device.name, KernelFacts())
            facts = replace(facts, kind=device.kind, opened=opened[device.name])
            found[device.name] = facts
            self._remember(device.name, facts)
        return found

    def _remember(self, name: DeviceName, facts: KernelFacts) -> None:
        verdict = judge_kernel(facts)
        if verdict.freedom is Freedom.IN_USE or verdict.final:
            self._in_use[name] = _InUse(
                facts=facts,
                scanned_at=self._clock.monotonic(),
                may_open=self._exclusive_open.value,
            )
        else:
            self._in_use.pop(name, None)

    async def _held_still(
        self, devices: Sequence[Device], locks: Locks
    ) -> dict[DeviceName, KernelFacts]:
        """Return those devices that their known holders still have, or their driver still keeps."""
        wanted = [
            each
            for each in devices
            if (before := self._in_use.get(each.name)) is not None and _is_kept(before.facts)
        ]
        if not wanted:
            return {}
        known = {each.name: self._in_use[each.name].facts for each in wanted}
        followed = {
            name: {holder.process.pid for holder in (facts.holders or ())[:_MOST_FOLLOWED]}
            for name, facts in known.items()
        }
        pids = frozenset[int]().union(*followed.values())
        seen = await self._look.scan(wanted, locks, pids=sorted(pids))
        found: dict[DeviceName, KernelFacts] = {}
        for name, facts in seen.items():
            if _is_kept(facts):
                # What could not be seen elsewhere is as unseen as before.
                found[name] = replace(facts, gaps=known[name].gaps)
            elif facts.unread & followed[name]:
                # One that cannot be read has not let go: what was seen of it stands.
                found[name] = known[name]
        return found

    async def _busy_still(self, devices: Sequence[Device]) -> dict[DeviceName, KernelFacts]:
        """Return those devices that are in use by nobody who can be seen, as they were before."""
        now = self._clock.monotonic()
        pause = min(_LONGEST_PAUSE, self._look.full_scan_cpu_seconds / _SCAN_SHARE)
        wanted = [
            each
            for each in devices
            if (before := self._in_use.get(each.name)) is not None
            and not before.facts.holders
            and (before.facts.enabled or before.facts.opened is Opened.BUSY)
            and before.may_open is self._exclusive_open.value
            and now - before.scanned_at < pause
        ]
        enabled = await self._look.enabled(wanted) if wanted else {}
        found: dict[DeviceName, KernelFacts] = {}
        for each in wanted:
            facts = self._in_use[each.name].facts
            same = enabled[each.name] == facts.enabled
            if same and (facts.enabled or await self._open(each) is Opened.BUSY):
                found[each.name] = facts
        return found

    async def _open(self, device: Device) -> Opened:
        return await self._look.open(device) if self._exclusive_open.value else Opened.UNAVAILABLE


def _is_kept(facts: KernelFacts) -> bool:
    return bool(facts.holders) or kept_by_driver(facts)
