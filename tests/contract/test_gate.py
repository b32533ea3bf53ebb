"""The gate before real processes that have real nodes open: what it looks at, and what it says."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.allocators import allocator
from fakes.books import entry, seen, unreadable
from fakes.doors import WatchedNode, gate_over
from fakes.inuse import CountedLook, NoDrivers, SlowLook, chip, device_use
from fakes.ledgers import ledger_in
from fakes.opener import opener
from fakes.watchers import KnownKubelet
from holdfast.allocation.gate import Gate
from holdfast.discovery.source import Sources
from holdfast.errors import GateRefusedError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.gate.gate import LONGEST_WAIT
from holdfast.model.ids import (
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.use.free import Freedom, judge_kernel
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import sections
from holdfast.settings.types import Duration, Interval
from manual_clock import ManualClock
from simulated.node import SimulatedNode
from waiting import until

TPU = ResourceName("google.com/tpu")
CHIPS = 8
POD = PodUid("8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f0001")
OTHER = PodUid("8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f0002")
GENEROUS = 20.0


@dataclass
class AtTheGate:
    """A gate, and the node that it looks at."""

    node: SimulatedNode
    lane: Lane
    look: CountedLook
    ledger: Ledger
    devices: tuple[Device, ...]
    reader: KnownKubelet = field(default_factory=KnownKubelet)
    watch: WatchedNode = field(default_factory=WatchedNode)

    def gate(
        self,
        *,
        wait: float = 0.3,
        poll: float = 0.02,
        caller_lookup: float = 1.0,
        exclusive_open: bool = True,
    ) -> Gate:
        """Make a gate with these times; it has its own memory of what it saw."""
        return gate_over(
            self.ledger,
            device_use(
                self.look,
                self.node.root,
                SystemClock(),
                book=self.ledger.book,
                exclusive_open=exclusive_open,
            ),
            inventory=Watched(Inventory(resources=(TPU,), devices=self.devices)),
            reader=self.reader,
            watcher=self.watch,
            resetter=self.watch,
            lane=self.lane,
            settings=sections.GateSettings(
                wait=Duration(wait), poll=Interval(poll), caller_lookup=Duration(caller_lookup)
            ),
        )

    def slow(self) -> SlowLook:
        """Have every look at all processes take until the test permits its end."""
        slow = SlowLook(self.node.root, self.lane, NoDrivers(), SystemClock())
        self.look = slow
        return slow

    async def allocate(self, pod: PodUid, *places: int, named: bool = True) -> None:
        """Have kubelet allocate chips to *pod*, after the one that had them before is over.

        *named*: the ledger knows already that they are this pod's, which Allocate does not say.
        """
        devices = {self.devices[each].name.id: self.devices[each].keys for each in places}

        def allocated(draft: Draft) -> None:
            for former in list(draft.book.allocations.values()):
                draft.end(former, "its pod is over")
            for lock in list(draft.book.locks.values()):
                draft.move(lock.device, LockState.FREE, "nobody has it")
            draft.allocate(TPU, devices, pod=pod if named else None)
            settle(draft)

        await self.ledger.apply(allocated)
        self.reader.view.set(seen(entry(pod, *devices, resource=TPU)))

    def path(self, place: int) -> Path:
        return self.node.node(self.devices[place].nodes[0].path)

    def counted(self, *pods: tuple[PodUid, int]) -> None:
        """Let kubelet's checkpoint give each pod the chip at a place."""
        entries = [entry(pod, self.devices[place].name.id, resource=TPU) for pod, place in pods]
        self.reader.view.set(seen(*entries))

    def opened(self, stack: ExitStack, place: int) -> int:
        """Have a process of no pod open the chip; return its pid."""
        pid = stack.enter_context(opener(self.path(place))).pid
        self.node.add_process(pid, "/user.slice")
        return pid


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[AtTheGate]:
    node = SimulatedNode(tmp_path / "node", chips=CHIPS)
    lane = Lane("scan", deadline=30.0)
    async with ledger_in(tmp_path / "state") as ledger:
        made = AtTheGate(
            node=node,
            lane=lane,
            look=CountedLook(node.root, lane, NoDrivers(), SystemClock()),
            ledger=ledger,
            devices=tuple(chip(node, place) for place in range(CHIPS)),
        )
        made.watch.looked.set()
        yield made
    node.close()
    lane.close(patience=5.0)


async def _start(at: AtTheGate, gate: Gate, place: int = 0) -> str:
    """Return why a container may not start, empty where it may; fail where nobody says."""
    try:
        async with asyncio.timeout(GENEROUS):
            await gate.pre_start(TPU, (at.devices[place].name.id,))
    except GateRefusedError as error:
        return str(error)
    return ""


async def _outcome(at: AtTheGate, gate: Gate) -> str:
    """Return the outcome by which a start is refused."""
    with capture_logs() as logs:
        assert await _start(at, gate)
    (outcome,) = (each["outcome"] for each in logs if each["event"] == "gate refused")
    return str(outcome)


def _unread(at: AtTheGate) -> None:
    at.reader.stuck = True


def _unnamed(at: AtTheGate) -> None:
    at.counted()


def _unscanned(at: AtTheGate) -> None:
    at.lane.close()


def _unasked(at: AtTheGate) -> None:
    """Its driver is not asked who uses it."""
    at.devices = (replace(at.devices[0], kind=DeviceKind.DRIVER), *at.devices[1:])


def _slow(at: AtTheGate) -> None:
    at.slow()


@pytest.mark.parametrize("fault", [_unread, _unnamed, _unscanned, _unasked, _slow])
async def test_what_could_not_be_found_out_is_not_counted_as_a_device_that_somebody_has(
    at: AtTheGate, fault: Callable[[AtTheGate], None]
) -> None:
    at.counted((POD, 0))
    fault(at)
    gate = at.gate(caller_lookup=3600.0, exclusive_open=False)
    assert await _outcome(at, gate) == "unknown"


async def test_a_device_that_somebody_has_is_counted_by_who_has_it(at: AtTheGate) -> None:
    at.counted((OTHER, 0))
    assert await _start(at, at.gate()) == ""
    at.counted((POD, 0))
    assert await _outcome(at, at.gate()) == "held"
    await at.allocate(POD, 0)
    with ExitStack() as stack:
        at.opened(stack, 0)
        assert await _outcome(at, at.gate()) == "in-use"
    at.slow()
    known = Holder(process=ProcessId(7, 1), command="python", access=frozenset({DeviceAccess.NODE}))
    at.watch.holders = (known,)
    assert await _outcome(at, at.gate(exclusive_open=False)) == "in-use"


async def test_nobody_passes_before_the_node_was_looked_at(at: AtTheGate) -> None:
    at.watch.looked.clear()
    at.counted((POD, 0))
    told = await _start(at, at.gate())
    assert "holdfast has just started and has not scanned the node yet" in told
    at.watch.looked.set()
    assert await _start(at, at.gate()) == ""


async def test_a_device_is_not_said_to_be_gone_before_it_was_looked_for(at: AtTheGate) -> None:
    at.counted((POD, 0))
    gate = at.gate()
    gate.inventory.set(Inventory(resources=(TPU,)))
    assert "is not on this node any more" in await _start(at, gate)
    gate.inventory.set(Inventory(resources=(TPU,), unseen=frozenset({TPU})))
    assert "was not found yet; the hardware is still being looked for" in await _start(at, gate)


async def test_without_a_checkpoint_nobody_waits_for_it_to_name_the_caller(at: AtTheGate) -> None:
    at.reader.view.set(replace(seen(), readable=False))
    assert await _start(at, at.gate(caller_lookup=3600.0)) == ""


async def test_a_start_is_not_the_former_pods_because_the_checkpoint_gives_no_answer(
    at: AtTheGate,
) -> None:
    """The former pod is over for kubelet, and what it left behind may open the device again."""
    at.counted((OTHER, 0))
    assert await _start(at, at.gate()) == ""
    device = at.devices[0]

    def allocated(draft: Draft) -> None:
        draft.allocate(TPU, {device.name.id: device.keys})
        settle(draft)

    await at.ledger.apply(allocated)
    at.reader.stuck = True
    assert "it cannot be read whose container it is" in await _start(at, at.gate())


async def test_a_start_is_not_the_former_pods_because_its_allocate_could_not_be_recorded(
    at: AtTheGate,
) -> None:
    """A restart of the former pod's container still is, as long as nothing was allocated."""
    at.counted((OTHER, 0))
    gate, device = at.gate(), at.devices[0]
    assert await _start(at, gate) == ""
    at.reader.view.set(replace(at.reader.view.value, readable=False))
    assert await _start(at, gate) == ""
    inventory = Watched(Inventory(resources=(TPU,), devices=at.devices))
    door = allocator(at.ledger, inventory, Sources(), at.lane)
    sqlite = at.ledger.store._db
    await at.ledger.lane.run(lambda: sqlite.execute("PRAGMA query_only = ON"))
    await door.allocate(TPU, (device.name.id,))
    assert "cannot be recorded" in await _start(at, gate)
    await at.ledger.lane.run(lambda: sqlite.execute("PRAGMA query_only = OFF"))
    assert f"held by pod {OTHER}" in await _start(at, gate)
    assert [each.pod for each in at.ledger.book.value.queue()] == [OTHER, None]
    assert not at.ledger.may_lack((TPU, frozenset({device.name.id})))


async def test_a_start_whose_allocate_is_forgotten_waits_for_open_devices_and_for_no_process(
    at: AtTheGate,
) -> None:
    """What docs/lock-states.md says of a kill before the record, with an unreadable checkpoint.

    To the next daemon it cannot be told from a restart in the pod that had the device before.
    """
    at.counted((OTHER, 0))
    assert await _start(at, at.gate()) == ""
    at.reader.view.set(unreadable(at.reader.view.value))
    at.node.add_pod(OTHER)
    with opener(at.path(0)) as left:
        at.node.enter(OTHER, "main", left.pid)
        assert f"(pid {left.pid})" in await _start(at, at.gate())
        left.close_one()  # and lives on
        assert await _start(at, at.gate()) == ""
    assert [each.pod for each in at.ledger.book.value.queue()] == [OTHER]


async def test_no_virtual_machine_shows_whose_start_it_is_while_the_checkpoint_cannot_be_read(
    at: AtTheGate,
) -> None:
    """What docs/operations.md says of Kata with cold plug."""
    at.reader.view.set(unreadable())
    at.node.add_pod(POD)
    with opener(at.path(0), command="qemu-system-x86") as machine:
        at.node.enter(POD, "sandbox", machine.pid)
        assert f"(pid {machine.pid})" in await _start(at, at.gate())
        at.counted((POD, 0))
        assert await _start(at, at.gate()) == ""


async def test_a_start_behind_a_lock_has_kubelet_asked_once_and_not_at_each_look(
    at: AtTheGate,
) -> None:
    at.counted((OTHER, 0))
    assert await _start(at, at.gate()) == ""
    at.counted((POD, 0))
    began = time.monotonic()
    assert "is held by" in await _start(at, at.gate(wait=0.5))
    took = time.monotonic() - began
    assert 1 <= len(at.reader.asked) <= 1 + int(took), "the next time is after 1 s"


async def test_starts_that_wait_at_the_same_time_share_one_look(at: AtTheGate) -> None:
    pods = [PodUid(f"8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f01{place:02d}") for place in range(CHIPS)]
    at.counted(*((pod, place) for place, pod in enumerate(pods)))
    gate = at.gate(wait=1.0)
    with ExitStack() as stack:
        pids = [at.opened(stack, place) for place in range(CHIPS)]
        at.look.whole = 0
        told = await asyncio.gather(*(_start(at, gate, place) for place in range(CHIPS)))
    for text, pid in zip(told, pids, strict=True):
        assert f"(pid {pid})" in text
    assert at.look.whole <= 2, "who asks while a look is under way shares the next"
    assert at.look.partial > 1, "after that its holders alone are looked at"


async def test_a_start_passes_when_the_last_that_had_its_device_lets_go(at: AtTheGate) -> None:
    at.counted((POD, 0))
    with ExitStack() as stack:
        holders = [stack.enter_context(opener(at.path(0))) for _ in range(2)]
        for each in holders:
            at.node.add_process(each.pid, "/user.slice")
        start = asyncio.create_task(_start(at, at.gate(wait=25.0)))
        while not at.look.partial:
            await asyncio.sleep(0.01)
        holders[0].end()
        partial = at.look.partial
        while at.look.partial <= partial + 2:
            await asyncio.sleep(0.01)
        assert not start.done()
        holders[1].close_one()  # and lives on
        assert await start == ""


async def test_a_start_that_waits_is_told_with_its_pod_and_why_until_it_leaves(
    at: AtTheGate,
) -> None:
    at.counted((POD, 0))
    gate = at.gate(wait=25.0)
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        start = asyncio.create_task(_start(at, gate))
        await until(lambda: [*gate.entry.waiting(0.0)])
        (earlier,), (later,) = gate.entry.waiting(1000.0), gate.entry.waiting(1003.0)
    assert later.seconds - earlier.seconds == pytest.approx(3.0)
    assert later.pods == {POD}
    assert later.why == earlier.why, "the time is apart"
    assert later.why.startswith(f"waiting for {TPU}: {at.devices[0].name.id} is open in ")
    assert f"(pid {pid}) outside any pod, which it was not given to; " in later.why
    assert await start == ""
    assert (gate.entry.count, [*gate.entry.waiting(0.0)]) == (0, [])


async def test_a_start_of_an_unknown_pod_and_one_that_will_soon_go_on_are_not_told(
    at: AtTheGate,
) -> None:
    gate = at.gate(wait=25.0, caller_lookup=0.0)
    with ExitStack() as stack:
        at.opened(stack, 0)
        unknown = asyncio.create_task(_start(at, gate, 0))
        await until(lambda: gate.entry.count == 1)
        assert not [*gate.entry.waiting(0.0)]
        at.watch.looked.clear()
        soon = asyncio.create_task(_start(at, gate, 1))
        await until(lambda: gate.entry.count == 2)
        assert not [*gate.entry.waiting(0.0)]
        at.watch.looked.set()
    assert [await unknown, await soon] == ["", ""]


async def test_the_text_of_a_refusal_is_the_same_as_long_as_its_reason_is(at: AtTheGate) -> None:
    at.counted((POD, 0))
    with ExitStack() as stack:
        at.opened(stack, 0)
        first = await _start(at, at.gate())
        second = await _start(at, at.gate(wait=0.7))
    assert first == second
    assert first.endswith("(holdfast holders)")


async def test_what_waiting_does_not_mend_is_not_said_to_be_asked_for_again(at: AtTheGate) -> None:
    at.counted((POD, 0), (OTHER, 0))
    told = await _start(at, at.gate())
    assert told.startswith(f"cannot start on {TPU}: kubelet has given the same devices to 2 pods: ")
    assert told.endswith("; delete one of them")
    assert "asks again" not in told


async def test_a_node_that_hangs_while_a_start_waits_does_not_keep_the_holder_from_its_user(
    at: AtTheGate,
) -> None:
    at.counted((POD, 0))
    let_go = threading.Event()
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        start = asyncio.create_task(_start(at, at.gate(wait=1.0)))
        while not at.look.partial:
            await asyncio.sleep(0.01)
        hung = asyncio.create_task(at.lane.run(lambda: let_go.wait(GENEROUS)))
        told = await start
        assert not hung.done()
        let_go.set()
        await hung
    assert f"(pid {pid})" in told
    assert "bug" not in told


async def test_a_node_that_hangs_from_the_beginning_is_told_with_what_is_known(
    at: AtTheGate,
) -> None:
    at.counted((POD, 0))
    let_go = threading.Event()
    hung = asyncio.create_task(at.lane.run(lambda: let_go.wait(GENEROUS)))
    told = await _start(at, at.gate())
    seen = Holder(process=ProcessId(7, 1), command="python", access=frozenset({DeviceAccess.NODE}))
    at.watch.holders = (seen,)
    with_holder = await _start(at, at.gate())
    assert not hung.done()
    let_go.set()
    await hung
    assert "could not be found out in time" in told
    assert "0000:00:05.0 is open in python (pid 7) outside any pod, which it was " in with_holder
    assert "bug" not in told


async def test_a_device_that_is_busy_without_anybody_to_be_seen_costs_no_look_after_look(
    at: AtTheGate,
) -> None:
    device, clock = at.devices[0], ManualClock()
    shared = device_use(at.look, at.node.root, clock, exclusive_open=True)
    at.node.tree.write(device.functions[0], "enable", "1")
    for _ in range(20):
        facts = (await shared.facts([device]))[device.name]
        assert judge_kernel(facts).freedom is Freedom.IN_USE
    assert at.look.whole == 1
    await clock.advance(60.0)
    await shared.facts([device])
    assert at.look.whole == 2, "who has it may be seen by now"
    at.node.tree.write(device.functions[0], "enable", "0")
    facts = (await shared.facts([device]))[device.name]
    assert judge_kernel(facts).freedom is Freedom.FREE


async def test_a_start_that_waits_is_looked_at_anew_when_groups_may_be_opened(
    at: AtTheGate,
) -> None:
    device, may_open = at.devices[0], Watched(False)
    shared = device_use(at.look, at.node.root, ManualClock(), exclusive_open=may_open)
    at.node.tree.write(device.functions[0], "enable", "1")
    await shared.facts([device])
    await shared.facts([device])
    assert at.look.whole == 1
    may_open.set(True)
    await shared.facts([device])
    assert at.look.whole == 2


async def test_what_proves_a_device_free_is_seen_anew_for_each_start(at: AtTheGate) -> None:
    device = at.devices[0]
    shared = device_use(at.look, at.node.root, ManualClock(), exclusive_open=True)
    for count in range(1, 4):
        await shared.facts([device])
        assert at.look.whole == count
    with ExitStack() as stack:
        at.opened(stack, 0)
        facts = (await shared.facts([device]))[device.name]
        assert judge_kernel(facts).freedom is Freedom.IN_USE


async def test_a_start_hears_at_once_that_a_holder_of_its_device_has_ended(at: AtTheGate) -> None:
    at.counted((POD, 0))
    gate = at.gate(wait=LONGEST_WAIT, poll=LONGEST_WAIT)
    with ExitStack() as stack:
        holder = stack.enter_context(opener(at.path(0)))
        at.node.add_process(holder.pid, "/user.slice")
        start = asyncio.create_task(_start(at, gate))
        # Its first try is over, and with that its holder is followed.
        await until(lambda: gate.entry.count)
        holder.end()
        # By itself it would look again only when its wait is over.
        async with asyncio.timeout(GENEROUS):
            assert await start == ""


GOES_ON = "the look at them goes on, and what it shows counts for the next try"


async def test_where_a_look_takes_longer_than_a_start_waits_the_second_try_passes(
    at: AtTheGate,
) -> None:
    slow = at.slow()
    await at.allocate(POD, 0)
    gate = at.gate(exclusive_open=False)
    assert GOES_ON in await _start(at, gate)
    second = asyncio.create_task(_start(at, gate))
    slow.permits.release()
    assert await second == ""
    assert slow.whole == 1, "what that look showed counts, and it is the only one"


async def test_a_look_that_ended_between_two_tries_counts_for_one_of_them_alone(
    at: AtTheGate,
) -> None:
    slow = at.slow()
    await at.allocate(POD, 0)
    gate = at.gate(exclusive_open=False)
    assert GOES_ON in await _start(at, gate)
    slow.permits.release()
    await until(lambda: slow.over == 1)
    assert await _start(at, gate) == ""
    assert GOES_ON in await _start(at, gate), "its next container needs a look of its own"
    assert slow.whole == 2


async def test_such_a_look_counts_where_kubelets_checkpoint_named_the_pod_since(
    at: AtTheGate,
) -> None:
    slow = at.slow()
    await at.allocate(POD, 0, named=False)
    gate = at.gate(exclusive_open=False)
    assert GOES_ON in await _start(at, gate)
    (allocation,) = at.ledger.book.value.allocations.values()
    await at.ledger.apply(lambda draft: draft.identify(allocation, POD))
    slow.permits.release()
    await until(lambda: slow.over == 1)
    assert await _start(at, gate) == ""
    assert slow.whole == 1


async def test_a_look_from_before_the_lock_was_this_pods_does_not_count(at: AtTheGate) -> None:
    slow = at.slow()
    await at.allocate(OTHER, 0)
    gate = at.gate(exclusive_open=False)
    assert GOES_ON in await _start(at, gate)
    await at.allocate(POD, 0)
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        first = asyncio.create_task(_start(at, gate))
        slow.permits.release()
        assert GOES_ON in await first, "that look was for the pod before"
        slow.permits.release()
        assert f"(pid {pid})" in await _start(at, gate)


async def test_a_device_that_was_enabled_since_such_a_look_is_looked_at_anew(at: AtTheGate) -> None:
    slow = at.slow()
    await at.allocate(POD, 0)
    gate = at.gate(exclusive_open=False)
    assert GOES_ON in await _start(at, gate)
    at.node.tree.write(at.devices[0].functions[0], "enable", "1")
    slow.permits.release()
    assert GOES_ON in await _start(at, gate)
    slow.permits.release()
    slow.permits.release()
    assert "is enabled" in await _start(at, gate)


async def test_what_such_a_look_showed_is_kept_until_all_devices_of_a_start_are_known(
    at: AtTheGate,
) -> None:
    """One of two is held at first: each look has to bring the start further nevertheless."""
    slow = at.slow()
    names = [each.name.id for each in at.devices[:2]]
    await at.allocate(POD, 0, 1)
    gate = at.gate(exclusive_open=False)

    async def start() -> str:
        try:
            await gate.pre_start(TPU, tuple(names))
        except GateRefusedError as error:
            return str(error)
        return ""

    with ExitStack() as stack:
        at.opened(stack, 0)
        for _ in range(2):
            assert GOES_ON in await start()
            slow.permits.release()
    told = [await start()]
    while told[-1] and len(told) < 3:
        slow.permits.release()
        told.append(await start())
    assert not told[-1], told
