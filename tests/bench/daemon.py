"""The daemon from outside: how soon it is there, how soon it acts, and what it costs."""

import asyncio
import os
import signal
import subprocess
import time

from bench.crowd import crowd
from bench.figures import Figure
from bench.rig import CHIPS, TPU, Place, Rig, cpu_seconds, resident_mib, rig
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from holdfast.demo.books import Entry
from holdfast.demo.pods import Pod, PodSpec

_PROCESSES, _FILES = 500, 48
_CROWD = f"{_PROCESSES} processes with {_FILES} files each"
_SOON = {"minInterval": "50ms", "settle": "20ms"}


async def start(place: Place, *, n: int = 12) -> list[Figure]:
    """Measure from exec to registered, kubelet.sock made anew to registered, and memory."""
    starts: list[float] = []
    memory: list[float] = []
    async with rig(place) as made:
        for _ in range(n):
            await asyncio.to_thread(made.stop)
            made.forget_registration()
            began = made.start()
            starts.append((await made.until(made.registered, "it registered") - began) * 1000)
            await asyncio.sleep(2.0)
            memory.append(resident_mib(made.pid))
        again = [await _reregister(made) for _ in range(2 * n)]
    return [
        Figure(
            name="start_to_registered",
            samples=starts,
            budget={"p50": 300.0},
            note="from exec to eight healthy devices in kubelet's books, Python's start included",
        ),
        Figure(
            name="python_start",
            samples=[_python(place, "pass") for _ in range(n)],
            note="an empty program, for comparison",
        ),
        Figure(
            name="python_imports",
            samples=[_python(place, "import holdfast.cli, holdfast.app.daemon") for _ in range(n)],
            note="a program that imports what the daemon does",
        ),
        Figure(
            name="reregister",
            samples=again,
            budget={"p50": 50.0},
            note="from kubelet's start to eight healthy devices in its books",
        ),
        Figure(
            name="rss_mib",
            samples=memory,
            unit="MiB",
            budget={"p50": 50.0},
            note="VmRSS two seconds after it registered, TPUs only",
        ),
    ]


async def calls(place: Place, *, n: int = 100) -> list[Figure]:
    """Measure the gate on free devices, with its scan and its commit, and Allocate over gRPC."""
    gates: list[float] = []
    allocates: list[float] = []
    settings = {"kubelet": {"question": _SOON}, "reclaim": {"unseenGrace": "0s"}}
    with crowd(_PROCESSES, _FILES) as pids:
        async with rig(place, **settings) as made:
            for pid in pids:
                made.node.add_process(pid, "/system.slice/crowd.service")
            for _ in range(n):
                allocated, passed = await _allocate_and_start(made)
                allocates.append(allocated)
                gates.append(passed)
    return [
        Figure(
            name="prestart_free",
            samples=gates,
            budget={"p99": 100.0},
            note=f"the whole call for eight devices, with the scan of {_CROWD}",
        ),
        Figure(
            name="allocate_rpc",
            samples=allocates,
            note="the whole call for eight devices, gRPC included",
        ),
    ]


async def last_exit(place: Place, *, n: int = 15) -> list[Figure]:
    """Measure from the exit of a pod's last process, while RELEASING, to FREE on disk."""
    took: list[float] = []
    async with rig(place, kubelet={"question": _SOON}) as made:
        for _ in range(n):
            pod = await made.submit(1, runs_for=0.0, orphan=1)
            await made.until(lambda p=pod: p.stopped, "the pod is over")  # type: ignore[misc]
            await made.until(lambda: made.lock_states() == ["releasing"], "its lock is RELEASING")
            await asyncio.sleep(0.5)  # the holder is known by then, and nothing is going on
            (orphan,) = made.node.members(pod.uid)
            began = time.perf_counter()
            os.kill(orphan, signal.SIGKILL)
            took.append((await made.until(lambda: not made.lock_states(), "FREE") - began) * 1000)
            made.kubelet.delete(pod, force=True)
    return [
        Figure(
            name="exit_to_free",
            samples=took,
            budget={"p50": 50.0},
            note="from SIGKILL of the last holder; the simulated kernel's part of it is up to 10 ms",
        )
    ]


async def idle(place: Place, *, seconds: float = 30.0) -> list[Figure]:
    """Measure the processor time of a daemon that has nothing to do."""
    with crowd(_PROCESSES, _FILES) as pids:
        async with rig(place) as made:
            for pid in pids:
                made.node.add_process(pid, "/system.slice/crowd.service")
            await made.submit(CHIPS // 2)
            await made.until(lambda: made.lock_states() == ["held"] * (CHIPS // 2), "a pod holds")
            await asyncio.sleep(5.0)
            before = cpu_seconds(made.pid)
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            used = cpu_seconds(made.pid) - before
            share = 100 * used / (time.perf_counter() - began)
    return [
        Figure(
            name="idle_cpu_percent",
            samples=[share],
            unit="%",
            budget={"p50": 0.2},
            note=f"of one core over {seconds:g} s; {_CROWD}, and a pod that has half of the chips",
        )
    ]


async def _reregister(made: Rig) -> float:
    await made.kubelet.stop()
    made.forget_registration()
    await asyncio.sleep(0.3)  # the daemon has noticed, and waits for a new kubelet
    began = time.perf_counter()
    await made.kubelet.start()
    made.forget_registration()
    return (await made.until(made.registered, "it registered again") - began) * 1000


async def _allocate_and_start(made: Rig) -> tuple[float, float]:
    """Be kubelet for one pod with all chips; return how long each call took, in milliseconds."""
    stub, books = _stub(made), made.kubelet.books
    ids = sorted(books.endpoints[TPU].devices)
    request = api.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    pod = Pod(spec=PodSpec(name="bench", containers=()))
    made.kubelet.pods[pod.uid] = pod
    began = time.perf_counter()
    await stub.Allocate(request)
    allocated = time.perf_counter() - began
    books.entries.append(
        Entry(pod=pod.uid, container="main", resource=TPU, ids=tuple(ids), answer=b"")
    )
    books.write()
    began = time.perf_counter()
    await stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids))
    passed = time.perf_counter() - began
    del made.kubelet.pods[pod.uid]
    books.drop(())
    books.write()
    await made.until(lambda: not made.lock_states(), "the chips are free again")
    return allocated * 1000, passed * 1000


def _stub(made: Rig) -> rpc.DevicePluginStub:
    stub = made.kubelet.books.endpoints[TPU].stub
    if stub is None:
        raise RuntimeError("kubelet has no plugin")
    return stub


def _python(place: Place, program: str) -> float:
    began = time.perf_counter()
    subprocess.run([place.python, "-c", program], check=True)
    return (time.perf_counter() - began) * 1000
