"""The inventory follows the hardware."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import allocated, book_of
from fakes.tpus import plain_tpus, tpus_of
from holdfast.discovery.scanner import DeviceNames, Scanner
from holdfast.discovery.source import Source, Sources
from holdfast.model.book.book import Book
from holdfast.model.devices import Fault, FaultKind, Inventory
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings.sections import DiscoverySettings
from holdfast.settings.types import Duration, Interval
from holdfast.vendors.tpu.adapter import Tpus
from manual_clock import ManualClock
from simulated.hosttree import HostTree
from waiting import beside, until


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[HostTree]:
    tree = HostTree(tmp_path)
    tree.tpu("0000:00:05.0", group=7)
    yield tree
    tree.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    with contextlib.closing(Lane("scan", deadline=60.0)) as lane:
        yield lane


class _ReportingTpus(Tpus):
    reported: Mapping[str, tuple[Fault, ...]] = {}

    def faults(self) -> Mapping[str, tuple[Fault, ...]]:
        return self.reported


class _AsFound(DeviceNames):
    """Every device has the name that it was found under, and needs nothing done."""

    def assigned(self, found: Inventory) -> Inventory:
        return found

    def changes(self) -> Changes:
        return Changes([Watched(0)])

    async def prepared(self, found: Inventory) -> Inventory:
        return found


def _scanner(
    tree: HostTree,
    lane: Lane,
    *,
    book: Book | None = None,
    rescan: float = 600.0,
    clock: Clock | None = None,
    source: Source | None = None,
    naming: "_AsFound | None" = None,
) -> Scanner:
    naming = naming or _AsFound()
    scanner = Scanner(
        root=tree.root,
        lane=lane,
        clock=clock or SystemClock(),
        sources=Sources(),
        book=Watched(book or Book()),
        names=naming,
        prepare=naming.prepared,
        inventory=Watched(Inventory()),
        settings=Watched(
            DiscoverySettings(
                rescan=Interval(rescan), debounce=Duration(0.005), held_check=Interval(0.02)
            )
        ),
    )
    scanner.adopt([source or plain_tpus()])
    return scanner


@asynccontextmanager
async def _running(scanner: Scanner) -> AsyncIterator[None]:
    async with beside(scanner.run()):
        yield


def _ids(scanner: Scanner) -> list[str]:
    return [device.name.id for device in scanner.inventory.value.devices]


async def test_what_could_not_be_read_is_looked_at_again_without_an_event(
    tree: HostTree, lane: Lane
) -> None:
    class_file = tree.path("0000:00:05.0") / "class"
    text = class_file.read_text()
    class_file.write_text("odd\n")
    async with _running(scanner := _scanner(tree, lane)):
        await until(lambda: any(each.faults for each in scanner.inventory.value.devices))
        class_file.write_text(text)
        await until(lambda: all(each.healthy for each in scanner.inventory.value.devices))


async def test_what_stays_odd_makes_no_scan_that_failed_wait_longer(
    tree: HostTree, lane: Lane
) -> None:
    (tree.path("0000:00:05.0") / "numa_node").write_text("odd\n")
    scanner = _scanner(tree, lane)
    for _ in range(12):
        await scanner.scan()
    bus = tree.root.sys / "bus"
    bus.rename(tree.root.sys / "away")
    await scanner.scan()
    assert scanner.problem.text
    (tree.root.sys / "away").rename(bus)
    async with _running(scanner):
        await until(lambda: not scanner.problem.text, limit=5.0)


async def test_an_adapter_does_not_take_the_place_of_another_by_having_its_name(
    tree: HostTree, lane: Lane
) -> None:
    """As one made from a copy would: the hardware of the first were gone without a word."""
    scanner = _scanner(tree, lane)
    with pytest.raises(ValueError, match="two adapters are called 'tpu'"):
        scanner.adopt([plain_tpus()])


async def test_the_first_scan_publishes_what_is_there(tree: HostTree, lane: Lane) -> None:
    scanner = _scanner(tree, lane)
    assert scanner.problem.text
    assert scanner.inventory.value.resources == ("google.com/tpu",)
    inventory = await scanner.scan()
    assert inventory is scanner.inventory.value
    assert _ids(scanner) == ["0000:00:05.0"]
    assert scanner.problem.text == ""


class _LetsGo(_AsFound):
    """A pod lets a chip go while the chips are being prepared, so that it is left out from then."""

    def __init__(self) -> None:
        self.prepares: list[int] = []

    def assigned(self, found: Inventory) -> Inventory:
        return replace(found, devices=found.devices[1:]) if self.prepares else found

    async def prepared(self, found: Inventory) -> Inventory:
        self.prepares.append(len(found.devices))
        return found


async def test_names_that_change_while_devices_are_prepared_have_them_prepared_again(
    tree: HostTree, lane: Lane
) -> None:
    tree.tpu("0000:00:06.0", group=8)
    naming = _LetsGo()
    scanner = _scanner(tree, lane, naming=naming)
    await scanner.scan()
    assert naming.prepares == [2, 1]
    assert _ids(scanner) == ["0000:00:06.0"]


async def test_an_inventory_is_published_at_each_change_and_only_then(
    tree: HostTree, lane: Lane
) -> None:
    scanner = _scanner(tree, lane)
    before = scanner.inventory.version
    seen = []
    for scan in range(4):
        if scan == 2:
            tree.tpu("0000:00:06.0", group=8)
        await scanner.scan()
        seen.append(scanner.inventory.version - before)
    assert seen == [1, 1, 2, 2]


async def test_a_kernel_event_is_answered_by_a_scan(tree: HostTree, lane: Lane) -> None:
    scanner = _scanner(tree, lane)
    await scanner.scan()
    async with _running(scanner):
        tree.tpu("0000:00:06.0", group=8)
        scanner.uevent("vfio", "add")
        await until(lambda: _ids(scanner) == ["0000:00:05.0", "0000:00:06.0"])
        tree.unplug("0000:00:06.0")
        scanner.uevent("pci", "remove")
        await until(lambda: _ids(scanner) == ["0000:00:05.0"])


async def test_events_of_other_subsystems_cause_nothing_and_lost_ones_a_scan(
    tree: HostTree, lane: Lane
) -> None:
    clock = ManualClock()
    scanner = _scanner(tree, lane, clock=clock)
    await scanner.scan()
    async with _running(scanner):
        scanner.uevent("net", "add")
        await clock.advance(0.01)
        assert scanner.scans == 1
        scanner.uevent("", "lost")
        await clock.advance(0.01)
        await until(lambda: scanner.scans == 2)


async def test_many_events_at_once_are_one_scan(tree: HostTree, lane: Lane) -> None:
    clock = ManualClock()
    scanner = _scanner(tree, lane, clock=clock)
    await scanner.scan()
    async with _running(scanner):
        for _ in range(50):
            scanner.uevent("pci", "bind")
        await clock.advance(0.01)
        await until(lambda: scanner.scans > 1)
        await clock.advance(0.01)
        assert scanner.scans == 2


async def test_without_any_event_the_hardware_is_looked_at_again(
    tree: HostTree, lane: Lane
) -> None:
    clock = ManualClock()
    scanner = _scanner(tree, lane, rescan=60.0, clock=clock)
    await scanner.scan()
    async with _running(scanner):
        tree.tpu("0000:00:06.0", group=8)
        await clock.advance(59.0)
        assert _ids(scanner) == ["0000:00:05.0"]
        await clock.advance(1.1)
        await until(lambda: len(_ids(scanner)) == 2)


async def test_a_wait_before_a_scan_that_is_shortened_is_over_at_once(
    tree: HostTree, lane: Lane
) -> None:
    scanner = _scanner(tree, lane)
    await scanner.scan()
    short = scanner.settings.value
    scanner.settings.set(replace(short, debounce=Duration(3600)))
    async with _running(scanner):
        scanner.look_again()
        await asyncio.sleep(0.05)
        assert scanner.scans == 1
        scanner.settings.set(short)
        await until(lambda: scanner.scans > 1)


async def test_a_held_device_that_loses_its_driver_is_noticed_without_any_event(
    tree: HostTree, lane: Lane
) -> None:
    scanner = _scanner(tree, lane)
    (device,) = (await scanner.scan()).devices
    had = {device.name.id: device.keys}
    watching = _scanner(tree, lane, book=book_of(allocated(had, resource=device.name.resource)))
    soon = watching.settings.value
    watching.settings.set(replace(soon, held_check=Interval(3600)))
    await watching.scan()
    async with _running(watching):
        tree.unbind("0000:00:05.0")
        await asyncio.sleep(0.05)
        assert watching.inventory.value.devices[0].healthy
        watching.settings.set(soon)
        await until(lambda: not watching.inventory.value.devices[0].healthy)
    (fault,) = watching.inventory.value.devices[0].faults
    assert fault.kind is FaultKind.PENDING_REMOVAL


async def test_a_device_that_is_bound_again_is_healthy_again(tree: HostTree, lane: Lane) -> None:
    scanner = _scanner(tree, lane)
    await scanner.scan()
    tree.unbind("0000:00:05.0")
    tree.drop_group_node(7)
    assert [fault.kind for fault in (await scanner.scan()).devices[0].faults] == [
        FaultKind.NO_DRIVER
    ]
    tree.bind("0000:00:05.0", "vfio-pci")
    tree.group_node(7)
    assert (await scanner.scan()).devices[0].healthy


async def test_a_pending_removal_stays_one_at_every_later_scan(tree: HostTree, lane: Lane) -> None:
    tree.tpu("0000:00:05.1", group=7)
    scanner = _scanner(tree, lane)
    await scanner.scan()
    tree.write("0000:00:05.1", "enable", "1")
    tree.unbind("0000:00:05.1")
    for _ in range(3):
        (device,) = (await scanner.scan()).devices
        assert [fault.kind for fault in device.faults] == [FaultKind.PENDING_REMOVAL]
        assert "0000:00:05.1" in device.functions


async def test_a_scan_that_fails_keeps_the_inventory_and_names_the_problem_until_one_succeeds(
    tree: HostTree,
) -> None:
    lane = Lane("scan", deadline=60.0)
    scanner = _scanner(tree, lane)
    await scanner.scan()
    published = scanner.inventory.version
    lane.close(patience=5.0)
    await scanner.scan()
    assert scanner.inventory.version == published
    assert _ids(scanner) == ["0000:00:05.0"]
    assert "lane scan" in scanner.problem.text
    with contextlib.closing(Lane("scan", deadline=60.0)) as working:
        scanner.lane = working
        async with _running(scanner):
            scanner.look_again()
            await until(lambda: scanner.problem.text == "")


async def test_a_sysfs_that_is_not_there_any_more_takes_no_device_away(
    tree: HostTree, lane: Lane
) -> None:
    scanner = _scanner(tree, lane)
    before = await scanner.scan()
    assert before.devices
    tree.root.sys.rename(tree.root.sys.with_name("elsewhere"))

    assert await scanner.scan() is before
    assert "is not a sysfs" in scanner.problem.text


async def test_a_reported_fault_is_published_without_a_scan_and_outlasts_scans(
    tree: HostTree, lane: Lane
) -> None:
    tree.tpu("0000:00:06.0", group=8)
    chips = tpus_of(_ReportingTpus)
    scanner = _scanner(tree, lane, source=chips)

    def faults() -> list[list[str]]:
        return [[each.text for each in it.faults] for it in scanner.inventory.value.devices]

    await scanner.scan()
    async with _running(scanner):
        scans, published = scanner.scans, scanner.inventory.version
        chips.reported = {"0000:00:06.0": (Fault(kind=FaultKind.ILL, text="too hot"),)}
        scanner.publish()
        assert faults() == [[], ["too hot"]]
        assert (scanner.scans, scanner.inventory.version) == (scans, published + 1)
        await scanner.scan()
        assert faults() == [[], ["too hot"]]
        chips.reported = {}
        scanner.publish()
        assert faults() == [[], []]
