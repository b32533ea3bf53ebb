"""What starts, the watcher and people learn of a device is one thing, and each asks what it needs."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import name
from fakes.inuse import CountedLook, NoDrivers, chip, device_use, known
from fakes.opener import Opener, opener
from holdfast.errors import HostError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import DeviceName, PciAddress, ProcessId
from holdfast.model.use.free import Freedom, KernelFacts, OpenOutcome, judge_kernel
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock
from simulated.node import SimulatedNode
from waiting import until


@dataclass
class Node:
    """A node with two chips."""

    simulated: SimulatedNode
    look: CountedLook
    stack: ExitStack
    clock: ManualClock

    def __post_init__(self) -> None:
        self.devices = tuple(chip(self.simulated, place) for place in range(2))
        self.device = self.devices[0]
        self.use = self.memory()

    def memory(self, *, exclusive_open: bool = False) -> DeviceUse:
        return device_use(self.look, self.simulated.root, self.clock, exclusive_open=exclusive_open)

    def accel(self) -> Device:
        """Return a device of which only open files tell."""
        return replace(self.device, kind=DeviceKind.ACCEL, functions=())

    def opened(self, place: int = 0) -> Opener:
        """Have a process of no pod open the chip at a place."""
        node = self.simulated.node(self.devices[place].nodes[0].path)
        process = self.stack.enter_context(opener(node))
        self.simulated.add_process(process.pid, "/user.slice")
        return process

    def hide(self, pid: int) -> Callable[[], None]:
        """Let the files of a process be unreadable until the returned function is called."""
        fds = self.simulated.root.proc / str(pid) / "fd"
        real = fds.readlink()
        fds.unlink()
        fds.symlink_to("fd")

        def show() -> None:
            fds.unlink()
            fds.symlink_to(real)

        return show

    def enable(self, level: str) -> tuple[PciAddress, ...]:
        """Let the kernel say so of the first chip; return what is enabled then."""
        self.simulated.tree.write(self.device.functions[0], "enable", level)
        return self.device.functions if level != "0" else ()

    async def for_start(self, device: Device, use: DeviceUse | None = None) -> KernelFacts:
        return (await (use or self.use).facts([device]))[device.name]

    async def to_free(
        self, device: Device, enabled: tuple[PciAddress, ...] = (), *, use: DeviceUse | None = None
    ) -> KernelFacts:
        return await known(use or self.use, device, enabled=enabled, to_free=True)


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Node]:
    simulated = SimulatedNode(tmp_path, chips=2)
    with contextlib.closing(Lane("scan", deadline=30.0)) as lane, ExitStack() as stack:
        clock = ManualClock()
        look = CountedLook(simulated.root, lane, NoDrivers(), clock)
        node = Node(simulated, look, stack, clock)
        yield node
        node.use.keep([])
    simulated.close()


def pids(facts: KernelFacts) -> set[int]:
    return {each.process.pid for each in facts.holders or ()}


async def test_whom_the_watcher_saw_among_all_a_start_need_not_look_for(on: Node) -> None:
    holder, enabled = on.opened(), on.enable("1")
    await known(on.use, on.device, enabled=enabled)
    assert pids(await on.for_start(on.device)) == {holder.pid}
    assert (on.look.whole, on.look.partial) == (1, 1)


async def test_whom_a_start_saw_the_watcher_need_not_look_for(on: Node) -> None:
    holder, enabled = on.opened(), on.enable("1")
    await on.for_start(on.device)
    assert pids(await known(on.use, on.device, enabled=enabled)) == {holder.pid}
    assert (on.look.whole, on.look.partial) == (1, 0)


async def test_what_a_pods_own_processes_have_tells_a_start_nothing_of_others(on: Node) -> None:
    own, other, enabled = on.opened(), on.opened(), on.enable("1")
    facts = await known(on.use, on.device, enabled=enabled, pids=[own.pid])
    assert pids(facts) == {own.pid}
    assert pids(await on.for_start(on.device)) == {own.pid, other.pid}


async def test_a_start_tries_what_the_watcher_saw_enabled_without_anybody(on: Node) -> None:
    """It may have been left enabled, which only an exclusive open tells."""
    (on.simulated.root.proc / "devices").write_text("Character devices:\n136 vfio\n")
    use, enabled = on.memory(exclusive_open=True), on.enable("1")
    facts = await known(use, on.device, enabled=enabled)
    assert judge_kernel(facts).freedom is Freedom.IN_USE
    facts = await on.for_start(on.device, use)
    assert facts.opened is OpenOutcome.SUCCEEDED
    assert judge_kernel(facts).freedom is Freedom.FREE


async def test_a_group_that_could_be_opened_proves_nothing_to_a_release(on: Node) -> None:
    """No process was looked at then, and one of the pod's may have its own node open."""
    (on.simulated.root.proc / "devices").write_text("Character devices:\n136 vfio\n")
    use = on.memory(exclusive_open=True)
    assert (await on.for_start(on.device, use)).opened is OpenOutcome.SUCCEEDED
    facts = await known(use, on.device, enabled=())
    assert facts.holders == ()
    assert on.look.whole == 1


async def test_nobody_to_free_a_device_must_have_been_seen_after_its_pod_was_over(on: Node) -> None:
    """A look with gaps is not made again and again, but one that a living pod outdates is."""
    stuck, device = on.opened(1), on.accel()
    on.hide(stuck.pid)
    facts = await known(on.use, device, enabled=())
    assert facts.holders == ()
    assert facts.gaps
    late = on.opened()
    assert pids(await on.to_free(device)) == {late.pid}


@pytest.mark.parametrize("lives", [True, False])
async def test_devices_that_are_let_go_at_once_share_their_looks(on: Node, *, lives: bool) -> None:
    """One at all of thousands of processes takes a second, and many pods may end together."""
    holder = on.opened()
    devices = [replace(on.accel(), name=name(str(number))) for number in range(40)]
    names = {each.name for each in devices}

    async def judged() -> set[Freedom]:
        enabled = dict.fromkeys(names, ())
        found = await on.use.known(devices, {}, enabled=enabled, to_free=names)
        return {judge_kernel(facts).freedom for facts in found.values()}

    assert await judged() == {Freedom.IN_USE}
    if lives:
        holder.close_one()
        on.clock.shift(5.0)
    else:
        holder.end()
        await until(lambda: on.use.exits.value == 1)
    assert await judged() == {Freedom.FREE}
    assert (on.look.whole, on.look.partial) == (2, int(lives))


async def test_a_look_shared_with_what_is_to_be_freed_frees_nothing_else(on: Node) -> None:
    stuck, device = on.opened(1), on.accel()
    other = replace(device, name=name("other"))
    enabled = dict.fromkeys((device.name, other.name), ())
    on.hide(stuck.pid)
    found = await on.use.known((device, other), {}, enabled=enabled, to_free={device.name})
    assert found[other.name].gaps
    late = on.opened()
    assert pids(await on.to_free(other)) == {late.pid}


async def test_a_release_goes_by_the_look_that_is_made_for_another_one(on: Node) -> None:
    stuck, device = on.opened(1), on.accel()
    on.hide(stuck.pid)
    assert (await on.to_free(device)).gaps
    late, other = on.opened(), replace(device, name=name("other"))
    names = {device.name, other.name}
    enabled = dict.fromkeys(names, ())
    found = await on.use.known((device, other), {}, enabled=enabled, to_free=names)
    assert pids(found[device.name]) == {late.pid}


class EnabledMeanwhile(CountedLook):
    """A look during which the kernel comes to say *level* of the first chip."""

    def __init__(self, on: Node, level: str) -> None:
        super().__init__(on.simulated.root, on.look.lane, NoDrivers(), on.clock)
        self._enable = partial(on.enable, level)

    async def scan(self, *asked: Any, **how: Any) -> dict[DeviceName, KernelFacts]:
        found = await super().scan(*asked, **how)
        self._enable()
        return found


async def test_a_device_that_was_enabled_during_the_look_that_found_nobody_is_not_free(
    on: Node,
) -> None:
    """Others may have been tried since, behind a start's look that takes seconds."""
    use = device_use(EnabledMeanwhile(on, "1"), on.simulated.root, on.clock)
    facts = await on.to_free(on.device, use=use)
    assert not facts.holders
    assert judge_kernel(facts).freedom is Freedom.IN_USE


async def test_a_device_that_was_enabled_before_the_look_that_found_nobody_is_not_free(
    on: Node,
) -> None:
    """Who closed it meanwhile may have kept its group: nobody was looked for since."""
    look = EnabledMeanwhile(on, "0")
    use, enabled = device_use(look, on.simulated.root, on.clock), on.enable("1")
    facts = await on.to_free(on.device, enabled, use=use)
    assert judge_kernel(facts).freedom is Freedom.IN_USE
    assert judge_kernel(await on.to_free(on.device, use=use)).freedom is Freedom.FREE
    assert look.whole == 2


async def test_an_open_is_no_proof_once_the_device_was_enabled_behind_it(on: Node) -> None:
    """Opens of other devices, which are waited for too, can take seconds."""
    (on.simulated.root.proc / "devices").write_text("Character devices:\n136 vfio\n")

    class Meanwhile(CountedLook):
        async def open(self, device: Device) -> OpenOutcome:
            opened = await super().open(device)
            on.enable("1")
            return opened

    stuck = on.opened(1)
    on.hide(stuck.pid)
    look = Meanwhile(on.simulated.root, on.look.lane, NoDrivers(), on.clock)
    use = device_use(look, on.simulated.root, on.clock, exclusive_open=True)
    facts = await on.to_free(on.device, use=use)
    assert facts.gaps
    assert judge_kernel(facts).freedom is Freedom.IN_USE


async def test_a_release_that_not_everybody_can_be_seen_for_is_no_look_after_look(on: Node) -> None:
    stuck, device = on.opened(1), on.accel()
    on.hide(stuck.pid)
    for _ in range(3):
        assert (await on.to_free(device)).gaps
    assert on.look.whole == 1
    on.clock.shift(on.use.budget.clock)
    await on.to_free(device)
    assert on.look.whole == 2


async def test_what_a_start_has_just_asked_for_the_watcher_does_not_forget(on: Node) -> None:
    """Of a GPU, or of a group node alone, `enable` tells the watcher nothing."""
    holder, device = on.opened(), on.accel()
    await on.for_start(device)
    on.use.forget_unless_awaited(device.name)
    assert pids(await on.for_start(device)) == {holder.pid}
    assert on.look.whole == 1
    on.clock.shift(5.0)
    on.use.forget_unless_awaited(device.name)
    assert device.name not in on.use.holders
    await on.for_start(device)
    assert on.look.whole == 2


async def test_what_a_release_saw_is_no_proof_once_a_pod_has_the_device_again(on: Node) -> None:
    stuck, device = on.opened(1), on.accel()
    await on.for_start(device)
    on.hide(stuck.pid)
    assert (await on.to_free(device)).gaps
    on.use.forget_unless_awaited(device.name)
    late = on.opened()
    assert pids(await on.to_free(device)) == {late.pid}


async def test_what_a_person_or_a_leak_had_looked_for_is_remembered(on: Node) -> None:
    holder, enabled = on.opened(), on.enable("1")
    found = await on.use.scan(on.devices, {})
    assert pids(found[on.device.name]) == {holder.pid}
    assert pids(await known(on.use, on.device, enabled=enabled)) == {holder.pid}
    assert pids(await on.for_start(on.device)) == {holder.pid}
    assert on.look.whole == 1
    await on.use.scan(on.devices, {})
    assert on.look.whole == 2, "each of them looks anew"


async def test_that_a_holder_ended_is_published_and_looked_into(on: Node) -> None:
    first, second = on.opened(), on.opened()
    await on.for_start(on.device)
    assert on.use.exits.value == 0
    first.end()
    await until(lambda: on.use.exits.value == 1)
    assert pids(await on.for_start(on.device)) == {second.pid}
    assert on.look.whole == 2


class NoneLeft(Pidfds):
    """The kernel gives no pidfd, as it does without a free file descriptor."""

    def watch(self, process: ProcessId, exited: Callable[[ProcessId], None]) -> bool:
        raise HostError(f"cannot open a pidfd of {process.pid}: Too many open files")


async def test_who_holds_a_device_is_told_also_where_no_end_can_be_followed(on: Node) -> None:
    use = device_use(on.look, NoneLeft(Procfs(on.simulated.root)), on.clock)
    holder, device = on.opened(), on.accel()
    assert pids(await on.for_start(device, use)) == {holder.pid}
    assert pids(await on.to_free(device, use=use)) == {holder.pid}
    holder.close_one()
    on.clock.shift(5.0)
    assert judge_kernel(await on.to_free(device, use=use)).freedom is Freedom.FREE


async def test_what_is_no_more_on_the_node_is_forgotten(on: Node) -> None:
    on.opened()
    await on.use.facts(on.devices)
    on.use.keep([on.devices[1].name])
    assert set(on.use.holders) == {on.devices[1].name}
    await until(lambda: not on.use.pidfds.watched)


async def test_gaps_stay_gaps_while_the_known_holders_alone_are_looked_at(on: Node) -> None:
    """Else an incomplete look would seem to prove somebody guilty."""
    holder, stuck, device = on.opened(), on.opened(1), on.accel()
    on.hide(stuck.pid)
    assert (await on.for_start(device)).gaps
    for facts in (await on.for_start(device), await on.to_free(device)):
        assert pids(facts) == {holder.pid}
        assert facts.gaps


async def test_nobody_among_no_processes_is_not_nobody_to_a_start(on: Node) -> None:
    """Of a device that has just become free the watcher looks at no process, only at its driver."""
    await on.use.scan(on.devices, {})
    holder = on.opened()
    on.enable("1")
    assert (await on.use.scan([on.device], {}, pids=()))[on.device.name].holders == ()
    assert pids(await on.for_start(on.device)) == {holder.pid}


class Ended(Pidfds):
    """Every process has ended by the time that it is to be followed."""

    def watch(self, process: ProcessId, exited: Callable[[ProcessId], None]) -> bool:
        return False


async def test_who_ended_before_it_could_be_followed_is_not_remembered(on: Node) -> None:
    use = device_use(on.look, Ended(Procfs(on.simulated.root)), on.clock)
    on.opened()
    await on.for_start(on.device, use)
    assert on.device.name not in use.holders


class Groups(CountedLook):
    """Groups can be opened, or cannot, as a test says."""

    answer = OpenOutcome.BUSY

    async def open(self, device: Device) -> OpenOutcome:
        return self.answer


@pytest.fixture
async def groups(on: Node) -> Groups:
    return Groups(on.simulated.root, on.look.lane, NoDrivers(), on.clock)


async def test_a_group_that_was_busy_is_tried_again_each_time(on: Node, groups: Groups) -> None:
    use = device_use(groups, on.simulated.root, on.clock, exclusive_open=True)
    for _ in range(3):
        facts = (await use.facts([on.device]))[on.device.name]
        assert judge_kernel(facts).freedom is Freedom.IN_USE
    assert groups.whole == 1
    groups.answer = OpenOutcome.SUCCEEDED
    facts = (await use.facts([on.device]))[on.device.name]
    assert judge_kernel(facts).freedom is Freedom.FREE


async def test_a_group_that_is_busy_is_not_free_though_not_everybody_could_be_seen(
    on: Node, groups: Groups
) -> None:
    """Whoever has it is tried again: a look with gaps is not made again so soon."""
    use = device_use(groups, on.simulated.root, on.clock, exclusive_open=True)
    on.hide(on.opened().pid)
    for _ in range(3):
        facts = await on.to_free(on.device, use=use)
        assert facts.gaps
        assert judge_kernel(facts).freedom is Freedom.IN_USE
    groups.answer = OpenOutcome.SUCCEEDED
    assert judge_kernel(await on.to_free(on.device, use=use)).freedom is Freedom.FREE
    assert groups.whole == 1


async def test_starts_that_ask_while_a_look_is_under_way_share_the_next(on: Node) -> None:
    go_on = threading.Event()
    busy = asyncio.create_task(on.look.lane.run(lambda: go_on.wait(20.0)))
    asked = []
    for _ in range(3):
        asked.append(asyncio.create_task(on.for_start(on.device)))
        for _ in range(20):  # so that its look has begun if it may
            await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(busy, *asked)
    assert on.look.whole == 2


async def test_nobody_among_a_pods_processes_is_not_nobody(on: Node) -> None:
    own, other = on.opened(1), on.opened()
    facts = await known(on.use, on.accel(), enabled=(), pids=[own.pid], to_free=True)
    assert pids(facts) == {other.pid}


async def test_what_was_left_enabled_is_looked_at_anew_once_it_is_used(on: Node) -> None:
    (on.simulated.root.proc / "devices").write_text("Character devices:\n136 vfio\n")
    use, enabled = on.memory(exclusive_open=True), on.enable("1")
    facts = await known(use, on.device, enabled=enabled)
    assert judge_kernel(facts).freedom is Freedom.IN_USE, "while a pod may start it is not opened"
    facts = await on.to_free(on.device, enabled, use=use)
    assert judge_kernel(facts).freedom is Freedom.FREE
    late, enabled = on.opened(), on.enable("2")
    assert pids(await on.to_free(on.device, enabled, use=use)) == {late.pid}


async def test_a_pod_with_a_new_holder_all_the_time_calls_for_few_looks(on: Node) -> None:
    holder = on.opened()
    await on.for_start(on.device)
    on.look.full_scan_cpu_seconds = 1.0
    began = time.monotonic()
    holder.end()
    await until(lambda: on.use.exits.value == 1)
    assert time.monotonic() - began > 0.99
