"""The main job as a story, told while it happens, with the real daemon on a simulated node."""

import json
from functools import partial
from pathlib import Path

from simulated.demo import Demo, play
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.stage import running

_TPU = "google.com/tpu"
_CHIPS = 4
_LONG = 7 * 86400.0


def main(*, keep: bool = False, records: Path | None = None) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running.

    The records of its history are kept in *records*, as JSON.
    """
    return play(partial(_tell, keep=keep, records=records))


async def _tell(folder: Path, *, keep: bool, records: Path | None) -> None:
    node = SimulatedNode(folder / "node", chips=_CHIPS)
    async with running(Demo(folder, node, resource=_TPU)) as stage:
        stage.start()
        await _appear(stage)
        orphan = await _leave_an_orphan(stage)
        await stage.crash(devices=_CHIPS, which="chip")
        second, later = await stage.wait_for_orphan(
            _pod("pod-b", chips=4, runs_for=2.0, orphan=1), orphan, asks="all four"
        )
        stage.say(
            f"Pod B starts {later:.0f} ms later, on four chips that the kernel says are free."
        )
        await _withhold_and_return(stage, second)
        if records is not None:
            rows = await stage.asked("history", limit=200)
            records.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        stage.say("The end. Every step happened.")
        if keep:
            chip = await leave_one_waiting(stage)
            looks = ("holdfast locks", "holdfast holders", f"holdfast why {chip}")
            await stage.stay(*looks, f"holdfast release {chip}")


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


async def leave_one_waiting(stage: Demo) -> str:
    """Have a pod wait for what another left on a chip until a person ends that; return the chip."""
    reclaim = {**stage.settings["reclaim"], "mode": "observe"}
    stage.configure(withholdAfter="1h", reclaim=reclaim)
    await stage.until(lambda: "configuration reloaded" in stage.log, "reclaim.mode: observe")
    former = await stage.kubelet.submit(_pod("pod-c", chips=1, runs_for=1.0, orphan=1))
    await stage.until_running(former)
    locked: list[str] = []

    async def is_locked() -> bool:
        locked[:] = await stage.locks()
        return len(locked) == 1

    await stage.until(is_locked, "pod C's chip to be locked")
    (chip,) = locked
    await stage.until(lambda: former.stopped, "pod C to be over")
    await stage.until(lambda: len(stage.node.members(former.uid)) == 1, "it to leave a process")
    second = await stage.kubelet.submit(_pod("pod-d", chips=4, runs_for=_LONG, orphan=0))
    await stage.until(lambda: " is still open in " in second.waiting, "pod D to be told why")
    stage.say(
        f"For you to look at: pod C has left a process on chip {chip}, and pod D waits. With "
        "reclaim.mode: observe, as it is now, a person ends what is left."
    )
    return chip


def _pod(name: str, *, chips: int, runs_for: float, orphan: int) -> PodSpec:
    workload = Workload(runs_for=runs_for, orphan=orphan)
    return PodSpec(name=name, containers=(Container(limits={_TPU: chips}, workload=workload),))
