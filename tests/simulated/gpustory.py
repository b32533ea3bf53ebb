"""The main job on GPUs as a story, with the real daemon and the real pynvml on a simulated node."""

import asyncio
import time
from functools import partial
from pathlib import Path

from simulated import nvml
from simulated.demo import Demo, StoryError, play
from simulated.gpunode import GpuNode
from simulated.pods import Container, PodSpec, Workload
from simulated.stage import running

_GPU = "nvidia.com/gpu"
_GPUS = 8
_LATE = 2.0
_FALLEN = 3
# Where a user waits for half a minute, the demo waits for a moment.
_SETTINGS = {
    "tpu": {"enabled": False},
    "gpu": {"look": "500ms", "rescan": "1s", "healthBeat": "500ms"},
}


def main(*, keep: bool = False) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running.

    Return 3, with what is missing on the terminal, where the stand-in for NVIDIA's library cannot
    be built.
    """
    return play(
        partial(_tell, keep=keep),
        instead="The story of TPUs needs nothing of the kind: `make demo` without ARGS=--gpus.",
    )


async def _tell(folder: Path, *, keep: bool) -> None:
    library = await asyncio.to_thread(nvml.build, folder)
    node = GpuNode(folder / "node", library=library, gpus=_GPUS)
    stage = Demo(
        folder,
        node,
        resource=_GPU,
        toolkit=node.visible,
        changes=_SETTINGS,
        environment={nvml.CONTROL: str(node.control)},
    )
    async with running(stage):
        stage.start()
        await _appear(stage, node)
        orphan = await _leave_an_orphan(stage, node)
        await stage.crash(devices=_GPUS, which="GPUs")
        await _wait_and_start(stage, orphan)
        await _lose_one_and_get_it_back(stage, node)
        await stage.tell_history()
        stage.say("The end. Every step happened.")
        if keep:
            await stage.stay()


async def _appear(stage: Demo, node: GpuNode) -> None:
    stage.say(
        "A node for eight H100s, without a driver; kubelet runs, and the holdfast daemon starts."
    )
    began = time.monotonic()
    await stage.until((stage.state / "control.sock").exists, "the daemon to be up")
    await asyncio.sleep(max(0.0, _LATE - (time.monotonic() - began)))
    if stage.offered():
        raise StoryError("GPUs were offered without a driver")
    node.load_driver()
    stage.say(f"NVIDIA's driver appears, {time.monotonic() - began:.1f} s after the daemon.")
    await stage.until(lambda: stage.offered() == _GPUS, "kubelet to have eight healthy GPUs")
    stage.say(f"The daemon has found it and registered {_GPU}: eight GPUs appear, all healthy.")


async def _leave_an_orphan(stage: Demo, node: GpuNode) -> int:
    pod = await stage.kubelet.submit(_pod("pod-a", gpus=2, runs_for=1.0, orphan=1))
    await stage.until_running(pod)
    held = sorted(node.uuids.index(uuid) for uuid in await stage.locks())
    stage.say(
        f"Pod A asked for two GPUs, got {' and '.join(f'GPU {index}' for index in held)}, and "
        "its program runs."
    )
    await stage.until(lambda: pod.stopped, "pod A to be over")
    await stage.until(lambda: len(node.members(pod.uid)) == 1, "pod A to leave one process behind")
    (orphan,) = node.members(pod.uid)
    busy = next(index for index in range(_GPUS) if orphan in node.users(index))
    stage.say(
        f"Pod A is over for kubelet, but a process it left behind (pid {orphan}) still computes: "
        f"NVML lists it on GPU {busy}, and it has /dev/nvidia{busy} open. Any other plugin would "
        "grant it now."
    )
    return orphan


async def _wait_and_start(stage: Demo, orphan: int) -> None:
    spec = _pod("pod-b", gpus=_GPUS, runs_for=2.0)
    pod, later = await stage.wait_for_orphan(spec, orphan, asks="all eight")
    stage.say(
        f"Pod B starts {later:.0f} ms later, on eight GPUs that nobody uses, by NVML's word and "
        "the kernel's."
    )
    await stage.until(lambda: pod.stopped, "pod B to be over")

    async def all_free() -> bool:
        return not await stage.locks()

    await stage.until(all_free, "pod B's GPUs to be free")


async def _lose_one_and_get_it_back(stage: Demo, node: GpuNode) -> None:
    began = time.monotonic()
    node.fall_off(_FALLEN)
    await stage.until(lambda: stage.offered() == _GPUS - 1, "the GPU that fell off to be Unhealthy")
    took = (time.monotonic() - began) * 1000
    stage.say(f"GPU {_FALLEN} falls off the bus, Xid 79; kubelet knows {took:.0f} ms later:")
    stage.add(await _reason(stage, node.uuids[_FALLEN]))
    pod = await stage.kubelet.submit(_pod("pod-c", gpus=_GPUS - 1, runs_for=2.0))
    await stage.until_running(pod)
    if node.uuids[_FALLEN] in await stage.locks():
        raise StoryError("pod C was given the GPU that fell off")
    stage.say("Pod C asks for seven, and runs on the seven others.")
    await stage.until(lambda: pod.stopped, "pod C to be over")
    node.reset(_FALLEN)
    stage.say(f"GPU {_FALLEN} is reset, and answers again.")
    await stage.until(lambda: stage.offered() == _GPUS, "all eight to be healthy again")
    stage.say("The daemon has seen that reset: all eight are offered again.")


async def _reason(stage: Demo, uuid: str) -> str:
    rows = await stage.asked("devices") or ()
    return "; ".join(why for row in rows if row["id"] == uuid for why in row["reasons"])


def _pod(name: str, *, gpus: int, runs_for: float, orphan: int = 0) -> PodSpec:
    workload = Workload(runs_for=runs_for, orphan=orphan)
    return PodSpec(name=name, containers=(Container(limits={_GPU: gpus}, workload=workload),))
