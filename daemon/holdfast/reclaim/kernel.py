"""What the kernel shows of each device, remembered: /proc is read only when it may differ."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.host.look import Look
from holdfast.host.pidfd import Pidfds
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.free import KernelFacts, kept_by_nvml
from holdfast.model.ids import DeviceName, PciAddress, ProcessId
from holdfast.model.locks import DeviceLock
from holdfast.model.use import Holder
from holdfast.runtime.clock import Clock

_SCAN_SHARE = 0.001
"""How much of the time scans by the clock may take, however many processes there are."""


_MOST_FOLLOWED = 32
"""Of one device; each costs an open file, and without any left nothing works."""


class _Seen(Struct, frozen=True, kw_only=True):
    at: float
    facts: KernelFacts


class KernelWatch:
    """Asks the cheap question (`enable`) each time, and the dear one (a scan) only when due.

    Holders are followed by pidfd, a few of many; `exited` is called on the loop when one ends.
    """

    def __init__(
        self,
        *,
        look: Look,
        pidfds: Pidfds,
        clock: Clock,
        exited: Callable[[ProcessId], None],
        rescan: float = 60.0,
    ) -> None:
        """Scan what stays unexplained no more often than `rescan_pause`, at least *rescan*."""
        self._look = look
        self._pidfds = pidfds
        self._clock = clock
        self._exited = exited
        self._rescan = rescan
        self._seen: dict[DeviceName, _Seen] = {}

    @property
    def holders(self) -> Mapping[DeviceName, tuple[Holder, ...]]:
        """Return the holders that were seen and have not exited since."""
        return {name: seen.facts.holders or () for name, seen in self._seen.items()}

    @property
    def rescan_pause(self) -> float:
        """Return how many seconds to wait between two scans that nothing calls for.

        A scan of thousands of processes takes a second: the more it takes, the rarer it is.
        """
        return max(self._rescan, self._look.full_scan_seconds / _SCAN_SHARE)

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
        if seen is not None and not self._is_due(seen, enabled, to_free=to_free):
            return replace(seen.facts, enabled=enabled)
        # NVML is cheap to ask: while it says in use, or nothing, /proc need not be read for it.
        if pids or device.kind is DeviceKind.GPU:
            found = (await self._look.scan([device], locks, pids=pids))[device.name]
            if found.holders or kept_by_nvml(found):
                return self._remember(device.name, found)
        found = (await self._look.scan([device], locks))[device.name]
        return self._remember(device.name, found)

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

    def _is_due(self, seen: _Seen, enabled: tuple[PciAddress, ...], *, to_free: bool) -> bool:
        age = self._clock.monotonic() - seen.at
        if seen.facts.holders and not seen.facts.gaps:
            # Their exits are heard of; that one stops to use a GPU and lives on is not.
            return seen.facts.kind is DeviceKind.GPU and age >= self.rescan_pause
        if kept_by_nvml(seen.facts):
            return True
        if enabled != seen.facts.enabled:
            return True
        # Held by nobody we can see, or seen with gaps, which may pass: looking again tells little.
        if enabled or seen.facts.gaps:
            return age >= self.rescan_pause
        return to_free

    def _remember(self, device: DeviceName, facts: KernelFacts) -> KernelFacts:
        self._seen[device] = _Seen(at=self._clock.monotonic(), facts=facts)
        self._follow()
        return facts

    def _follow(self) -> None:
        # While one of those that are followed lives the device is in use, whoever else exits; when
        # one exits all are looked for anew. So a few will do, of thousands that inherited the file.
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
                # What is left is to be looked at anew: others may have the same open file.
                del self._seen[name]
