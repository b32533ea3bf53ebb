"""The main job as a story, told while it happens, with the real daemon on a simulated node."""

import time
from functools import partial
from pathlib import Path

from simulated.demo import Demo, StoryError, play, short
from simulated.node import SimulatedNode
from simulated.pods import Container, Phase, Pod, PodSpec, Workload
from simulated.stage import running

_TPU = "google.com/tpu"
_CHIPS = 4


def main(*, keep: bool = False) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running."""
    return play(partial(_tell, keep=keep))


async def _tell(folder: Path, *, keep: bool) -> None:
    node = SimulatedNode(folder / "node", chips=_CHIPS)
    async with running(Demo(folder, node, resource=_TPU)) as stage:
        stage.start()
        await _appear(stage)
        orphan = await _leave_an_orphan(stage)
        await _crash(stage)
        second = await _wait_and_start(stage, orphan)
        await _withhold_and_return(stage, second)
        stage.say("The end. Every step happened.")
        if keep:
            await stage.stay()


async def _appear(stage: Demo) -> None:
    stage.say("A node with four TPU v5e chips; kubelet runs, and the holdfast daemon starts.")
    await stage.until(lambda: stage.offered() == _CHIPS, "kubelet to have four healthy chips")
    stage.say(f"The daemon has registered {_TPU}: four chips appear, all healthy.")


async def _leave_an_orphan(stage: Demo) -> int:
    pod = await stage.kubelet.submit(_pod("pod-a", chips=2, runs_for=1.0, orphan=1))
    await stage.until_running(pod)
    held = sorted(await stage.locks())
    stage.say(f"Pod A asked for two chips, got {' and '.join(held)}, and its program runs.")
    await stage.until(lambda: pod.stopped, "pod A to be over")
    await stage.until(
        lambda: len(stage.node.members(pod.uid)) == 1, "pod A to leave one process behind"
    )
    members = stage.node.members(pod.uid)
    stage.say(
        f"Pod A is over for kubelet, but a process it left behind (pid {members[0]}) still holds "
        "a chip. Any other plugin would grant it now."
    )
    return members[0]


async def _crash(stage: Demo) -> None:
    stage.kill()
    stage.say("The daemon is killed with SIGKILL, and started again.")
    stage.start()
    await stage.until(lambda: stage.offered() == _CHIPS, "the daemon to register again")

    async def remembered() -> bool:
        return "releasing" in (await stage.locks()).values()

    await stage.until(remembered, "the ledger to have pod A's lock")
    stage.say("It is back, and its ledger still knows which chip pod A is not done with.")


async def _wait_and_start(stage: Demo, orphan: int) -> Pod:
    pod = await stage.kubelet.submit(_pod("pod-b", chips=4, runs_for=2.0, orphan=1))
    if pod.phase is Phase.FAILED:
        raise StoryError(f"pod B was refused: {pod.message}")
    stage.say("Pod B asks for all four. It is admitted at once, and waits at the gate.")
    await stage.until(lambda: f"pid {orphan} " in pod.waiting, "pod B to be told whom it waits for")
    stage.say(f"Pod B is told: {short(pod.waiting)}")
    await stage.until(lambda: not stage.node.has(orphan), "the orphan to be ended")
    ended = time.monotonic()
    stage.say(
        "Kubelet and the runtime have let go of pod A for long enough: the orphan is ended "
        "(SIGTERM, which it ignored, then SIGKILL)."
    )
    await stage.until_running(pod)
    later = (time.monotonic() - ended) * 1000
    stage.say(f"Pod B starts {later:.0f} ms later, on four chips that the kernel says are free.")
    return pod


async def _withhold_and_return(stage: Demo, pod: Pod) -> None:
    await stage.until(lambda: pod.stopped, "pod B to be over")
    members = stage.node.members(pod.uid)
    stage.say(f"Pod B is over, and left pid {members[0]} on a chip. Nobody waits for it this time.")
    await stage.until(lambda: stage.offered() == 0, "pod B's chips to leave the offer")
    stage.say(
        "They have not come free in time, so they leave the offer, all four: while a process of "
        "pod B lives, it could open any of them again."
    )
    await stage.until(lambda: stage.offered() == _CHIPS, "the chips to be offered again")
    stage.say("The holder is gone and the kernel agrees: all four are offered again.")
    await stage.tell_history()


def _pod(name: str, *, chips: int, runs_for: float, orphan: int) -> PodSpec:
    workload = Workload(runs_for=runs_for, orphan=orphan)
    return PodSpec(name=name, containers=(Container(limits={_TPU: chips}, workload=workload),))
