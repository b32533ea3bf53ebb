"""Keeps the inventory true: follows the kernel's events, and looks again now and then anyway."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import structlog
from msgspec.structs import replace

from holdfast.discovery.inventory import take_inventory, with_found
from holdfast.discovery.source import Sources
from holdfast.errors import HoldfastError
from holdfast.host.pci.snapshot import Snapshot
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import Inventory, pci_addresses, with_faults
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.runtime.changes import Changes, pause
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.turns import Turns
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Discovery

log = structlog.get_logger(__name__)

SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "accel"})
"""The kernel subsystems whose events can change an inventory."""

_FIRST_RETRY = 1.0
_HELD_AT_ONCE = 64
"""Of how many devices the driver is checked at once: with more, each has its turn."""


def _nobody() -> Collection[DeviceName]:
    return ()


async def _as_it_is(inventory: Inventory) -> Inventory:
    return inventory


def _as_found(inventory: Inventory) -> Inventory:
    return inventory


class Scanner:
    """Publishes the inventory, and a new one whenever the hardware has changed.

    The lane's calls read sysfs and stat nodes, nothing more. A scan that fails leaves the last
    inventory in place, is named in `problem`, and is tried again.
    """

    def __init__(
        self,
        root: HostRoot,
        sysfs: Sysfs,
        *,
        lane: Lane,
        clock: Clock,
        sources: Sources,
        held: Callable[[], Collection[DeviceName]] = _nobody,
        assign: Callable[[Inventory], Inventory] = _as_found,
        changes: Callable[[], Changes] | None = None,
        before: Callable[[Inventory], Awaitable[Inventory]] = _as_it_is,
        settings: Watched[Discovery],
    ) -> None:
        """Scan below *root* on *lane* for *sources*; *held* names the devices that are granted.

        *assign* gives what was found its names, which depend on what pods have; *changes* tells
        when that may be others. *before* is called with the result before it is published, and
        returns it with the faults of devices that it could not prepare.
        """
        self._root = root
        self._sysfs = sysfs
        self._lane = lane
        self._clock = clock
        self._sources = sources
        self._held = held
        self._assign = assign
        self._changes = changes
        self._before = before
        self._settings = settings
        self._turns: Turns[DeviceName] = Turns(clock, at_most=_HELD_AT_ONCE)
        self._known: frozenset[PciAddress] = frozenset()
        self._drivers: Mapping[PciAddress, str | None] = {}
        self._wanted = asyncio.Event()
        self._retries = backoff(_FIRST_RETRY, settings.value.rescan)
        self._found = Inventory(resources=tuple(r for each in sources for r in each.resources))
        self._assigned = self._prepared = self._found
        self.inventory: Watched[Inventory] = Watched(self._found)
        self.problem: str = "the hardware has not been scanned yet"
        """Why the inventory may be out of date, for people; empty when it is not."""
        self.scans = 0
        """How many scans succeeded."""
        self.looked_at: float | None = None
        """When the last of them did, by the clock's monotonic seconds."""

    def poke(self) -> None:
        """Ask for a scan soon; any number of requests before it are one."""
        self._wanted.set()

    def uevent(self, subsystem: str, action: str, devpath: str) -> None:  # noqa: ARG002 - the shape of a Uevents callback
        """Note a kernel event; action ``lost`` means that events were lost."""
        if subsystem in SUBSYSTEMS or action == "lost":
            self.poke()

    async def scan(self) -> Inventory:
        """Scan all hardware now, publish changes, and return the latest inventory.

        Never raises for what the hardware shows: the inventory then stays and `problem` says why.
        """
        try:
            found, self._known, self._drivers = await self._lane.run(self._look)
        except (HoldfastError, OSError) as error:
            self._failed(error)
            return self.inventory.value
        if self.problem:
            log.info("hardware scan succeeded", was=self.problem)
        self.problem = ""
        self._retries = backoff(_FIRST_RETRY, self._settings.value.rescan)
        self.scans += 1
        self._found = with_found(found, self._sources)
        await self._prepare()
        self.publish()
        self.looked_at = self._clock.monotonic()
        return self.inventory.value

    async def _prepare(self) -> None:
        """Give the devices their names, and prepare them; anew where pods changed the names."""
        self._assigned = self._assign(self._found)
        while True:
            self._prepared = await self._before(self._assigned)
            latest = self._assign(self._found)
            if latest == self._assigned:
                return
            self._assigned = latest

    async def run(self) -> None:
        """Scan at every cause, without end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poke_now_and_then())
            tasks.create_task(self._follow_names())
            tasks.create_task(self._watch_held())
            while True:
                await self._wanted.wait()
                # One change makes several events; the first starts the wait, so it stays short.
                await self._clock.sleep(self._settings.value.debounce)
                self._wanted.clear()
                await self.scan()
                if self.problem:
                    await self._clock.sleep(next(self._retries))
                    self.poke()

    def _look(self) -> tuple[Inventory, frozenset[PciAddress], Mapping[PciAddress, str | None]]:
        snapshot = Snapshot(self._root, self._sysfs, known=self._known)
        generation = self.inventory.value.generation + 1
        found = take_inventory(snapshot, self._sources, generation=generation)
        drivers = {address: it.driver for address, it in snapshot.functions.items()}
        return found, snapshot.bound(), drivers

    def publish(self) -> None:
        """Publish what the last scan found with the faults that adapters report, if that is news.

        It waits for no scan: a fault is published even while sysfs cannot be read.
        """
        devices = with_faults(self._prepared.devices, self._sources.faults())
        before = self.inventory.value
        after = replace(self._prepared, generation=before.generation, devices=devices)
        if after != before:
            after = replace(after, generation=before.generation + 1)
            _report(before, after)
            self.inventory.set(after)

    async def _poke_now_and_then(self) -> None:
        while True:
            await pause(self._clock, self._settings, lambda settings: settings.rescan)
            self.poke()

    async def _follow_names(self) -> None:
        """Look again when a device is to have another name, as its pod has let it go."""
        while self._changes is not None:
            changes = self._changes()
            # Only a rule of the settings gives names that depend on pods.
            if self._assigned.hardware and self._assign(self._found) != self._assigned:
                self.poke()
            await changes.wait(self._settings.value.rescan)

    async def _watch_held(self) -> None:
        """Check the drivers of held devices: a removal that waits for a holder sends no event.

        The kernel removes the driver link at once, and everything else only at the end.
        """
        while True:
            await self._clock.sleep(self._settings.value.held_check)
            addresses = self._held_functions()
            if not addresses:
                continue
            try:
                changed = await self._lane.run(partial(self._changed, addresses))
            except (HoldfastError, OSError) as error:
                self._failed(error)
                changed = True
            if changed:
                self.poke()

    def _held_functions(self) -> tuple[PciAddress, ...]:
        found = map(self.inventory.value.get, self._turns.next(self._held()))
        return tuple(
            address
            for device in found
            if device is not None
            for address in pci_addresses(device.keys)
        )

    def _changed(self, addresses: tuple[PciAddress, ...]) -> bool:
        return any(
            self._sysfs.driver(address) != self._drivers.get(address) for address in addresses
        )

    def _failed(self, error: Exception) -> None:
        problem = f"cannot scan the hardware: {error}"
        if problem != self.problem:
            log.warning("cannot scan the hardware", reason=str(error))
        self.problem = problem


def _report(before: Inventory, after: Inventory) -> None:
    known = {device.name: device for device in before.devices}
    for device in after.devices:
        was = known.pop(device.name, None)
        if was is None or was.faults != device.faults:
            log.info(
                "device found" if was is None else "device changed",
                device=str(device.name),
                model=device.model,
                healthy=device.healthy,
                reasons=[fault.text for fault in device.faults],
            )
        if device.leaving and (was is None or was.leaving != device.leaving):
            log.info("device leaving", device=str(device.name), reason=device.leaving)
    here = {device.name.id for device in after.hardware}
    for name in known:
        if name.id not in here:
            log.warning("device gone", device=str(name))
    for left in after.left_out:
        if left not in before.left_out:
            log.info("device left out", device=str(left.device.name), reason=left.reason)
    for rule in after.idle_rules:
        if rule not in before.idle_rules:
            log.info("rule for devices does nothing", reason=rule)
