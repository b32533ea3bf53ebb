"""The daemon from outside: how soon it is there, and how soon it acts."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from bench.figures import Figure, Floor
from bench.floors import DAEMON, bare_plugin, interpreter, run, synced_file, timed
from bench.rig import SOON, TPU, Place, Rig, cpu_seconds, peak_mib, resident_mib, rig
from simulated.pods import Pod

_POD_PROCESSES = 20
_SETTLED = 2.0
"""Seconds after a registration, until what the start has needed is given back."""
_SOON = 0.3
"""Seconds within which all that follows an Allocate is done."""
ALLOCATED = (8, 64, 512)
_BARE_MEMORY = "the memory of a bare grpc.aio plugin"
_HOLD = "import os, sys, time; os.open(sys.argv[1], 258); print(flush=True); time.sleep(1e6)"


async def start(place: Place, *, n: int = 12) -> list[Figure]:
    """Measure from exec to registered, the CPU of it, kubelet.sock made anew, and memory."""
    starts = _Starts()
    async with rig(place) as made:
        for _ in range(n):
            await starts.once(made)
        again = [await _reregister(made) for _ in range(2 * n)]
    imports = interpreter(place, DAEMON, "an interpreter that imports what the daemon does", n=n)
    nothing = interpreter(place, "pass", "an interpreter with an empty program", n=n)
    registers, memory = await _bare(place, n)
    floor = Floor(what=imports.what, samples=imports.wall)
    return [
        Figure(
            name="start_to_registered",
            samples=starts.took,
            reach=250.0,
            floor=floor,
            note="from exec to eight healthy devices that kubelet would grant, Python's start included",
        ),
        Figure(
            name="start_cpu",
            samples=starts.cpu,
            reach=300.0,
            floor=Floor(what=f"{imports.what}, CPU time", samples=imports.cpu),
            note="CPU time until then, all threads",
        ),
        Figure(name="python_start", samples=nothing.wall, note=nothing.what),
        Figure(
            name="python_imports",
            samples=imports.wall,
            floor=Floor(what=nothing.what, samples=nothing.wall),
            note=imports.what,
        ),
        Figure(
            name="reregister",
            samples=again,
            reach=10.0,
            floor=registers,
            note="from kubelet's start to eight healthy devices that it would grant",
        ),
        Figure(
            name="rss_mib_tpu",
            samples=starts.memory,
            unit="MiB",
            reach=48.0,
            floor=memory,
            note="VmRSS two seconds after it registered; the node has no GPUs",
        ),
    ]


async def start_with_gpus(place: Place, *, n: int = 6, gpus: int = 8) -> list[Figure]:
    """Measure from exec to registered, and memory, with GPUs and TPUs on; NVML is a stub."""
    starts = _Starts()
    async with rig(place, gpus=gpus) as made:
        for _ in range(n):
            await starts.once(made)
    imports = interpreter(place, DAEMON, "an interpreter that imports what the daemon does", n=n)
    _, memory = await _bare(place, n)
    return [
        Figure(
            name="start_to_registered_8_gpus",
            samples=starts.took,
            reach=250.0,
            floor=Floor(what=imports.what, samples=imports.wall),
            note=(
                "from exec to eight healthy GPUs and eight healthy chips that kubelet would grant, "
                "Python's start included; a real NVML takes longer to start than the stub"
            ),
        ),
        Figure(
            name="rss_mib",
            samples=starts.memory,
            unit="MiB",
            reach=52.0,
            floor=memory,
            note="VmRSS two seconds after it registered, GPUs and TPUs on; NVML is the stub",
        ),
    ]


async def many_devices(place: Place, *, chips: int = 512) -> list[Figure]:
    """Measure the most memory that a start with hundreds of devices takes."""
    peaks: list[float] = []
    async with rig(place, chips=chips) as made:
        await asyncio.sleep(_SETTLED)
        peaks.append(peak_mib(made.process.pid))
    async with bare_plugin(place, devices=chips) as bare:
        floor = Floor(what=_BARE_MEMORY, samples=[peak_mib(bare.pid)])
    return [
        Figure(
            name=f"rss_mib_{chips}_peak",
            samples=peaks,
            unit="MiB",
            reach=64.0,
            floor=floor,
            note=f"VmHWM two seconds after it registered {chips} devices",
        )
    ]


async def allocate_cpu(place: Place, *, n: int = 64) -> list[Figure]:
    """Measure the CPU of an Allocate over gRPC, and of all that follows, with few devices and many.

    One device after the other is given, without a pause, and no pod comes for it.
    """
    async with bare_plugin(place) as bare:
        before = cpu_seconds(bare.pid)
        for _ in range(n):
            await bare.allocate()
        answered = (cpu_seconds(bare.pid) - before) * 1000 / n
    floor = Floor(what="the call to a bare grpc.aio plugin, CPU time", samples=[answered])
    found = []
    for devices in ALLOCATED:
        async with rig(place, chips=devices) as made:
            await asyncio.sleep(_SETTLED)
            ids = sorted(made.kubelet.devices.endpoints[TPU].devices)[:n]
            before = cpu_seconds(made.process.pid)
            for id_ in ids:
                await made.allocate(id_)
            await asyncio.sleep(_SOON)
            used = (cpu_seconds(made.process.pid) - before) * 1000 / len(ids)
        note = f"CPU time of one of {len(ids)} calls in a row, {devices} devices, with what follows"
        name = f"allocate_cpu_{devices}"
        found.append(Figure(name=name, samples=[used], floor=floor, note=note))
    return found


async def command_line(place: Place, *, n: int = 20) -> list[Figure]:
    """Measure a command of the command line that asks nobody."""
    runs = [run(place, "-m", "holdfast", "--help") for _ in range(n)]
    nothing = interpreter(place, "pass", "an interpreter with an empty program", n=n)
    return [
        Figure(
            name="cli_help",
            samples=[took for took, _ in runs],
            reach=120.0,
            floor=Floor(what=nothing.what, samples=nothing.wall),
            note="holdfast --help, from exec to exit",
        )
    ]


async def _left_behind(made: Rig) -> tuple[Pod, int]:
    """Return a pod that is over, whose lock is RELEASING, and the one process that it left."""
    pod = await made.submit(1, runs_for=0.0, orphan=1)
    await made.until(lambda: pod.stopped, "the pod is over")
    await made.until(lambda: made.lock_states() == ["releasing"], "its lock is RELEASING")
    (orphan,) = made.node.members(pod.uid)
    return pod, orphan


async def last_exit(place: Place, *, n: int = 10) -> list[Figure]:
    """Measure from the exit of a pod's last process, while RELEASING, to FREE on disk."""
    took: list[float] = []
    async with rig(place, kubelet={"question": SOON}) as made:
        for _ in range(n):
            pod, orphan = await _left_behind(made)
            await asyncio.sleep(0.5)  # the holder is known by then, and nothing is going on
            began = time.perf_counter()
            os.kill(orphan, signal.SIGKILL)
            took.append((await made.until(lambda: not made.lock_states(), "FREE") - began) * 1000)
            made.kubelet.delete(pod, force=True)
    return [
        Figure(
            name="exit_to_free",
            samples=took,
            reach=15.0,
            floor=_sync_floor(place),
            note="from SIGKILL of the last holder; the simulated kernel's part of it is up to 10 ms",
        )
    ]


async def pod_kill(place: Place, *, n: int = 10) -> list[Figure]:
    """Measure from SIGKILL of a pod's twenty processes, while RELEASING, to FREE on disk."""
    took: list[float] = []
    async with rig(place, kubelet={"question": SOON}) as made:
        for _ in range(n):
            pod, orphan = await _left_behind(made)
            others = await asyncio.gather(
                *(_join(made, pod, orphan) for _ in range(_POD_PROCESSES - 1))
            )
            await asyncio.sleep(0.5)  # nothing is going on any more
            began = time.perf_counter()
            for pid in (orphan, *(each.pid for each in others)):
                os.kill(pid, signal.SIGKILL)
            took.append((await made.until(lambda: not made.lock_states(), "FREE") - began) * 1000)
            made.kubelet.delete(pod, force=True)
            for each in others:
                await each.wait()
    return [
        Figure(
            name="pod_kill_to_free",
            samples=took,
            floor=_sync_floor(place),
            note=(
                f"from SIGKILL of the {_POD_PROCESSES} processes that a finished pod left, all of "
                "which have the chip open"
            ),
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


async def _join(made: Rig, pod: Pod, holder: int) -> asyncio.subprocess.Process:
    """Start one more process in the pod's cgroup that has open what *holder* has."""
    links = (str(link.readlink()) for link in Path(f"/proc/{holder}/fd").iterdir())
    node = next(path for path in links if path.startswith("/dev/pts/"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _HOLD, node, stdout=asyncio.subprocess.PIPE
    )
    if process.stdout is not None:
        await process.stdout.readline()
    made.node.enter(pod.uid, "main", process.pid)
    return process


class _Starts:
    """What was seen of some starts: milliseconds and MiB."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.cpu: list[float] = []
        self.memory: list[float] = []

    async def once(self, made: Rig) -> None:
        """Start the daemon anew."""
        await made.stop()
        made.forget_registration()
        began = made.start()
        self.took.append((await made.until(made.registered, "it registered") - began) * 1000)
        self.cpu.append(cpu_seconds(made.process.pid) * 1000)
        await asyncio.sleep(_SETTLED)
        self.memory.append(resident_mib(made.process.pid))


async def _bare(place: Place, n: int) -> tuple[Floor, Floor]:
    """Return how long a bare plugin takes to register, and its memory."""
    async with bare_plugin(place) as bare:
        took = [await bare.register() for _ in range(n)]
        memory = resident_mib(bare.pid)
    return (
        Floor(what="a bare grpc.aio plugin, told to register", samples=took),
        Floor(what=_BARE_MEMORY, samples=[memory]),
    )


def _sync_floor(place: Place, n: int = 50) -> Floor:
    with synced_file(place) as sync:
        return Floor(what=sync.what, samples=[timed(sync) for _ in range(n)])
