"""The gate before real processes that have real nodes open: what it looks at, and what it says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import entry, seen
from fakes.opener import opener
from holdfast.allocation.gate import Gate
from holdfast.allocation.sharedlook import SharedLook
from holdfast.discovery.source import Sources
from holdfast.errors import GateRefusedError
from holdfast.host.use.look import Look
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.locks import DeviceLock
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.ids import (
    BootId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
    ResourceName,
)
from holdfast.model.kubelet import KubeletView
from holdfast.model.use.free import Freedom, KernelFacts, judge_kernel
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import sections
from holdfast.settings.types import Duration, Interval
from manual_clock import ManualClock
from simulated.node import SimulatedNode

TPU = ResourceName("google.com/tpu")
CHIPS = 8
POD = PodUid("8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f0001")
OTHER = PodUid("8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f0002")
GENEROUS = 20.0


class CountedLook(Look):
    """A look that counts how often it went through every process, or only through some."""

    whole = 0
    partial = 0

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> dict[DeviceName, KernelFacts]:
        self.whole += pids is None
        self.partial += pids is not None
        return await super().scan(devices, locks, pids=pids)


class Reader:
    """Kubelet's checkpoint as a test writes them."""

    def __init__(self) -> None:
        self.view: Watched[KubeletView] = Watched(seen())
        self.asked = 0

    def ask(self, _reason: str) -> None:
        self.asked += 1

    async def refresh(self) -> KubeletView:
        return self.view.value

    async def answered_after(self, _moment: float, _timeout: float) -> KubeletView | None:
        return self.view.value


@dataclass
class AtTheGate:
    """A gate, and the node that it looks at."""

    node: SimulatedNode
    lane: Lane
    look: CountedLook
    ledger: Ledger
    devices: tuple[Device, ...]
    reader: Reader = field(default_factory=Reader)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    obstacle: str = ""

    def gate(self, *, wait: float = 0.3, caller_lookup: float = 1.0) -> Gate:
        """Make a gate with these times; it has its own memory of what it saw."""
        return Gate(
            ledger=self.ledger,
            inventory=Watched(Inventory(generation=1, resources=(TPU,), devices=self.devices)),
            reader=self.reader,
            look=self.look,
            looked=self.looked,
            obstacle=lambda _device: self.obstacle,
            at_work=lambda _keys: "",
            clock=SystemClock(),
            sources=Sources(),
            settings=Watched(
                sections.Gate(
                    wait=Duration(wait), poll=Interval(0.02), caller_lookup=Duration(caller_lookup)
                )
            ),
        )

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
    lanes = [Lane("scan", deadline=30.0), Lane("ledger", deadline=30.0)]
    (tmp_path / "state").mkdir()
    ledger = await open_ledger(
        tmp_path / "state", lanes[1], clock=SystemClock(), boot=BootId("boot")
    )
    made = AtTheGate(
        node=node,
        lane=lanes[0],
        look=CountedLook(node.root, lanes[0]),
        ledger=ledger,
        devices=tuple(_chip(node, place) for place in range(CHIPS)),
    )
    made.looked.set()
    yield made
    await ledger.close()
    node.close()
    for lane in lanes:
        lane.close(patience=5.0)


def _chip(node: SimulatedNode, place: int) -> Device:
    address, path = PciAddress(f"0000:00:{5 + place:02x}.0"), f"/dev/vfio/{10 + place}"
    return Device(
        name=DeviceName(TPU, DeviceId(address)),
        kind=DeviceKind.VFIO,
        keys=frozenset({HardwareKey(f"pci/{address}")}),
        nodes=(DeviceNode(path=path, rdev=node.node(path).stat().st_rdev),),
        functions=(address,),
        model="v5e",
    )


async def _start(at: AtTheGate, gate: Gate, place: int = 0) -> str:
    """Return why a container may not start, empty where it may; fail where nobody says."""
    try:
        async with asyncio.timeout(GENEROUS):
            await gate.pre_start(TPU, (at.devices[place].name.id,))
    except GateRefusedError as error:
        return str(error)
    return ""


async def test_nobody_passes_before_the_node_was_looked_at(at: AtTheGate) -> None:
    at.looked.clear()
    at.counted((POD, 0))
    told = await _start(at, at.gate())
    assert "holdfast has just started and has not scanned the node yet" in told
    at.looked.set()
    assert await _start(at, at.gate()) == ""


async def test_without_a_checkpoint_nobody_waits_for_it_to_name_the_caller(at: AtTheGate) -> None:
    at.reader.view.set(replace(seen(), readable=False))
    assert await _start(at, at.gate(caller_lookup=3600.0)) == ""


async def test_a_start_behind_a_lock_has_kubelet_asked_once_and_not_at_each_look(
    at: AtTheGate,
) -> None:
    at.counted((OTHER, 0))
    assert await _start(at, at.gate()) == ""
    at.counted((POD, 0))
    assert "is held by" in await _start(at, at.gate(wait=0.5))
    assert at.reader.asked == 1, "the next time would be after 1 s"


async def test_starts_that_wait_at_the_same_time_share_one_look(at: AtTheGate) -> None:
    pods = [PodUid(f"8f3a4a4e-6c1b-4f6e-9a67-0f6a5a1f01{place:02d}") for place in range(CHIPS)]
    at.counted(*((pod, place) for place, pod in enumerate(pods)))
    gate = at.gate(wait=1.0)
    with ExitStack() as stack:
        pids = [at.opened(stack, place) for place in range(CHIPS)]
        at.look.whole = 0
        told = await asyncio.gather(*(_start(at, gate, place) for place in range(CHIPS)))
    for text, pid in zip(told, pids, strict=True):
        assert f"held by pid {pid}" in text
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


async def test_the_text_of_a_refusal_is_the_same_as_long_as_its_reason_is(at: AtTheGate) -> None:
    at.counted((POD, 0))
    with ExitStack() as stack:
        at.opened(stack, 0)
        first = await _start(at, at.gate())
        second = await _start(at, at.gate(wait=0.7))
    assert first == second
    assert first.endswith("(kubelet will ask again)")


async def test_what_waiting_does_not_mend_is_not_said_to_be_asked_for_again(at: AtTheGate) -> None:
    at.counted((POD, 0), (OTHER, 0))
    told = await _start(at, at.gate())
    assert "delete one of them" in told
    assert "ask again" not in told


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
    assert f"held by pid {pid}" in told
    assert "bug" not in told


async def test_a_node_that_hangs_from_the_beginning_is_told_with_what_is_known(
    at: AtTheGate,
) -> None:
    at.counted((POD, 0))
    at.obstacle = f"{at.devices[0].name} is held by pid 7 (python)"
    let_go = threading.Event()
    hung = asyncio.create_task(at.lane.run(lambda: let_go.wait(GENEROUS)))
    told = await _start(at, at.gate())
    assert not hung.done()
    let_go.set()
    await hung
    assert "who uses it could not be found out in time; google.com/tpu/" in told
    assert "held by pid 7 (python)" in told
    assert "bug" not in told


async def test_a_device_that_is_busy_without_anybody_to_be_seen_costs_no_look_after_look(
    at: AtTheGate,
) -> None:
    device, clock = at.devices[0], ManualClock()
    shared = SharedLook(at.look, locks=dict, clock=clock, exclusive_open=Watched(True))
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
    shared = SharedLook(at.look, locks=dict, clock=ManualClock(), exclusive_open=may_open)
    at.node.tree.write(device.functions[0], "enable", "1")
    await shared.facts([device])
    await shared.facts([device])
    assert at.look.whole == 1
    may_open.set(True)
    await shared.facts([device])
    assert at.look.whole == 2


async def test_what_proves_a_device_free_is_seen_anew_for_each_start(at: AtTheGate) -> None:
    device = at.devices[0]
    shared = SharedLook(at.look, locks=dict, clock=ManualClock(), exclusive_open=Watched(True))
    for count in range(1, 4):
        await shared.facts([device])
        assert at.look.whole == count
    with ExitStack() as stack:
        at.opened(stack, 0)
        facts = (await shared.facts([device]))[device.name]
        assert judge_kernel(facts).freedom is Freedom.IN_USE


async def test_a_holder_that_cannot_be_read_any_more_has_not_let_go(at: AtTheGate) -> None:
    device = replace(at.devices[0], kind=DeviceKind.ACCEL, functions=())
    shared = SharedLook(at.look, locks=dict, clock=ManualClock(), exclusive_open=Watched(True))
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        await shared.facts([device])
        fds = at.node.root.proc / str(pid) / "fd"
        real = fds.readlink()
        fds.unlink()
        fds.symlink_to("fd")  # cannot be inspected
        facts = (await shared.facts([device]))[device.name]
        verdict = judge_kernel(facts)
        assert verdict.freedom is Freedom.IN_USE, verdict.reason
        assert [each.process.pid for each in verdict.holders] == [pid]
        fds.unlink()
        fds.symlink_to(real)
        facts = (await shared.facts([device]))[device.name]
        assert [each.process.pid for each in facts.holders or ()] == [pid]
        fds.unlink()
        fds.mkdir()
        facts = (await shared.facts([device]))[device.name]
        assert judge_kernel(facts).freedom is Freedom.FREE
