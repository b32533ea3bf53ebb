"""Who uses a GPU, from the real adapter on a stub NVML and from real processes that have its node."""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.inuse import known, look_at
from fakes.onegpu import MIB, POD, OneGpu, gpu_uses, gpus_on
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.nvidia.use import NvmlAnswer
from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.nvidia.gpu import GpuUse
from holdfast.model.use.free import Freedom, KernelFacts, OpenOutcome, judge_kernel
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from simulated.nvml import GIB, Slice, cards, uuid

UNKNOWN = 999
_OPEN = frozenset({DeviceAccess.NODE})


@pytest.fixture
async def gpus(nvml: Nvml, tmp_path: Path) -> AsyncIterator[OneGpu]:
    async with gpus_on(tmp_path, nvml) as found:
        yield found


async def test_a_process_that_nvml_names_is_found_with_its_pod_although_no_node_is_open(
    gpus: OneGpu,
) -> None:
    device = gpus.device()
    with gpus.process(pod=POD, opens=False) as pid:
        gpus.show(cards(1, used=GIB, processes=(("compute", pid, GIB),))[0])
        facts = await gpus.facts(device)
    (holder,) = facts.holders or ()
    assert (holder.process.pid, holder.pod, holder.access) == (
        pid,
        POD,
        frozenset({DeviceAccess.COMPUTES}),
    )


async def test_the_former_pods_open_node_is_in_the_way_and_an_onlookers_is_not(
    gpus: OneGpu,
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


@pytest.mark.parametrize(("onlooks", "more"), [(False, 136), (True, 0)])
def test_of_holders_that_were_counted_onlookers_are_none(
    gpus: OneGpu, *, onlooks: bool, more: int
) -> None:
    device = gpus.device()
    gpus.grant(device)
    seen = [
        Holder(process=ProcessId(pid, 1), command="python", access=_OPEN, pod=pod)
        for pid, pod in ((5, POD), (6, PodUid("other") if onlooks else POD))
    ]
    facts = KernelFacts(kind=DeviceKind.DRIVER, holders=tuple(seen), more=136)
    with contextlib.closing(Lane("nvml", deadline=30.0)) as lane:
        answer = NvmlAnswer(device=device, use=GpuUse(), of=gpu_uses(lane, None))
        found = answer.seen_in(facts, named={}, locks=gpus.locks)
    assert (len(found.holders or ()), found.more) == (1 if onlooks else 2, more)


async def test_a_process_that_nobody_has_reaped_yet_has_ended(gpus: OneGpu) -> None:
    device = gpus.device()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        gpus.node.add_process(process.pid, "/user.slice")
        gpus.show(cards(1, processes=(("compute", process.pid, GIB),))[0])
        verdict = await gpus.judge(device)
    assert f"what pid {process.pid} had on it" in verdict.reason


async def test_idle_memory_is_never_learned_from_a_gpu_that_a_pod_had(gpus: OneGpu) -> None:
    device = gpus.device()
    gpus.grant(device)
    gpus.show(cards(1, used=GIB)[0])
    assert "only processes count" in (await gpus.judge(device)).reason
    gpus.show(cards(1, used=5 * MIB)[0])
    assert "only processes count" in (await gpus.judge(device)).reason


async def test_what_was_idle_under_a_former_driver_says_nothing_under_the_next(
    gpus: OneGpu, nvml: Nvml
) -> None:
    device, load = gpus.device(), ["load 1"]
    with (
        contextlib.closing(Lane("scan", deadline=30.0)) as scan,
        contextlib.closing(Lane("nvml", deadline=30.0)) as lane,
    ):
        look = look_at(gpus.node.root, scan, gpu_uses(lane, nvml, load=lambda: load[0]))
        await look.scan([device], {})
        gpus.grant(device)
        gpus.show(cards(1, used=GIB)[0])
        before = judge_kernel((await look.scan([device], gpus.locks))[device.name])
        load[0] = "load 2"
        after = judge_kernel((await look.scan([device], gpus.locks))[device.name])
    assert before.freedom is Freedom.IN_USE
    assert after.freedom is Freedom.FREE
    assert "only processes count" in after.reason


async def test_a_leak_is_still_one_to_the_next_daemon_until_the_driver_was_loaded_anew(
    gpus: OneGpu, nvml: Nvml
) -> None:
    device = gpus.device()
    with (
        contextlib.closing(Lane("scan", deadline=30.0)) as scan,
        contextlib.closing(Lane("nvml", deadline=30.0)) as lane,
    ):
        first = gpu_uses(lane, nvml, load=lambda: "load 1")
        await look_at(gpus.node.root, scan, first).scan([device], {})
        gpus.grant(device)
        gpus.show(cards(1, used=70 * GIB)[0])
        freedoms = []
        for load in ("load 1", "load 2"):
            uses = gpu_uses(lane, nvml, load=lambda load=load: load, idle=Watched(first.idle.value))
            facts = await look_at(gpus.node.root, scan, uses).scan([device], gpus.locks)
            freedoms.append(judge_kernel(facts[device.name]).freedom)
    assert freedoms == [Freedom.IN_USE, Freedom.FREE]


async def test_a_gpu_that_works_for_nobody_is_waited_for_and_then_handed_over_as_unverified(
    gpus: OneGpu,
) -> None:
    device = gpus.device()
    await gpus.judge(device)
    gpus.grant(device)
    gpus.show(cards(1, used=5 * MIB, utilization=100)[0])
    first = await gpus.judge(device)
    assert (first.freedom, "is 100 % busy" in first.reason) == (Freedom.IN_USE, True)
    gpus.clock.now += 61.0
    later = await gpus.judge(device)
    assert (later.freedom, later.final) == (Freedom.UNKNOWN, False)
    gpus.show(cards(1, used=5 * MIB, utilization=0)[0])
    assert (await gpus.judge(device)).freedom is Freedom.FREE


async def test_how_busy_a_divided_gpu_is_nobody_knows(gpus: OneGpu) -> None:
    slices = (Slice("MIG-1", gi=1),)
    gpus.show(cards(1, mig=1, slices=slices, utilization=100)[0])
    for device in (gpus.device("part/GPU-1/1/MIG-1"), gpus.device()):
        assert (await gpus.judge(device)).freedom is Freedom.FREE


async def test_an_odd_answer_about_how_busy_a_gpu_is_keeps_nobody_from_it(gpus: OneGpu) -> None:
    gpus.show(cards(1, used=5 * MIB, errors={"nvmlDeviceGetUtilizationRates": UNKNOWN})[0])
    assert (await gpus.judge(gpus.device())).freedom is Freedom.FREE


async def test_a_slice_that_cannot_be_asked_leaves_its_whole_gpu_unknown(gpus: OneGpu) -> None:
    gpus.show(cards(1, mig=1, slices=(Slice("MIG-1", gi=1),))[0])
    whole = gpus.device(f"card/{uuid(0)}", "part/GPU-1/1/MIG-1", "part/GPU-1/2/MIG-gone")
    verdict = await gpus.judge(whole)
    assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)
    assert "MIG-gone" in verdict.reason


async def test_an_agent_that_merely_has_the_node_open_stands_in_for_an_unknown_pod_for_a_while(
    gpus: OneGpu,
) -> None:
    device = gpus.device()
    gpus.grant(device)
    lock = gpus.locks[device.name]
    gpus.locks[device.name] = replace(lock, pod=None)
    with gpus.process(pod=POD):
        assert (await gpus.judge(device)).freedom is Freedom.IN_USE
        gpus.clock.now += 61.0
        later = await gpus.judge(device)
        assert (later.freedom, "does not use it" in later.reason) == (Freedom.FREE, True)
        gpus.locks[device.name] = replace(lock, pod=None, started=False)
        assert (await gpus.judge(device)).freedom is Freedom.FREE
        gpus.locks[device.name] = replace(lock, pod=None, fence=2)
        assert (await gpus.judge(device)).freedom is Freedom.IN_USE, "another pod, another wait"


async def test_without_a_driver_or_without_anybody_to_ask_nothing_is_known(gpus: OneGpu) -> None:
    device = gpus.device()
    with (
        contextlib.closing(Lane("scan", deadline=30.0)) as scan,
        contextlib.closing(Lane("nvml", deadline=30.0)) as lane,
    ):
        root = gpus.node.root
        for look in (look_at(root, scan), look_at(root, scan, gpu_uses(lane, None))):
            verdict = judge_kernel((await look.scan([device], {}))[device.name])
            assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)


async def test_an_nvml_that_hangs_is_waited_for_a_while_and_is_unknown(
    gpus: OneGpu, nvml: Nvml
) -> None:
    gpus.show(cards(1, hangs={"nvmlDeviceGetComputeRunningProcesses_v3": 3.0})[0])
    with (
        contextlib.closing(Lane("scan", deadline=30.0)) as scan,
        contextlib.closing(Lane("nvml", deadline=30.0)) as lane,
    ):
        look = look_at(gpus.node.root, scan, gpu_uses(lane, nvml, patience=0.1))
        device = gpus.device()
        # That it is unknown is the proof: the answer for which it did not wait is "nobody".
        verdict = judge_kernel((await look.scan([device], {}))[device.name])
        lane.close(patience=20.0)
    assert (verdict.freedom, verdict.final) == (Freedom.UNKNOWN, True)


async def test_a_slice_is_asked_itself_and_its_gpu_is_asked_with_all_its_slices(
    gpus: OneGpu,
) -> None:
    one, two = gpus.device("part/GPU-1/1/MIG-1"), gpus.device("part/GPU-1/2/MIG-2")
    whole = gpus.device(f"card/{uuid(0)}", "part/GPU-1/1/MIG-1", "part/GPU-1/2/MIG-2")
    with gpus.process(pod=POD) as pid:
        slices = (Slice("MIG-1", gi=1, processes=(("compute", pid, GIB),)), Slice("MIG-2", gi=2))
        gpus.show(cards(1, mig=1, slices=slices)[0])
        freedoms = [(await gpus.judge(each)).freedom for each in (one, two, whole)]
    assert freedoms == [Freedom.IN_USE, Freedom.FREE, Freedom.IN_USE]


async def test_while_nvml_keeps_a_gpu_its_release_reads_no_process(gpus: OneGpu) -> None:
    """Memory may take a minute to come back, and /proc a second to be read."""
    device = gpus.device()
    await gpus.judge(device)
    gpus.grant(device)
    gpus.show(cards(1, used=GIB)[0])
    watch = gpus.watch()
    looked: list[int] = []
    with gpus.process(opens=False):
        for _ in range(5):
            facts = await known(watch, device, gpus.locks, enabled=(), to_free=True)
            assert judge_kernel(facts).freedom is Freedom.IN_USE
            assert gpus.look.last_scan is not None
            looked.append(gpus.look.last_scan.processes)
    assert looked == [0] * 5
    gpus.show(cards(1, used=5 * MIB)[0])
    with gpus.process(pod=POD) as pid:
        facts = await known(watch, device, gpus.locks, enabled=(), to_free=True)
        assert [each.process.pid for each in facts.holders or ()] == [pid]
    watch.forget(device.name)


async def test_a_holder_that_stops_using_a_gpu_and_lives_on_is_noticed_within_five_seconds(
    gpus: OneGpu,
) -> None:
    device = gpus.device()
    watch = gpus.watch()
    with gpus.process() as pid:
        gpus.show(cards(1, used=5 * MIB, processes=(("compute", pid, 0),))[0])
        assert (await known(watch, device, enabled=(), to_free=True)).holders
        gpus.show(cards(1, used=5 * MIB)[0])
        assert (await known(watch, device, enabled=(), to_free=True)).holders
        gpus.ages.shift(5.0)
        facts = await known(watch, device, enabled=(), to_free=True)
        assert judge_kernel(facts).freedom is Freedom.FREE
    watch.forget(device.name)


async def test_a_gpu_is_never_tried_by_opening_its_node(gpus: OneGpu) -> None:
    device = gpus.device()
    (gpus.node.root.proc / "devices").write_text("Character devices:\n136 vfio\n")
    assert await gpus.look.open(device) is OpenOutcome.UNAVAILABLE
    as_vfio = replace(device, kind=DeviceKind.VFIO)
    assert await gpus.look.open(as_vfio) is OpenOutcome.SUCCEEDED, (
        "this node could have been opened"
    )
