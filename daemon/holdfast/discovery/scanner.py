"""Keeps the inventory true: follows the kernel's events, and looks again now and then anyway."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.discovery.source import Source, Sources, stamped
from holdfast.errors import HoldfastError
from holdfast.host.pci.sysfs import Snapshot, Sysfs
from holdfast.host.root import HostRoot
from holdfast.model.book.book import Book
from holdfast.model.cards import CardNames
from holdfast.model.devices import Device, FaultKind, Inventory, pci_addresses, with_faults
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceName, PciAddress, ResourceName
from holdfast.model.node.readiness import ReadinessCheck, check_result, longest_wait
from holdfast.runtime.clock import Clock, Turns, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched, pause
from holdfast.settings.sections import DiscoverySettings

log = structlog.get_logger(__name__)

SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "accel"})
"""The kernel subsystems whose events can change an inventory."""

_FIRST_RETRY = 1.0
_HELD_AT_ONCE = 64
"""Of how many devices the driver is checked at once: with more, each has its turn."""


def take_inventory(snapshot: Snapshot, sources: Iterable[Source]) -> Inventory:
    """Return all devices that *sources* see in *snapshot*, ordered as `Inventory` promises."""
    resources: dict[ResourceName, int] = {}
    devices: dict[DeviceName, Device] = {}
    for source in sources:
        for resource in source.resources:
            resources.setdefault(resource, len(resources))
        for device in stamped(source.scan(snapshot), source):
            resources.setdefault(device.name.resource, len(resources))
            devices.setdefault(device.name, device)
    return Inventory(
        resources=tuple(resources),
        names=card_names(sources),
        devices=tuple(
            sorted(
                devices.values(),
                key=lambda device: (resources[device.name.resource], *_order(device)),
            )
        ),
    )


def card_names(sources: Iterable[Source]) -> CardNames:
    """Return how the vendors of *sources* call replicas."""
    names = (each.replica_names for each in sources)
    return CardNames(vendors=tuple(each for each in names if each is not None))


def with_found(inventory: Inventory, sources: Iterable[Source]) -> Inventory:
    """Return *inventory* with what drivers told *sources* at the end, in its own order."""
    for source in sources:
        found = source.found()
        inventory = replace(
            inventory,
            resources=tuple(dict.fromkeys((*inventory.resources, *found.resources))),
            devices=(*inventory.devices, *stamped(found.devices, source)),
            unseen=inventory.unseen | found.unseen,
        )
    return inventory


def _order(device: Device) -> tuple[int, tuple[int, ...], str]:
    node = -1 if device.numa_node is None else device.numa_node
    return node, _numbers(device.name.id), device.name.id


def _numbers(address: str) -> tuple[int, ...]:
    """Return the parts of a PCI address as numbers: domains grow beyond four digits."""
    try:
        return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))
    except ValueError:
        return ()


class DeviceNames(Protocol):
    """Gives what was found its names, which depend on what pods have."""

    def assigned(self, found: Inventory) -> Inventory:
        """Return *found* with the names that its devices have now."""

    def changes(self) -> Changes:
        """Return what changes when the names may have to."""


class Scanner(Struct, kw_only=True, dict=True):
    """Publishes the inventory, and a new one whenever the hardware has changed.

    The lane's calls read sysfs and stat nodes, nothing more. A scan that fails leaves the last
    inventory in place, is named in `problem`, and is tried again. Adapters ask it to look again, so
    it is made before them, and `adopt`, which adds them to `sources`, has to follow.

    What is found is published to `inventory`, after `prepare` has done what has to be done about it
    and has added the faults of what could not be prepared; `book` has the devices that are granted.
    """

    root: HostRoot
    lane: Lane
    clock: Clock
    sources: Sources
    book: Watched[Book]
    names: DeviceNames
    prepare: Callable[[Inventory], Awaitable[Inventory]]
    inventory: Watched[Inventory]
    settings: Watched[DiscoverySettings]

    def __post_init__(self) -> None:
        self._sysfs = Sysfs(self.root)
        self._turns: Turns[DeviceName] = Turns(self.clock, at_most=_HELD_AT_ONCE)
        self._known: frozenset[PciAddress] = frozenset()
        self._drivers: Mapping[PciAddress, str | None] = {}
        self._wanted = asyncio.Event()
        self._retries = backoff(_FIRST_RETRY, self.settings.value.rescan)
        self._rereads = backoff(_FIRST_RETRY, self.settings.value.rescan)
        self._again: asyncio.TimerHandle | None = None
        self.problem = Problem(
            log,
            "cannot scan the hardware",
            over="hardware scan succeeded",
            text="the hardware has not been scanned yet",
        )
        """Why the inventory may be out of date."""
        self.scans = 0
        """How many scans succeeded."""
        self.looked_at: float | None = None
        """When the last of them did, by the clock's monotonic seconds."""

    def adopt(self, adapters: Iterable[Source]) -> None:
        """Take *adapters*, and publish what is known of their hardware before any scan."""
        for each in adapters:
            self.sources.add(each)
        resources = tuple(r for each in self.sources for r in each.resources)
        # Rules may have given any name: until a scan succeeds nothing is gone.
        unseen = frozenset({*resources, ResourceName("*")})
        before = Inventory(resources=resources, names=card_names(self.sources), unseen=unseen)
        self._found = self._assigned = self._prepared = with_found(before, self.sources)
        self.inventory.set(self._found)

    def replace(self, source: Source) -> None:
        """Put *source* in the place of the adapter with its name."""
        self.sources.put(source)

    def checks(self, *, required: bool) -> Iterator[ReadinessCheck]:
        """Yield whether the last scan succeeded, and was recent, and whether there are devices.

        A node without any is ready all the same, unless one is *required*. A rule for single
        devices that does nothing is told, and is no reason to be unready.
        """
        within, now = longest_wait(self.settings.value.rescan), self.clock.monotonic()
        yield check_result("hardware", self.problem.text, at=self.looked_at, now=now, within=within)
        inventory = self.inventory.value
        none = "" if inventory.devices else "no devices on this node"
        idle = () if none else inventory.idle_rules
        yield ReadinessCheck(
            name="devices",
            passes=not (none and required),
            reason=none or "; ".join(idle),
            public=f"rules that do nothing: {len(idle)}" if idle else none,
        )

    def look_again(self) -> None:
        """Ask for a scan soon; any number of requests before it are one."""
        self._wanted.set()

    def uevent(self, subsystem: str, action: str) -> None:
        """Look again soon, whichever device it is, if an inventory can have changed."""
        if subsystem in SUBSYSTEMS or action == "lost":
            self.look_again()

    async def scan(self) -> Inventory:
        """Scan all hardware now, publish changes, and return the latest inventory.

        Never raises for what the hardware shows: the inventory then stays and `problem` says why.
        """
        try:
            found, self._known, self._drivers = await self.lane.run(self._look)
        except (HoldfastError, OSError) as error:
            self._failed(error)
            return self.inventory.value
        self.problem.set("", was=self.problem.text)
        self._retries = backoff(_FIRST_RETRY, self.settings.value.rescan)
        self.scans += 1
        self._found = with_found(found, self.sources)
        if self._again is not None:  # one at a time, however many scans there are meanwhile
            self._again.cancel()
        faults = (fault for device in self._found.devices for fault in device.faults)
        if any(fault.kind is FaultKind.UNREADABLE for fault in faults):  # maybe for a moment
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(next(self._rereads), self.look_again)
        else:
            self._rereads = backoff(_FIRST_RETRY, self.settings.value.rescan)
        await self._make_ready()
        self.publish()
        self.looked_at = self.clock.monotonic()
        return self.inventory.value

    async def _make_ready(self) -> None:
        """Give the devices their names, and prepare them; again where pods changed the names."""
        self._assigned = self.names.assigned(self._found)
        while True:
            self._prepared = await self.prepare(self._assigned)
            latest = self.names.assigned(self._found)
            if latest == self._assigned:
                return
            self._assigned = latest

    async def run(self) -> None:
        """Scan at every cause, without end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_now_and_then())
            tasks.create_task(self._follow_names())
            tasks.create_task(self._watch_held())
            while True:
                if self.problem.text:  # also of the scan before this was run
                    await self.clock.sleep(next(self._retries))
                    self.look_again()
                await self._wanted.wait()
                # One change makes several events; the first starts the wait, so it stays short.
                await pause(self.clock, self.settings, lambda settings: settings.debounce)
                self._wanted.clear()
                await self.scan()

    def _look(self) -> tuple[Inventory, frozenset[PciAddress], Mapping[PciAddress, str | None]]:
        snapshot = Snapshot(self.root, known=self._known)
        found = take_inventory(snapshot, self.sources)
        drivers = {address: it.driver for address, it in snapshot.functions.items()}
        return found, snapshot.bound(), drivers

    def publish(self) -> None:
        """Publish what the last scan found with the faults that adapters report, if that is news.

        It waits for no scan: a fault is published even while sysfs cannot be read.
        """
        devices = with_faults(self._prepared.devices, self.sources.faults())
        before, after = self.inventory.value, replace(self._prepared, devices=devices)
        if after != before:
            _report(before, after)
            self.inventory.set(after)

    async def _look_now_and_then(self) -> None:
        while True:
            await pause(self.clock, self.settings, lambda settings: settings.rescan)
            self.look_again()

    async def _follow_names(self) -> None:
        """Look again when a device is to have another name, as its pod has let it go."""
        while True:
            changes = self.names.changes()
            # Only a rule of the settings gives names that depend on pods.
            if self._assigned.hardware and self.names.assigned(self._found) != self._assigned:
                self.look_again()
            await changes.wait(self.settings.value.rescan)

    async def _watch_held(self) -> None:
        """Check the drivers of held devices: a removal that waits for a holder sends no event.

        The kernel removes the driver link at once, and everything else only at the end.
        """
        while True:
            await pause(self.clock, self.settings, lambda settings: settings.held_check)
            addresses = self._held_functions()
            if not addresses:
                continue
            try:
                changed = await self.lane.run(partial(self._changed, addresses))
            except (HoldfastError, OSError) as error:
                self._failed(error)
                changed = True
            if changed:
                self.look_again()

    def _held_functions(self) -> tuple[PciAddress, ...]:
        found = map(self.inventory.value.get, self._turns.next(self.book.value.locks))
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
        self.problem.set(f"cannot scan the hardware: {error}", reason=str(error))


_Line = tuple[int, str, tuple[tuple[str, object], ...]]
"""Level, event and fields of a line of the log."""


def _report(before: Inventory, after: Inventory) -> None:
    """Log what changed, in one line for all devices of which the same is to be said."""
    lines = grouped((*_changed(before, after), *_absent(before, after)))
    for (level, event, fields), devices in lines.items():
        log.log(level, event, devices=[str(each) for each in devices], **dict(fields))
    for rule in after.idle_rules:
        if rule not in before.idle_rules:
            log.info("rule for devices does nothing", reason=rule)


def _changed(before: Inventory, after: Inventory) -> Iterator[tuple[_Line, DeviceName]]:
    known = {device.name: device for device in before.devices}
    for device in after.devices:
        was = known.get(device.name)
        if was is None or was.faults != device.faults:
            level = logging.INFO if device.healthy else logging.WARNING
            event = "devices found" if was is None else "devices changed"
            reasons = tuple(fault.text for fault in device.faults)
            shown = ("model", device.model), ("healthy", device.healthy), ("reasons", reasons)
            yield (level, event, shown), device.name
        if device.leaving and (was is None or was.leaving != device.leaving):
            yield (logging.INFO, "devices leaving", (("reason", device.leaving),)), device.name


def _absent(before: Inventory, after: Inventory) -> Iterator[tuple[_Line, DeviceName]]:
    offered = {device.name for device in after.devices}
    here = {device.name.id for device in after.hardware}
    for device in before.devices:
        if device.name not in offered and device.name.id not in here:
            yield (logging.WARNING, "devices gone", ()), device.name
    for left in after.left_out:
        if left not in before.left_out:
            yield (logging.INFO, "devices left out", (("reason", left.reason),)), left.device.name
