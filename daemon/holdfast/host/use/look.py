"""One look at the kernel: gathers, for given devices, the facts that decide if they are free."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from holdfast.errors import LaneStuckError
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.pci.vfio import (
    EnableLevels,
    are_groups,
    exclusive_open,
    holding,
)
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.book.proof import attribute
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import DeviceName, HardwareKey, PciAddress, PodUid
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.model.use.free import KernelFacts, OpenOutcome
from holdfast.model.use.holders import Holder, Scan, ScanTarget
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched

_OPENING = 2.0
"""Seconds that an open of a device's groups may take: whoever waits for the look waits for it."""


class DriverAnswer(Protocol):
    """What a driver answered about who uses one device of kind DRIVER."""

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that the driver names; they are looked up in /proc afterwards."""

    def seen_in(
        self,
        facts: KernelFacts,
        *,
        named: Mapping[int, Holder],
        locks: Mapping[DeviceName, DeviceLock],
    ) -> KernelFacts:
        """Return *facts* with the driver's `sight`, and as holders those that are in the way.

        *facts* have every process that has a node open; *named* has those of `pids` that live.
        """


class Drivers(Protocol):
    """Whoever can ask the vendors' drivers."""

    async def ask(self, devices: Iterable[Device], /) -> Mapping[DeviceName, DriverAnswer]:
        """Return who uses those of *devices* that are of kind DRIVER; none is left out by mistake.

        One without an answer is not known to be free.
        """


@dataclass(eq=False)
class Look:
    """Asks the kernel on a lane; decides nothing.

    `enabled` is cheap, and goes ahead of each `scan` that waits, which is expensive.

    `open` is exclusive: a starting program could get EBUSY from it. So it is for starts themselves,
    and for a device that no pod may start on meanwhile.

    It looks below `root`, with every blocking call on `lane`, but for opens: these have a lane of
    `lanes` for each device. `book` tells, on any thread, which pods may use what a lock locks:
    several where a claim has it.
    """

    root: HostRoot
    lane: Lane
    drivers: Drivers
    clock: Clock
    _: KW_ONLY
    lanes: Lanes
    book: Callable[[], Book]

    def __post_init__(self) -> None:
        self._sysfs = Sysfs(self.root)
        self._levels = EnableLevels(self._sysfs)
        self._holders = HolderScan(self.root)
        self._opening: dict[DeviceName, Lane] = {}
        self.last_scan: Scan | None = None
        self.full_scan_seconds = 0.0
        """How long the last full scan took."""
        self.full_scan_cpu_seconds = 0.0
        """What that cost, with the second look that some devices take; see `Scan`."""
        self.full_gaps: tuple[str, ...] = ()
        """What that scan could not see. A scan of fewer processes says nothing about the rest."""
        self.full_scan_at: float | None = None
        """When it ended, in monotonic seconds."""
        self._gaps_since: float | None = None
        self.gaps_for: float | None = None
        """For how many seconds full scans had gaps when the last one ended; None: that had none."""

    @property
    def hanging(self) -> frozenset[int]:
        """Return the processes on which a read is stuck."""
        return self._holders.hanging

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the last scan could see every process; otherwise less can be proven."""
        gaps = self.full_gaps or (self.last_scan.gaps if self.last_scan is not None else ())
        public = f"the last scan had gaps: {len(gaps)}" if gaps else ""
        yield check(
            "process visibility", gaps[0] if gaps else "", public=public, seen=self.full_scan_at
        )

    async def enabled(self, devices: Iterable[Device]) -> dict[DeviceName, tuple[PciAddress, ...]]:
        """Return each device's functions that are enabled, which for VFIO means in use."""
        wanted = tuple(devices)
        return await self.lane.run(
            lambda: {device.name: self._levels.of(device.functions).above for device in wanted},
            ahead=True,
        )

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> dict[DeviceName, KernelFacts]:
        """Return what the kernel shows of each device, after a scan of *pids* (None: all)."""
        wanted = tuple(devices)
        # Drivers first: a process that they name is then found in /proc, or has ended since.
        answers = await self.drivers.ask(wanted)
        found = await self.lane.run(lambda: self._scan(wanted, locks, pids))
        if not answers:
            return found
        told = frozenset[int]().union(*(each.pids for each in answers.values()))
        named = await self.lane.run(lambda: self._holders.named(told))
        for name, answer in answers.items():
            found[name] = answer.seen_in(found[name], named=named, locks=locks)
        return found

    async def open(self, device: Device) -> OpenOutcome:
        """Open and close each group node of *device* exclusively; return the kernel's answer.

        It is BUSY where the kernel gives none in time.
        """
        if device.kind is not DeviceKind.VFIO:
            return OpenOutcome.UNAVAILABLE
        return await self._on_its_lane(device, lambda: exclusive_open(self.root, device.nodes))

    async def open_idle(self, device: Device, *, learn: bool) -> OpenOutcome:
        """Do as `open` for a device that is enabled although no process seems to have it.

        *learn*: the scan that saw no holder was complete. If the open succeeds, the current level
        of `enable` is the idle level from now on. A device that is no longer enabled is left alone.
        """
        return await self._on_its_lane(device, lambda: self._open_idle(device, learn=learn))

    async def _on_its_lane(self, device: Device, act: Callable[[], OpenOutcome]) -> OpenOutcome:
        """Return what *act* does; while a call for *device* hangs, BUSY, and nothing is tried.

        The kernel lets an open wait for whoever is opening or closing the same group, as long as
        its driver takes. That must not keep the looks at other devices waiting. And nobody may
        start on this one: once the driver is done our own open has the group for a moment.
        """
        lane = self._opening.get(device.name)
        if lane is None:
            lane = self.lanes.open_lane(f"open {device.name}", Watched(_OPENING))
            self._opening[device.name] = lane
        if lane.stuck_since is not None:
            return OpenOutcome.BUSY
        try:
            return await lane.run(act)
        except LaneStuckError:
            return OpenOutcome.BUSY

    def _scan(
        self,
        devices: tuple[Device, ...],
        locks: Mapping[DeviceName, DeviceLock],
        pids: Sequence[int] | None,
    ) -> dict[DeviceName, KernelFacts]:
        enabled = {device.name: self._levels.of(device.functions) for device in devices}
        # A device whose `enable` cannot be read may be in use.
        busy = frozenset(name for name, each in enabled.items() if each.above or each.unread)
        keys = frozenset[HardwareKey]().union(*(device.keys for device in devices))
        pods_of = self.book().pods_of
        owners = frozenset[PodUid]().union(
            *(pods_of(lock) for lock in locks.values() if lock.keys & keys)
        )
        # Of these only the mappings show every use, so one look at all of it is enough.
        maps = all(device.kind is DeviceKind.ACCEL for device in devices)
        scan = self._holders.scan(
            [self._target(device) for device in devices],
            pids=pids,
            maps=maps,
            hidden=maps,
            owners=owners,
        )
        more = dict(scan.more)
        holders = attribute(scan, busy, locks, pods_of)
        seen = {device.name: scan for device in devices}
        worked = scan.cpu_seconds
        # A mapping without an open file is rare, and reading all maps is expensive: do it only if
        # nothing else explains the use, or if nothing else would show it.
        puzzling = [
            device
            for device in devices
            if device.kind is DeviceKind.ACCEL
            or (device.name in busy and not holders.get(device.name))
        ]
        if puzzling and not maps:
            targets = [self._target(device) for device in puzzling]
            # Of other kinds `enable` or the driver tells of what is hidden.
            hidden = any(device.kind is DeviceKind.ACCEL for device in puzzling)
            scan = self._holders.scan(targets, pids=pids, maps=True, hidden=hidden, owners=owners)
            names = frozenset(device.name for device in puzzling)
            # Of all that are busy: what is on another one by its lock is not on these.
            again = attribute(scan, busy, locks, pods_of)
            holders.update({name: again[name] for name in names & again.keys()})
            more.update({name: scan.more.get(name, 0) for name in names})
            seen.update(dict.fromkeys(names, scan))
            worked += scan.cpu_seconds
        self.last_scan = scan
        if pids is None:
            self.full_scan_seconds, self.full_gaps = scan.seconds, scan.gaps
            self.full_scan_cpu_seconds = worked
            self.full_scan_at = now = self.clock.monotonic()
            first = now if self._gaps_since is None else self._gaps_since
            self._gaps_since, self.gaps_for = (first, now - first) if scan.gaps else (None, None)
        return {
            device.name: KernelFacts(
                kind=device.kind,
                enabled=enabled[device.name].above,
                holders=holders.get(device.name, ()),
                more=more.get(device.name, 0),
                gaps=(*seen[device.name].gaps, *enabled[device.name].gaps),
                unread=seen[device.name].unread,
                of_unread=seen[device.name].of_unread,
            )
            for device in devices
        }

    def _target(self, device: Device) -> ScanTarget:
        rdevs = {node.rdev for node in (*device.nodes, *device.other_nodes)}
        for address in device.functions:
            rdevs.update(self._sysfs.vfio_devices(address))
        return ScanTarget(
            device=device.name, rdevs=frozenset(rdevs), addresses=frozenset(device.functions)
        )

    def _open_idle(self, device: Device, *, learn: bool) -> OpenOutcome:
        above = self._levels.of(device.functions).above
        if not above or not are_groups(self.root, device.nodes):
            return OpenOutcome.UNAVAILABLE
        with holding(self.root, device.nodes) as opened:
            if opened is OpenOutcome.SUCCEEDED and learn:  # nobody else has it before it is closed
                self._levels.learn(device.functions)
            return opened
