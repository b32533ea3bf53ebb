"""Follows memory: the daemon's own against its limit, and that of the processes with devices."""

from collections.abc import Mapping

import structlog
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.own import give_back_memory
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.ids import DeviceName
from holdfast.model.node.memory import HolderMemory, Memory, OwnMemory, is_tight, least, own_share
from holdfast.model.use.holders import Holder
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem

log = structlog.get_logger(__name__)

_BEAT = 15.0
"""Seconds between looks: four files for the daemon, and three for each cgroup with a device."""

Held = Mapping[DeviceName, tuple[Holder, ...]]


class MemoryWatch(Struct):
    """Follows memory use, warns once when the daemon is near its limit, and then frees what it can.

    Each part bounds what it keeps. This is for a limit that is too low for the sum of them. It
    reads on `lane`, and frees memory there at each look while it is near the limit.
    """

    reader: MemoryReader
    lane: Lane
    clock: Clock
    own: OwnMemory = OwnMemory()
    """The daemon's own memory at the last look."""
    tightest: Mapping[DeviceName, Memory] = {}
    """The memory of the holder with the least headroom, for each device that has one."""
    _tight: bool = False

    async def of_holders(self, held: Held) -> dict[int, HolderMemory]:
        """Return what each process of *held* may use and lock, by pid."""
        holders = {each.process.pid: each for found in held.values() for each in found}
        return await self.lane.run(lambda: self._read(holders))

    async def run(self, use: DeviceUse) -> None:
        """Look at every beat until cancelled, at the daemon and at those that *use* knows."""
        problem = Problem(log, "cannot read memory usage", over="memory usage read again")
        while True:
            with problem.noting(HoldfastError):
                await self.refresh(use.holders)
            await self.clock.sleep(_BEAT)

    async def refresh(self, held: Held) -> None:
        """Look at and judge the present use."""
        memory, resident = await self.lane.run(lambda: (self.reader.own(), self.reader.resident()))
        share = own_share(memory, resident)
        self.own = OwnMemory(memory=memory, resident=resident, share=share)
        await self._judge(memory, share)
        found = await self.of_holders(held)
        seen = {pid: each.memory for pid, each in found.items() if each.memory.cgroups}
        tightest = {
            name: least(seen[each.process.pid] for each in holders if each.process.pid in seen)
            for name, holders in held.items()
        }
        self.tightest = {name: each for name, each in tightest.items() if each is not None}

    async def _judge(self, memory: Memory, share: float) -> None:
        before, self._tight = self._tight, is_tight(share, before=self._tight)
        if self._tight:
            await self.lane.run(give_back_memory)
        if self._tight and not before:
            tightest = memory.tightest
            log.warning(
                "daemon memory near its limit",
                used=f"{share:.0%}",
                limit=memory.limit,
                cgroup=tightest.path if tightest is not None else None,
                advice="raise the container's memory limit",
            )
        elif before and not self._tight:
            log.info("daemon memory below its limit again", used=f"{share:.0%}")

    def _read(self, holders: Mapping[int, Holder]) -> dict[int, HolderMemory]:
        # Processes of one container share a cgroup: one of them stands for all.
        one = {each.cgroup: pid for pid, each in holders.items()}
        memory = self.reader.of_processes(one.values())
        return {
            pid: HolderMemory(memory=memory[one[each.cgroup]], memlock=self.reader.memlock(pid))
            for pid, each in holders.items()
        }
