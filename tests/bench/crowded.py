"""The daemon on a crowded node: what a start, a scan and doing nothing cost there."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bench.crowd import crowd
from bench.figures import Figure, Floor
from bench.floors import bare_plugin, walks
from bench.rig import CHIPS, SOON, TPU, Place, Rig, cpu_seconds, rig
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.use.holders import Scan, ScanTarget
from holdfast.runtime.lane import Lane
from simulated.pods import Container, PodSpec, Workload

_CROWD = "/system.slice/crowd.service"
_TICK = 0.001
_SETTLED = 25.0
"""Seconds after which what came before is done: kubelet is asked for 20 s about a new pod."""
_IDLE = 60.0
"""Seconds for which idling is watched: the rarest beat of the daemon comes once in them."""
_WAIT = 30.0


class Crowd(Struct, frozen=True, kw_only=True):
    """How many processes are on the node, and how many files each has open."""

    processes: int
    files: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.processes} processes with {self.files} files each"


BUSY = Crowd(processes=500, files=48)
HUGE = Crowd(processes=5000, files=50)


async def gate(place: Place) -> list[Figure]:
    """Measure the gate on free devices, with its scan and its commit, and Allocate over gRPC."""
    allocates, gates, walk = await _calls(place, BUSY, n=40)
    async with bare_plugin(place) as bare:
        answers = [await bare.allocate() for _ in range(100)]
    note = "the whole call for eight devices"
    return [
        Figure(
            name="prestart_free",
            samples=gates,
            reach=50.0,
            floor=walk,
            note=f"{note}, with the scan of {BUSY}",
        ),
        Figure(
            name="allocate_rpc",
            samples=allocates,
            floor=Floor(what="the call to a bare grpc.aio plugin", samples=answers),
            note=f"{note}, gRPC included",
        ),
    ]


async def gate_huge(place: Place) -> list[Figure]:
    """Measure the gate on free devices on a huge node."""
    _, gates, walk = await _calls(place, HUGE, n=6)
    return [
        Figure(
            name="prestart_free_5000",
            samples=gates,
            reach=350.0,
            floor=walk,
            note=f"the whole call for eight devices, with the scan of {HUGE}",
        )
    ]


async def scan(_place: Place, *, n: int = 6) -> list[Figure]:
    """Measure a scan of everything on its lane, and how long the loop is kept waiting meanwhile."""
    took: list[float] = []
    late: list[float] = []
    holders = HolderScan(HostRoot.under())
    # Nobody has it open: what is measured is the search.
    target = ScanTarget(
        device=DeviceName(ResourceName(TPU), DeviceId("none")),
        rdevs=frozenset({0xFFFFF}),
        addresses=frozenset(),
    )
    lane = Lane("scan", deadline=60.0)
    with crowd(HUGE.processes, HUGE.files):
        walk = walks(Path("/proc"))
        for _ in range(n):
            watch = asyncio.create_task(_lateness())
            seen: Scan = await lane.run(lambda: holders.scan([target]))
            watch.cancel()
            took.append(seen.seconds * 1000)
            late += await watch
    lane.close(patience=5.0)
    return [
        Figure(name="scan_5000", samples=took, floor=walk, note=f"every process once, {HUGE}"),
        Figure(
            name="scan_5000_loop_late",
            samples=late,
            reach=20.0,
            judged="p99",
            floor=Floor(what="the same while nothing runs", samples=await _lateness_for(1.0)),
            note="how late the event loop turns while the scan runs",
        ),
    ]


async def idle(place: Place) -> list[Figure]:
    """Measure the processor time of a daemon that has nothing to do, with few devices and many.

    Both at one time: together they take a hundredth of one core.
    """
    async with asyncio.TaskGroup() as group:
        few = group.create_task(_idle(_part(place, "few"), BUSY, "idle_cpu_percent"))
        many = group.create_task(_idle_many(_part(place, "many")))
    return [few.result(), *many.result()]


def _part(place: Place, name: str) -> Place:
    state = place.state / name
    state.mkdir()
    return replace(place, state=state)


async def idle_huge(place: Place) -> list[Figure]:
    """Measure the same on a huge node, and at the same time a daemon at whose gate a start waits."""
    async with asyncio.TaskGroup() as group:
        huge = group.create_task(_idle(_part(place, "huge"), HUGE, "idle_cpu_percent_5000"))
        gate = group.create_task(_waiting(_part(place, "gate")))
    return [huge.result(), gate.result()]


async def _waiting(place: Place) -> Figure:
    """Measure the processor time of a daemon at whose gate a start waits for its own pod."""
    async with _crowded(place, BUSY, reclaim={"mode": "observe"}) as made:
        work = Workload(runs_for=0.2, orphan=1)
        container = Container(limits={TPU: 1}, workload=work)
        pod = await made.kubelet.submit(
            PodSpec(name="bench", containers=(container,), restart="Always")
        )
        await made.until(lambda: pod.starts == 1, "it has started once")
        share = await _share(
            place,
            made,
            name="gate_wait_cpu_percent",
            reach=1.0,
            what=f"{BUSY}, and one start that waits",
            seconds=_WAIT,
        )
        starts = pod.starts
    if starts > 1:
        raise RuntimeError("the start that was to wait has passed")
    return share


async def _idle_many(place: Place, *, chips: int = 256) -> list[Figure]:
    """Measure it on a node with hundreds of devices, each of which some pod has."""
    async with _crowded(place, BUSY, chips=chips) as made:
        around = [each.parent for each in made.node.root.proc.glob("*/cgroup") if _in_crowd(each)]
        ids = sorted(made.kubelet.devices.endpoints[TPU].devices)
        for id_, process in zip(ids, around, strict=False):
            pod = made.kubelet.count(TPU, id_)
            made.node.add_pod(pod.uid)
            made.node.enter(pod.uid, "main", int(process.name))
        await made.until(lambda: made.lock_states() == ["held"] * chips, "pods have all")
        share = await _share(
            place,
            made,
            name=f"idle_cpu_percent_{chips}",
            reach=0.4,
            what=f"{BUSY}, and {chips} devices, each of which a pod has",
        )
        stall = await made.metric("holdfast_event_loop_stall_seconds")
    return [
        share,
        Figure(
            name=f"loop_stall_{chips}",
            samples=[stall * 1000],
            reach=20.0,
            floor=Floor(
                what="the latest turn of an idle loop in a second",
                samples=[max(await _lateness_for(1.0))],
            ),
            note="the longest turn of the daemon's loop in the last minute or two of that",
        ),
    ]


def _in_crowd(cgroup: Path) -> bool:
    return _CROWD in cgroup.read_text()


async def _idle(place: Place, around: Crowd, name: str) -> Figure:
    async with _crowded(place, around) as made:
        await made.submit(CHIPS // 2)
        await made.until(lambda: made.lock_states() == ["held"] * (CHIPS // 2), "a pod holds")
        what = f"{around}, and a pod that has half of the chips"
        return await _share(place, made, name=name, reach=0.15, what=what)


async def _share(
    place: Place, made: Rig, *, name: str, reach: float, what: str, seconds: float = _IDLE
) -> Figure:
    """Measure the daemon's processor time over a while, beside that of a bare plugin."""
    async with bare_plugin(place) as bare:
        await asyncio.sleep(_SETTLED)
        processes = (made.process.pid, bare.pid)
        before = [cpu_seconds(pid) for pid in processes]
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        daemon, floor = (
            100 * (cpu_seconds(pid) - was) / took
            for pid, was in zip(processes, before, strict=True)
        )
    return Figure(
        name=name,
        samples=[daemon],
        unit="%",
        reach=reach,
        floor=Floor(what="a bare grpc.aio plugin at the same time", samples=[floor]),
        note=f"of one core over {seconds:g} s; {what}",
    )


async def _calls(place: Place, around: Crowd, *, n: int) -> tuple[list[float], list[float], Floor]:
    gates: list[float] = []
    allocates: list[float] = []
    settings: dict[str, Any] = {"kubelet": {"question": SOON}, "reclaim": {"unseenGrace": "0s"}}
    async with _crowded(place, around, **settings) as made:
        walk = walks(made.node.root.proc)
        for _ in range(n):
            allocated, passed = await _allocate_and_start(made)
            allocates.append(allocated)
            gates.append(passed)
    return allocates, gates, walk


@contextlib.asynccontextmanager
async def _crowded(
    place: Place, around: Crowd, *, chips: int = CHIPS, **settings: Any
) -> AsyncIterator[Rig]:
    """Yield a rig on whose node *around* is."""
    with crowd(around.processes, around.files) as pids:
        async with rig(place, chips=chips, **settings) as made:
            for pid in pids:
                made.node.add_process(pid, _CROWD)
            yield made


async def _lateness() -> list[float]:
    """Return, once cancelled, by how many milliseconds each turn of the loop was late."""
    late: list[float] = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_TICK)
            late.append((time.perf_counter() - began - _TICK) * 1000)
    return late


async def _lateness_for(seconds: float) -> list[float]:
    watch = asyncio.create_task(_lateness())
    await asyncio.sleep(seconds)
    watch.cancel()
    return await watch


async def _allocate_and_start(made: Rig) -> tuple[float, float]:
    """Be kubelet for one pod with all chips; return how long each call took, in milliseconds."""
    kubelet = made.kubelet
    plugin = kubelet.devices.plugin(TPU)
    ids = sorted(kubelet.devices.endpoints[TPU].devices)
    began = time.perf_counter()
    await made.allocate(*ids)
    allocated = time.perf_counter() - began
    kubelet.count(TPU, *ids)
    began = time.perf_counter()
    await plugin.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids))
    passed = time.perf_counter() - began
    kubelet.forget()
    kubelet.devices.write()
    await made.until(lambda: not made.lock_states(), "the chips are free again")
    return allocated * 1000, passed * 1000
