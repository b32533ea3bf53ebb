"""What the watch over the kernel costs: it looks at every process only when that can tell more."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import device_lock, name
from fakes.inuse import NoDrivers, SlowLook, chip, device_use, known, look_at
from fakes.ledgers import ledger_in
from fakes.opener import stranger
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.use.look import DriverAnswer, Look
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import BootId, DeviceId, DeviceName, PciAddress, ProcessId, ResourceName
from holdfast.model.use.free import Freedom, KernelFacts, OnVfio, judge_kernel
from holdfast.model.use.holders import Holder
from holdfast.reclaim.users import Users
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched as Published
from manual_clock import ManualClock
from simulated.node import SimulatedNode
from waiting import until

CHIP = PciAddress("0000:00:05.0")
NODE = "/dev/vfio/10"
BUSY = (CHIP,)


@dataclass
class Watched:
    node: SimulatedNode
    look: Look
    use: DeviceUse
    clock: ManualClock
    device: Device
    rescan: Published[float]

    async def facts(self, enabled: tuple[PciAddress, ...] = BUSY) -> KernelFacts:
        return await known(self.use, self.device, enabled=enabled)


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watched]:
    node = SimulatedNode(tmp_path)
    node.tree.write(CHIP, "enable", "1")
    lane = Lane("scan", deadline=30.0)
    look, clock, rescan = look_at(node.root, lane), ManualClock(), Published(60.0)
    use = device_use(look, node.root, clock, rescan=rescan)
    device = chip(node, 0)
    yield Watched(node, look, use, clock, device, rescan)
    use.forget(device.name)
    lane.close(patience=5.0)
    node.close()


@pytest.fixture
def holder(watch: Watched) -> Iterator[int]:
    """Give the pid of a process that has the chip open."""
    with stranger(watch.node, NODE) as process:
        yield process.pid


async def test_while_its_holder_has_it_a_device_is_never_looked_for_among_all_processes_again(
    watch: Watched, holder: int
) -> None:
    await watch.facts()
    (found,) = watch.use.holders[watch.device.name]
    whole = watch.look.full_scan_at
    for _ in range(100):
        watch.clock.shift(3600.0)
        assert (await watch.facts()).holders
    assert found.process.pid == holder
    assert watch.look.full_scan_at == whole
    assert watch.look.last_scan is not None
    assert watch.look.last_scan.processes == 1, "its holder alone is looked at"


@pytest.mark.parametrize("kind", [DeviceKind.VFIO, DeviceKind.ACCEL])
async def test_a_holder_that_closes_the_node_and_lives_on_is_noticed_within_five_seconds(
    watch: Watched, kind: DeviceKind
) -> None:
    """Of a group node alone, and of an accel node, `enable` tells nothing."""
    functions = (CHIP,) if kind is DeviceKind.VFIO else ()
    device = replace(watch.device, kind=kind, functions=functions)
    watch.node.tree.write(CHIP, "enable", "0")
    with stranger(watch.node, NODE) as agent:
        facts = await known(watch.use, device, enabled=(), to_free=True)
        assert judge_kernel(facts).freedom is Freedom.IN_USE
        agent.close_one()
        watch.clock.shift(5.0)
        facts = await known(watch.use, device, enabled=(), to_free=True)
        assert judge_kernel(facts).freedom is Freedom.FREE
        assert agent.lives


def _name(letter: str) -> DeviceName:
    return DeviceName(ResourceName("google.com/tpu"), DeviceId(letter))


async def test_known_holders_are_looked_at_again_once_a_second_while_somebody_waits(
    watch: Watched, holder: int
) -> None:
    await known(watch.use, watch.device, enabled=BUSY, to_free=True)
    before = watch.look.last_scan
    watch.clock.shift(0.9)
    await known(watch.use, watch.device, enabled=BUSY, to_free=True)
    assert watch.look.last_scan is before
    watch.clock.shift(0.2)
    await known(watch.use, watch.device, enabled=BUSY, to_free=True)
    assert watch.look.last_scan is not before
    assert holder in {each.process.pid for each in watch.use.holders[watch.device.name]}


async def test_a_change_of_enable_is_looked_into_at_once_although_the_holder_lives(
    watch: Watched, holder: int
) -> None:
    await watch.facts()
    before = watch.look.full_scan_at
    watch.node.tree.write(CHIP, "enable", "0")
    facts = await watch.facts(enabled=())
    assert watch.look.full_scan_at != before
    assert facts.enabled == ()
    assert [each.process.pid for each in facts.holders or ()] == [holder]


async def test_of_several_holders_those_that_let_go_are_forgotten_one_by_one(
    watch: Watched, holder: int
) -> None:
    with stranger(watch.node, NODE) as agent:
        assert len((await watch.facts()).holders or ()) == 2
        agent.close_one()
        watch.clock.shift(5.0)
        left = (await watch.facts()).holders or ()
        assert [each.process.pid for each in left] == [holder]
        assert agent.lives


async def test_what_a_pod_of_the_lock_still_holds_is_found_without_a_look_at_the_others(
    watch: Watched, holder: int
) -> None:
    await known(watch.use, watch.device, enabled=BUSY, pids=[holder])
    assert watch.look.full_scan_at is None
    (found,) = watch.use.holders[watch.device.name]
    assert found.process.pid == holder


async def test_the_longer_a_look_at_all_processes_takes_the_rarer_it_is(watch: Watched) -> None:
    await watch.facts()
    assert watch.use.budget.clock == max(60.0, 2000 * watch.look.full_scan_cpu_seconds)
    watch.look.full_scan_cpu_seconds = 0.9
    assert watch.use.budget.clock == pytest.approx(1800.0)


async def test_the_pause_can_change_at_any_time(watch: Watched) -> None:
    await watch.facts()
    scan = watch.look.last_scan
    watch.look.full_scan_cpu_seconds = 0.0
    watch.clock.shift(30.0)
    await watch.facts()
    assert watch.look.last_scan is scan
    watch.rescan.set(20.0)
    await watch.facts()
    assert watch.look.last_scan is not scan


async def test_a_look_at_a_few_processes_does_not_count_as_one_at_all(watch: Watched) -> None:
    await watch.look.scan([watch.device], {})
    took = watch.look.full_scan_cpu_seconds
    await watch.look.scan([watch.device], {}, pids=[1])
    assert took > 0.0
    assert watch.look.full_scan_cpu_seconds == took


async def test_a_holder_seen_by_an_incomplete_scan_is_looked_for_again_after_the_pause(
    watch: Watched, holder: int
) -> None:
    """Else a passing gap would spare an orphan for ever: an incomplete scan proves nobody guilty."""
    hidden = watch.node.root.proc / "4000000"
    watch.node.add_process(os.getpid(), "/system.slice")
    shutil.copytree(watch.node.root.proc / str(os.getpid()), hidden, symlinks=True)
    (hidden / "fd").unlink()
    (hidden / "fd").symlink_to("fd")  # it cannot be inspected
    found = await watch.facts()
    assert found.holders
    assert found.gaps
    shutil.rmtree(hidden)
    watch.clock.shift(watch.use.budget.clock + 1.0)
    again = await watch.facts()
    assert again.holders
    assert not again.gaps
    assert holder in {each.process.pid for each in again.holders}


async def test_looks_with_gaps_come_again_after_ten_seconds_and_then_ever_more_rarely(
    tmp_path: Path,
) -> None:
    """A busy node, on which a process could not be read in time, is ready again soon."""
    node, clock = SimulatedNode(tmp_path / "node"), ManualClock()
    lane = Lane("scan", deadline=30.0)
    look = look_at(node.root, lane, clock=clock)
    use = device_use(look, node.root, clock, rescan=100.0)
    inventory = Inventory(devices=(device := chip(node, 0),), resources=(device.name.resource,))
    unread = node.root.proc / "4194000"
    unread.mkdir()
    (unread / "fd").symlink_to("fd")  # cannot be read, for whatever reason
    (unread / "stat").write_text(f"4194000 (x) S 1 {' '.join(['0'] * 48)}\n")
    async with ledger_in(tmp_path / "state", clock, boot=BootId("boot")) as ledger:
        users = Users(ledger=ledger, inventory=Published(inventory), use=use, clock=clock)

        async def next_look() -> float:
            """Return how many seconds after the last look at all processes the next one comes."""
            look.full_scan_cpu_seconds = 0.0
            before, began = look.full_scan_at, clock.monotonic()
            while look.full_scan_at == before:
                clock.shift(1.0)
                await users.look_at_free({}, at_all=False)
            return clock.monotonic() - began

        await users.look_at_free({}, at_all=True)
        assert look.full_gaps
        assert [await next_look() for _ in range(5)] == [10.0, 20.0, 40.0, 80.0, 100.0]
        hidden = unread.rename(tmp_path / "hidden")
        assert await next_look() == 100.0
        assert not look.full_gaps
        assert await next_look() == 100.0
        hidden.rename(unread)
        assert [await next_look() for _ in range(2)] == [100.0, 10.0]
    lane.close(patience=5.0)
    node.close()


async def test_of_many_holders_a_few_are_followed_and_the_end_of_the_last_is_still_heard_of(
    watch: Watched,
) -> None:
    opened = os.open(watch.node.node(NODE), os.O_RDWR | os.O_NOCTTY)
    crowd = [subprocess.Popen(["sleep", "600"], pass_fds=[opened]) for _ in range(40)]
    os.close(opened)
    try:
        for each in crowd:
            watch.node.add_process(each.pid, "/user.slice")
        await watch.facts()
        assert len(watch.use.holders[watch.device.name]) == 40
        assert len(watch.use.pidfds.watched) == 32
        followed = {process.pid for process in watch.use.pidfds.watched}
        watch.clock.shift(5.0)
        assert len((await watch.facts()).holders or ()) == 40, "also when a few are looked at again"
        for each in crowd:
            if each.pid in followed:
                _end(watch, each)
        await until(lambda: watch.device.name not in watch.use.holders)
        await watch.facts()
        left = {holder.process.pid for holder in watch.use.holders[watch.device.name]}
        assert left == {each.pid for each in crowd} - followed
    finally:
        for each in crowd:
            each.kill()
            each.wait()


def _end(watch: Watched, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(watch.node.root.proc / str(process.pid))


async def test_of_a_device_that_is_forgotten_nobody_is_followed(
    watch: Watched, holder: int
) -> None:
    await watch.facts()
    assert {each.pid for each in watch.use.pidfds.watched} == {holder}
    watch.use.forget(watch.device.name)
    assert not watch.use.pidfds.watched


async def test_what_a_full_look_could_not_see_is_not_forgotten_over_a_look_at_a_few(
    watch: Watched, holder: int
) -> None:
    """Readiness tells of it: that one process could be read says nothing about the others."""
    hidden = watch.node.root.proc / "4194000"
    hidden.mkdir()
    (hidden / "fd").symlink_to("fd")  # cannot be read, for whatever reason
    (hidden / "stat").write_text(f"4194000 (x) S 1 {' '.join(['0'] * 48)}\n")
    assert watch.look.full_scan_at is None
    await watch.look.scan([watch.device], {})
    assert watch.look.full_gaps
    await watch.look.scan([watch.device], {}, pids=[holder])
    assert watch.look.last_scan is not None
    assert not watch.look.last_scan.gaps
    assert watch.look.full_gaps
    assert watch.look.full_scan_at is not None
    shutil.rmtree(hidden)
    await watch.look.scan([watch.device], {})
    assert not watch.look.full_gaps


async def test_a_holder_that_cannot_be_read_any_more_has_not_let_go(
    watch: Watched, holder: int
) -> None:
    assert (await watch.facts()).holders
    fds = watch.node.root.proc / str(holder) / "fd"
    fds.unlink()
    fds.symlink_to("fd")  # cannot be inspected
    watch.clock.shift(60.0)
    found = (await watch.facts()).holders or ()
    assert [each.process.pid for each in found] == [holder]
    fds.unlink()
    fds.mkdir()
    watch.clock.shift(60.0)
    assert not (await watch.facts()).holders


async def test_the_known_holders_of_all_devices_that_pods_have_are_looked_at_together(
    watch: Watched, holder: int
) -> None:
    devices = [watch.device, replace(watch.device, name=_name("b"))]
    for each in devices:
        await known(watch.use, each, enabled=BUSY)
    whole = watch.look.full_scan_at
    watch.clock.shift(60.0)
    found = await watch.use.known(devices, {}, enabled={each.name: BUSY for each in devices})
    together = watch.look.last_scan
    assert all(facts.holders for facts in found.values())
    assert watch.look.full_scan_at == whole
    assert together is not None
    assert together.processes == 1
    assert holder in {each.process.pid for each in watch.use.holders[devices[1].name]}


async def test_a_device_whose_enable_was_not_read_is_not_judged(
    watch: Watched, holder: int, tmp_path: Path
) -> None:
    """On a node with many devices each is read in its turn: until then nothing new is known."""
    device, clock = watch.device, watch.clock
    devices = Inventory(resources=(device.name.resource,), devices=(device,))
    lock = device_lock(device.name, *device.keys, since=0.0)
    async with ledger_in(tmp_path / "state", clock, boot=lock.boot) as ledger:
        users = Users(ledger=ledger, inventory=Published(devices), use=watch.use, clock=clock)
        for enabled, left in (({device.name: BUSY}, 1), ({}, 1), ({device.name: ()}, 0)):
            await users.look_at_held([lock], {}, enabled)
            await users.look_at_free({}, at_all=False)
            assert len(watch.use.holders) == left


class _Counting(Pidfds):
    asked = 0

    @property
    def watched(self) -> frozenset[ProcessId]:
        self.asked += 1
        return super().watched


async def test_to_forget_what_nobody_has_is_not_to_go_through_all_that_was_seen(
    watch: Watched,
) -> None:
    """After each look at a node with 1,024 free devices that kept the loop for 70 ms."""
    watch.use.pidfds = pidfds = _Counting(Procfs(watch.node.root))
    devices = [replace(watch.device, name=name(str(number))) for number in range(3)]
    await watch.use.scan(devices, {})
    before = pidfds.asked

    for each in devices:
        watch.use.forget_unless_awaited(each.name)

    assert not watch.use.holders
    assert pidfds.asked == before


async def test_a_look_that_ended_too_late_for_a_start_counts_for_a_minute_and_once(
    tmp_path: Path,
) -> None:
    node, lane, clock = SimulatedNode(tmp_path), Lane("scan", deadline=30.0), ManualClock()
    slow = SlowLook(node.root, lane, NoDrivers(), clock)
    device = chip(node, 0)
    lock = device_lock(device.name, *device.keys, fence=7, since=0.0)
    use = device_use(slow, node.root, clock, book=Published(Book(locks={device.name: lock})))

    async def is_told() -> bool:
        waiting = asyncio.create_task(use.facts([device]))
        asked = slow.whole
        await until(lambda: waiting.done() or slow.whole > asked)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
            slow.permits.release()
        return not waiting.cancelled()

    assert not await is_told()
    assert await is_told()
    assert not await is_told(), "it was used"
    await until(lambda: slow.over == 2)
    clock.shift(60.0)
    assert not await is_told(), "it is old"
    await until(lambda: slow.over == 3)
    clock.shift(59.0)
    assert await is_told()
    lane.close(patience=5.0)
    node.close()


@dataclass
class _Driver:
    """Names processes, each of which is in the way."""

    pids: frozenset[int] = frozenset()

    async def ask(self, devices: Iterable[Device], /) -> Mapping[DeviceName, DriverAnswer]:
        return {each.name: self for each in devices}

    def seen_in(
        self,
        facts: KernelFacts,
        *,
        named: Mapping[int, Holder],
        locks: Mapping[DeviceName, DeviceLock],
    ) -> KernelFacts:
        return replace(facts, holders=tuple(named.values()), sight=OnVfio(functions=()))


async def test_what_its_driver_names_since_such_a_look_is_in_the_way(tmp_path: Path) -> None:
    node, lane, clock, driver = (
        SimulatedNode(tmp_path),
        Lane("scan", deadline=30.0),
        ManualClock(),
        _Driver(),
    )
    slow = SlowLook(node.root, lane, driver, clock)
    device = replace(chip(node, 0), kind=DeviceKind.DRIVER, functions=())
    lock = device_lock(device.name, *device.keys, fence=7, since=0.0)
    use = device_use(slow, node.root, clock, book=Published(Book(locks={device.name: lock})))
    waiting = asyncio.create_task(use.facts([device]))
    await until(lambda: slow.whole == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    slow.permits.release()
    await until(lambda: slow.over == 1)

    with stranger(node, NODE) as process:
        driver.pids = frozenset({process.pid})
        slow.permits.release()
        found = await use.facts([device])
    assert slow.whole == 2, "all is looked at once more"
    assert [each.process.pid for each in found[device.name].holders or ()] == [process.pid]
    lane.close(patience=5.0)
    node.close()
