"""The daemon from outside: how soon it is there, and how soon it acts."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure
from bench.rig import SOON, Place, Rig, resident_mib, rig
from simulated.pods import Pod

_POD_PROCESSES = 20
_HOLD = "import os, sys, time; os.open(sys.argv[1], 258); print(flush=True); time.sleep(1e6)"


async def start(place: Place, *, n: int = 12) -> list[Figure]:
    """Measure from exec to registered, kubelet.sock made anew to registered, and memory."""
    starts: list[float] = []
    memory: list[float] = []
    async with rig(place) as made:
        for _ in range(n):
            await made.stop()
            made.forget_registration()
            began = made.start()
            starts.append((await made.until(made.registered, "it registered") - began) * 1000)
            await asyncio.sleep(2.0)
            memory.append(resident_mib(made.process.pid))
        again = [await _reregister(made) for _ in range(2 * n)]
    return [
        Figure(
            name="start_to_registered",
            samples=starts,
            budget={"p50": 300.0},
            note="from exec to eight healthy devices in kubelet's checkpoint, Python's start included",
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
            note="from kubelet's start to eight healthy devices in its checkpoint",
        ),
        Figure(
            name="rss_mib_tpu",
            samples=memory,
            unit="MiB",
            budget={"p50": 50.0},
            note="VmRSS two seconds after it registered; the node has no GPUs",
        ),
    ]


async def last_exit(place: Place, *, n: int = 15) -> list[Figure]:
    """Measure from the exit of a pod's last process, while RELEASING, to FREE on disk."""
    took: list[float] = []
    async with rig(place, kubelet={"question": SOON}) as made:
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


async def pod_kill(place: Place, *, n: int = 15) -> list[Figure]:
    """Measure from SIGKILL of a pod's twenty processes, while RELEASING, to FREE on disk."""
    took: list[float] = []
    async with rig(place, kubelet={"question": SOON}) as made:
        for _ in range(n):
            pod = await made.submit(1, runs_for=0.0, orphan=1)
            await made.until(lambda p=pod: p.stopped, "the pod is over")  # type: ignore[misc]
            await made.until(lambda: made.lock_states() == ["releasing"], "its lock is RELEASING")
            (orphan,) = made.node.members(pod.uid)
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


def _python(place: Place, program: str) -> float:
    began = time.perf_counter()
    subprocess.run([place.python, "-c", program], check=True)
    return (time.perf_counter() - began) * 1000
