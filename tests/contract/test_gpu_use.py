"""Who uses a GPU, from the real adapter on a stub NVML and from real processes that have its node."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fakes.nvml import CONTROL, GIB, Card, Node, Slice, build, cards, uuid, write
from holdfast.demo.node import SimulatedNode
from holdfast.host.gpu_use import GpuUses
from holdfast.host.look import Look
from holdfast.host.nvml import Nvml
from holdfast.host.pidfd import Pidfds
from holdfast.host.procfs import Procfs
from holdfast.model.devices import Device, DeviceKind, DeviceNode
from holdfast.model.free import KernelFacts, Opened, judge_kernel
from holdfast.model.gpu_free import GpuRules
from holdfast.model.ids import BootId, DeviceId, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.locks import DeviceLock, LockState
from holdfast.model.use import Grip
from holdfast.model.verdict import Freedom, Verdict
from holdfast.reclaim.kernel import KernelWatch
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock

UNKNOWN = 999
MIB = 1 << 20
PATH = "/dev/vfio/10"
"""Whose node stands in for /dev/nvidia0: a device that a test can make and open."""
POD = PodUid("11111111-2222-3333-4444-555555555555")
OPENS = (
    "import os, sys; "
    "_ = [os.open(each, os.O_RDWR | os.O_NOCTTY) for each in sys.argv[1:]]; "
    "print(); sys.stdout.flush(); sys.stdin.read()"
)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Gpus:
    node: SimulatedNode
    look: Look
    control: Path
    clock: Clock
    locks: dict[DeviceName, DeviceLock] = field(default_factory=dict)
    ages: ManualClock = field(default_factory=ManualClock)

    def watch(self) -> KernelWatch:
        return KernelWatch(
            look=self.look,
            pidfds=Pidfds(Procfs(self.node.root)),
            clock=self.ages,
            exited=lambda _process: None,
        )

    def show(self, card: Card) -> None:
        """Let NVML tell of this one GPU from now on."""
        write(self.control, Node(cards=(card,)))

    def device(self, *keys: str) -> Device:
        keys = keys or (f"gpu/{uuid(0)}",)
        return Device(
            name=DeviceName(ResourceName("nvidia.com/gpu"), DeviceId(keys[0].partition("/")[2])),
            kind=DeviceKind.GPU,
            keys=frozenset(map(HardwareKey, keys)),
            nodes=(DeviceNode(path=PATH, rdev=self.node.node(PATH).stat().st_rdev),),
            functions=(),
        )

    def grant(self, device: Device, state: LockState = LockState.RELEASING) -> None:
        self.locks[device.name] = DeviceLock(
            device=device.name,
            keys=device.keys,
            state=state,
            fence=1,
            since=0.0,
            boot=BootId("b"),
            pod=POD,
        )

    async def facts(self, device: Device) -> KernelFacts:
        return (await self.look.scan([device], self.locks))[device.name]

    async def judge(self, device: Device) -> Verdict:
        return judge_kernel(await self.facts(device))

    @contextmanager
    def process(self, *, pod: PodUid | None = None, opens: bool = True) -> Iterator[int]:
        """Run a process of *pod* that has the GPU's node open, or has not."""
        files = [str(self.node.node(PATH))] if opens else []
        with subprocess.Popen(
            [sys.executable, "-I", "-c", OPENS, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if pod is None:
                self.node.add_process(process.pid, "/user.slice")
            else:
                self.node.add_pod(pod)
                self.node.enter(pod, "main", process.pid)
            yield process.pid
            process.kill()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    folder = tmp_path_factory.mktemp("nvml-use")
    control = folder / "node"
    write(control, Node(cards=cards(1)))
    os.environ[CONTROL] = str(control)
    opened = Nvml(build(folder))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
async def gpus(nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gpus]:
    control = tmp_path / "control"
    monkeypatch.setenv(CONTROL, str(control))
    node, clock = SimulatedNode(tmp_path / "host"), Clock()
    scan, lane = Lane("scan", deadline=30.0), Lane("nvml", deadline=30.0)
    uses = GpuUses(lane, lambda: nvml, rules=GpuRules(), monotonic=clock)
    found = Gpus(node, Look(node.root, scan, uses), control, clock)
    found.show(cards(1, used=5 * MIB)[0])
    yield found
    scan.close(patience=5.0)
    lane.close(patience=5.0)
    node.close()


async def test_a_gpu_that_nvml_and_proc_show_nobody_on_is_free(gpus: Gpus) -> None:
    device = gpus.device()
    verdict = await gpus.judge(device)
    assert verdict.freedom is Freedom.FREE, verdict.reason
    assert "memory is back (5 MiB in use)" in verdict.reason


async def test_a_process_that_nvml_names_is_found_with_its_pod_although_no_node_is_open(
    gpus: Gpus,
) -> None:
    device = gpus.device()
    with gpus.process(pod=POD, opens=False) as pid:
        gpus.show(cards(1, used=GIB, processes=(("compute", pid, GIB),))[0])
        facts = await gpus.facts(device)
    (holder,) = facts.holders or ()
    assert (holder.process.pid, holder.pod, holder.grips) == (
        pid,
        POD,
        frozenset({Grip.COMPUTES}),
    )


async def test_the_former_pods_open_node_is_in_the_way_and_an_onlookers_is_not(
    gpus: Gpus,
) -> None:
    device = gpus.device()
    gpus.grant(device)
    with gpus.process(pod=POD) as pid:
        verdict = await gpus.judge(device)
        assert verdict.freedom is Freedom.IN_USE
        assert [each.process.pid for each in verdict.holders] == [pid]
    with gpus.process() as pid:
        verdict = await gpus.judge(device)
    assert verdict.freedom is Freedom.FREE, verdict.reason
    assert f"pid {pid}" in verdict.reason


async def test_a_process_that_ended_and_that_nvml_still_names_is_in_the_way(gpus: Gpus) -> None:
    device = gpus.device()
    with gpus.process(pod=POD, opens=False) as pid:
        pass
    gpus.show(cards(1, processes=(("compute", pid, GIB),))[0])
    verdict = await gpus.judge(device)
    assert verdict.freedom is Freedom.IN_USE
    assert f"what pid {pid} had on it" in verdict.reason


async def test_a_process_that_nobody_has_reaped_yet_has_ended(gpus: Gpus) -> None:
    device = gpus.device()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        gpus.node.add_process(process.pid, "/user.slice")
        gpus.show(cards(1, processes=(("compute", process.pid, GIB),))[0])
        verdict = await gpus.judge(device)
    assert f"what pid {process.pid} had on it" in verdict.reason


async def test_memory_that_is_not_back_is_in_the_way_after_every_process_is_gone(
    gpus: Gpus,
) -> None:
    device = gpus.device()
    assert (await gpus.judge(device)).freedom is Freedom.FREE  # its idle memory is known now
    gpus.grant(device)
    gpus.show(cards(1, used=GIB)[0])
    draining = await gpus.judge(device)
    assert draining.freedom is Freedom.IN_USE
    assert "not given back yet" in draining.reason
    gpus.clock.now += 61.0
    overdue = await gpus.judge(device)
    assert (overdue.freedom, "--gpu-reset" in overdue.reason) == (Freedom.IN_USE, True)
    gpus.show(cards(1, used=69 * MIB)[0])
    assert (await gpus.judge(device)).freedom is Freedom.FREE


async def test_idle_memory_is_never_learned_from_a_gpu_that_a_pod_had(gpus: Gpus) -> None:
    device = gpus.device()
    gpus.grant(device)
    gpus.show(cards(1, used=GIB)[0])
    assert "processes alone tell" in (await gpus.judge(device)).reason
    gpus.show(cards(1, used=5 * MIB)[0])
    assert "processes alone tell" in (await gpus.judge(device)).reason


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo", "*"]
)
async def test_an_error_of_nvmls_is_unknown_and_nothing_passes_on_it(
    gpus: Gpus, function: str
) -> None:
    gpus.show(cards(1, errors={function: UNKNOWN})[0])
    verdict = await gpus.judge(gpus.device())
    assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)
    assert "NVML_ERROR_UNKNOWN" in verdict.reason


async def test_without_a_driver_or_without_anybody_to_ask_nothing_is_known(gpus: Gpus) -> None:
    device = gpus.device()
    scan = Lane("scan", deadline=30.0)
    with scan, Lane("nvml", deadline=30.0) as lane:
        for uses in (None, GpuUses(lane, lambda: None)):
            look = Look(gpus.node.root, scan, uses)
            verdict = judge_kernel((await look.scan([device], {}))[device.name])
            assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)


async def test_an_nvml_that_hangs_is_waited_for_a_while_and_is_unknown(
    gpus: Gpus, nvml: Nvml
) -> None:
    gpus.show(cards(1, hangs={"nvmlDeviceGetComputeRunningProcesses_v3": 1.0})[0])
    with Lane("scan", deadline=30.0) as scan, Lane("nvml", deadline=30.0) as lane:
        look = Look(gpus.node.root, scan, GpuUses(lane, lambda: nvml, patience=0.1))
        device, began = gpus.device(), time.monotonic()
        verdict = judge_kernel((await look.scan([device], {}))[device.name])
        assert time.monotonic() - began < 1.0
        lane.close(patience=5.0)
    assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)


async def test_a_slice_is_asked_itself_and_its_gpu_is_asked_with_all_its_slices(
    gpus: Gpus,
) -> None:
    one, two = gpus.device("mig/MIG-1"), gpus.device("mig/MIG-2")
    whole = gpus.device(f"gpu/{uuid(0)}", "mig/MIG-1", "mig/MIG-2")
    with gpus.process(pod=POD) as pid:
        slices = (Slice("MIG-1", gi=1, processes=(("compute", pid, GIB),)), Slice("MIG-2", gi=2))
        gpus.show(cards(1, mig=1, slices=slices)[0])
        freedoms = [(await gpus.judge(each)).freedom for each in (one, two, whole)]
    assert freedoms == [Freedom.IN_USE, Freedom.FREE, Freedom.IN_USE]


async def test_while_nvml_keeps_a_gpu_its_release_reads_no_process(gpus: Gpus) -> None:
    """Memory may take a minute to come back, and /proc a second to be read."""
    device = gpus.device()
    await gpus.judge(device)
    gpus.grant(device)
    gpus.show(cards(1, used=GIB)[0])
    watch = gpus.watch()
    looked: list[int] = []
    with gpus.process(opens=False):
        for _ in range(5):
            facts = await watch.facts(device, gpus.locks, enabled=(), to_free=True)
            assert judge_kernel(facts).freedom is Freedom.IN_USE
            assert gpus.look.last_scan is not None
            looked.append(gpus.look.last_scan.processes)
    assert looked == [0] * 5
    gpus.show(cards(1, used=5 * MIB)[0])
    with gpus.process(pod=POD) as pid:
        facts = await watch.facts(device, gpus.locks, enabled=(), to_free=True)
        assert [each.process.pid for each in facts.holders or ()] == [pid]
    watch.forget(device.name)


async def test_a_holder_that_stops_using_a_gpu_and_lives_on_is_noticed_after_the_pause(
    gpus: Gpus,
) -> None:
    device = gpus.device()
    watch = gpus.watch()
    with gpus.process() as pid:
        gpus.show(cards(1, used=5 * MIB, processes=(("compute", pid, 0),))[0])
        assert (await watch.facts(device, {}, enabled=())).holders
        gpus.show(cards(1, used=5 * MIB)[0])
        assert (await watch.facts(device, {}, enabled=())).holders
        gpus.ages.shift(watch.rescan_pause + 1.0)
        facts = await watch.facts(device, {}, enabled=())
        assert judge_kernel(facts).freedom is Freedom.FREE
    watch.forget(device.name)


async def test_a_gpu_is_never_tried_by_opening_its_node(gpus: Gpus) -> None:
    device = gpus.device()
    (gpus.node.root.proc / "devices").write_text("Character devices:\n136 vfio\n")
    assert await gpus.look.open(device) is Opened.UNAVAILABLE
    as_vfio = replace(device, kind=DeviceKind.VFIO)
    assert await gpus.look.open(as_vfio) is Opened.SUCCEEDED, "this node could have been opened"
