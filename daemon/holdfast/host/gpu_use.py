"""Asks, on a lane, who uses GPUs, and remembers how much of their memory is in use when idle."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from holdfast.errors import LaneStuckError
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.free import KernelFacts
from holdfast.model.gpu import GpuUse
from holdfast.model.gpu_free import GpuRules, Level, follow, granted, sort, uuids, with_level
from holdfast.model.ids import DeviceName
from holdfast.model.locks import DeviceLock
from holdfast.model.use import Holder
from holdfast.runtime.lane import Lane


class UseSource(Protocol):
    """What tells who uses a GPU: NVML. It may block."""

    def use(self, uuid: str) -> GpuUse:
        """Return who uses the GPU or MIG slice *uuid*; what it cannot tell is a problem."""
        ...


class GpuUses:
    """Gathers who uses GPUs; the rules are model.gpu_free's. Its state belongs to the loop."""

    def __init__(
        self,
        lane: Lane,
        source: Callable[[], UseSource | None],
        *,
        rules: GpuRules | None = None,
        patience: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask what *source* gives, None while the driver is not there, on *lane*.

        *patience* is how long NVML may take for all GPUs of one look, in seconds: who waits here
        looks after other devices too.
        """
        self._lane = lane
        self._source = source
        self._rules = rules or GpuRules()
        self._patience = patience
        self._monotonic = monotonic
        self._levels: dict[str, Level] = {}
        self._asked: UseSource | None = None

    async def ask(self, devices: Iterable[Device]) -> dict[DeviceName, GpuUse]:
        """Return what NVML tells of the GPUs among *devices*; it is never nobody by mistake."""
        wanted = tuple(each for each in devices if each.kind is DeviceKind.GPU)
        if not wanted:
            return {}
        source = self._source()
        if source is not None and source is not self._asked:
            # Another start of the driver: all memory was given back, and idle it may need more.
            self._levels.clear()
            self._asked = source
        if self._lane.stuck_since is not None:
            # Each that waits here would hold up those who look after other devices.
            return _unknown(wanted, "it has not come back from a call")
        try:
            return await self._lane.run(lambda: _ask(source, wanted), deadline=self._patience)
        except LaneStuckError as error:
            return _unknown(wanted, str(error))

    def judged_on(
        self,
        device: Device,
        use: GpuUse,
        facts: KernelFacts,
        *,
        named: Mapping[int, Holder],
        locks: Mapping[DeviceName, DeviceLock],
    ) -> KernelFacts:
        """Return *facts* of *device* with those alone as holders that are in anybody's way."""
        to, now, deadline = granted(device, locks), self._monotonic(), self._rules.memory_deadline
        found = sort(use, facts.holders or (), named, to, self._rules)
        uuid = next(iter(uuids(device)), device.name.id)
        level = self._levels[uuid] = follow(
            self._levels.get(uuid, Level()), found, to, now=now, deadline=deadline
        )
        found = with_level(found, level, now=now, deadline=deadline)
        return replace(facts, holders=found.holders, gpu=found.sight)


def _unknown(devices: tuple[Device, ...], reason: str) -> dict[DeviceName, GpuUse]:
    problem = GpuUse(problem=f"NVML does not answer who uses it: {reason}")
    return dict.fromkeys((each.name for each in devices), problem)


def _ask(source: UseSource | None, devices: tuple[Device, ...]) -> dict[DeviceName, GpuUse]:
    if source is None:
        problem = GpuUse(problem="NVIDIA's driver is not there to tell who uses it")
        return dict.fromkeys((each.name for each in devices), problem)
    return {each.name: _use_of(source, each) for each in devices}


def _use_of(source: UseSource, device: Device) -> GpuUse:
    asked = [source.use(uuid) for uuid in uuids(device)]
    if not asked:
        return GpuUse(problem=f"{device.name} has no UUID to ask NVML about")
    return GpuUse(
        processes=tuple(process for each in asked for process in each.processes),
        memory_used=asked[0].memory_used,
        problem=next((each.problem for each in asked if each.problem), ""),
    )
