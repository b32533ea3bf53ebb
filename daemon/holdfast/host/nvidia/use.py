"""Asks NVML who uses GPUs, on a lane, and remembers what idle GPUs show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import LaneStuckError
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.book.claims import admins_on
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceName
from holdfast.model.nvidia.free import (
    GpuOwners,
    GpuRules,
    IdleLevel,
    IdleMemory,
    follow,
    granted_on,
    restored,
    sort,
    unused,
    uuids,
    with_level,
)
from holdfast.model.nvidia.gpu import GpuUse
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import Holder
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

if TYPE_CHECKING:  # it loads NVML
    from holdfast.host.nvidia.nvml import Nvml

_MOST_LEVELS = 512
"""How many GPUs and slices are remembered; slices change with each MIG layout."""


class GpuUses(Struct, kw_only=True):
    """Gathers who uses GPUs; the rules are model.nvidia.free's. Its state belongs to the loop.

    It asks what `source` gives, None while the driver is not there, on `lane`. `book` tells which
    pods use claims, which may have one GPU with others. `load` tells one load of the driver from
    any other, in any boot; `idle` begins with what the ledger has of them, and publishes what it is
    to keep. `divided` tells the UUIDs of each GPU's slices. `patience` is how long NVML may take
    for all GPUs of one look, in seconds: who waits here looks after other devices too.
    """

    lane: Lane
    source: Callable[[], "Nvml | None"]
    rules: Watched[GpuRules]
    book: Callable[[], Book]
    load: Callable[[], str]
    idle: Watched[Mapping[str, IdleMemory]]
    divided: Callable[[], Mapping[str, tuple[str, ...]]]
    patience: float
    monotonic: Callable[[], float]
    _loaded: str | None = None
    _levels: dict[str, IdleLevel] = {}
    _unknown_since: dict[DeviceName, float] = {}

    async def ask(self, devices: Iterable[Device]) -> dict[DeviceName, "NvmlAnswer"]:
        """Return what NVML says of the GPUs *devices*; a failure never looks like no user."""
        wanted = tuple(devices)
        uses = await self._asked(wanted) if wanted else {}
        return {
            device.name: NvmlAnswer(device=device, use=uses[device.name], of=self)
            for device in wanted
        }

    async def _asked(self, wanted: tuple[Device, ...]) -> dict[DeviceName, GpuUse]:
        source = self.source()
        asked = {each.name: uuids(each, self.divided()) for each in wanted}
        if self.lane.stuck_since is not None:
            # A caller that waits here would delay looks at other devices.
            return _unknown(wanted, "a call to it hangs")
        try:
            return await self.lane.run(lambda: _ask(source, asked), deadline=self.patience)
        except LaneStuckError as error:
            return _unknown(wanted, str(error))

    def granted(self, device: Device, locks: Mapping[DeviceName, DeviceLock]) -> GpuOwners:
        """Return which pods got *device*, as far as that still explains open nodes.

        A process that only has a node open may belong to a pod that was never identified. If it
        does not compute and has no memory for the whole deadline, it is a monitoring program.
        """
        book = self.book()
        to = granted_on(device.keys, locks, admins_on(book, device.keys), book.pods_of)
        if None not in to.pods:
            self._unknown_since.pop(device.name, None)
            return to
        now = self.monotonic()
        if now - self._unknown_since.setdefault(device.name, now) < self.rules.value.deadline:
            return to
        return replace(to, pods=to.pods - {None})

    def level(self, device: Device) -> IdleLevel:
        """Return the idle memory of *device* by this load of the driver."""
        load = self.load()
        if load != self._loaded:
            self._levels.clear()
            self._loaded = load
        name = self._called(device)
        if name not in self._levels:
            return restored(self.idle.value.get(name), load)
        return self._levels[name]

    def _called(self, device: Device) -> str:
        """Return the key for its idle memory: another MIG layout may need more memory."""
        return ",".join(uuids(device, self.divided()))

    def remember(self, device: Device, level: IdleLevel) -> None:
        """Have *level* stand for *device*, and publish what of it the ledger is to keep."""
        name = self._called(device)
        self._levels[name] = level
        kept = level.kept(self._loaded or "")
        if kept is not None and kept != self.idle.value.get(name):
            others = {each: it for each, it in self.idle.value.items() if each != name}
            self.idle.set(dict([*others.items(), (name, kept)][-_MOST_LEVELS:]))


class NvmlAnswer(Struct, frozen=True, kw_only=True):
    """What NVML reported about one GPU or slice; the `DriverAnswer` to a look."""

    device: Device
    use: GpuUse
    of: GpuUses

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that NVML names."""
        return frozenset(each.pid for each in self.use.processes)

    def seen_in(
        self,
        facts: KernelFacts,
        *,
        named: Mapping[int, Holder],
        locks: Mapping[DeviceName, DeviceLock],
    ) -> KernelFacts:
        """Return *facts* with those alone as holders that are in anybody's way."""
        of, device = self.of, self.device
        to, now, rules = of.granted(device, locks), of.monotonic(), of.rules.value
        found = sort(self.use, facts.holders or (), named, to, rules)
        level = follow(of.level(device), unused(found, to), now=now, rules=rules)
        of.remember(device, level)
        found = with_level(found, level, now=now, rules=rules)
        # Of those that were only counted nobody knows who is in the way, unless all others are.
        more = 0 if found.sight.bystanders else facts.more
        return replace(facts, holders=found.holders, sight=found.sight, more=more)


def _unknown(devices: tuple[Device, ...], reason: str) -> dict[DeviceName, GpuUse]:
    problem = GpuUse(problem=f"NVML does not answer who uses it: {reason}")
    return dict.fromkeys((each.name for each in devices), problem)


def _ask(
    source: "Nvml | None", asked: Mapping[DeviceName, tuple[str, ...]]
) -> dict[DeviceName, GpuUse]:
    if source is None:
        problem = GpuUse(problem="NVIDIA's driver is not loaded, so nobody knows who uses it")
        return dict.fromkeys(asked, problem)
    # Replicas are of the same card.
    use = cache(source.use)
    return {name: _use_of([use(uuid) for uuid in ids]) for name, ids in asked.items()}


def _use_of(found: Sequence[GpuUse]) -> GpuUse:
    """Return who uses a GPU or slice, of which there is always one UUID at least to ask about."""
    return GpuUse(
        processes=tuple(process for each in found for process in each.processes),
        memory_used=found[0].memory_used,
        utilization=found[0].utilization,
        problem=next((each.problem for each in found if each.problem), ""),
    )
