"""Dynamic Resource Allocation as a story, with the real daemon, a kubelet and a control plane."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from simulated.demo import StoryError, play
from simulated.drademo import DraDemo, dra_demo
from simulated.pods import Pod, Workload
from simulated.stage import running

_CHIPS = 4
_GRACE = 2.0
"""Seconds that pod A takes to stop after it was deleted by force."""
_TOOL = """
import os, sys
os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print(flush=True)
sys.stdin.read()
"""


def main(*, keep: bool = False) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running.

    Return 3, with what is missing on the terminal, where no certificates can be made.
    """
    return play(
        partial(_tell, keep=keep),
        instead="The story of the device plugin API needs none: `make demo` without ARGS=--dra.",
    )


async def _tell(folder: Path, *, keep: bool) -> None:
    with dra_demo(folder, chips=_CHIPS) as stage:
        async with running(stage):
            stage.start()
            await _appear(stage)
            second = await _force_delete(stage)
            third = await _stay_held(stage, second)
            await _reboot(stage, third)
            await _lose_the_slices(stage)
            stage.say("The end. Every step happened.")
            if keep:
                await stage.stay()


async def _appear(stage: DraDemo) -> None:
    stage.say("A cluster with one node and four TPU v5e chips; the holdfast daemon starts.")
    await stage.until(lambda: len(stage.chips()) == _CHIPS, "the chips to be in ResourceSlices")
    shapes = len(stage.devices()) - _CHIPS
    stage.say(
        f"Its ResourceSlices have four chips and {shapes} group(s) of them that libtpu can use."
    )
    await stage.until(lambda: stage.dra.plugins.plugins, "kubelet to register the driver")


async def _force_delete(stage: DraDemo) -> Pod:
    leaves = Workload(orphan=1, ignores_term=True)
    former, chip = await stage.submit("pod-a", leaves)
    await stage.until_running(former)
    stage.say(f"Pod A's claim was given {chip}, holdfast prepared it, and its program runs.")
    stage.delete(former, force=True, grace=_GRACE)
    stage.say("Pod A is deleted by force: the API server has forgotten it and its claim.")
    pod, again = await stage.submit("pod-b", Workload(ignores_term=True))
    if again != chip:
        raise StoryError(f"the scheduler gave pod B {again}")
    stage.say(f"The scheduler hands {chip} on at once, to pod B: it cannot know better.")
    await stage.until(lambda: len(stage.dra.calls) > 1, "kubelet to have pod B's claim prepared")
    if [call for call, _ in stage.dra.calls] != ["prepare", "prepare"]:
        raise StoryError(f"kubelet called {stage.dra.calls}")
    stage.say(
        "Kubelet has pod B's claim prepared before pod A's is unprepared. Other drivers refuse "
        "it, or start pod B."
    )
    await stage.until(lambda: "default/pod-a" in stage.health(chip), "pod B's status to say why")
    stage.say(f"holdfast lets it wait, and pod B's status says: {stage.health(chip)}")
    await stage.until(lambda: stage.node.members(former.uid)[1:] == (), "pod A's program to end")
    (orphan,) = stage.node.members(former.uid)
    stage.say(f"Pod A's program is over, but pid {orphan}, which it left behind, has the chip.")
    await stage.until(lambda: not stage.node.has(orphan), "the leftover to be ended")
    ended = time.monotonic()
    stage.say(f"Kubelet has unprepared pod A's claim: pid {orphan} is ended, by every guard.")
    await stage.until_running(pod)
    later = (time.monotonic() - ended) * 1000
    stage.say(f"Pod B starts {later:.0f} ms later, on a chip that the kernel says is free.")
    return pod


async def _stay_held(stage: DraDemo, pod: Pod) -> Pod:
    chip, node = stage.chip_of(pod)
    with _tool(stage, node) as pid:
        stage.say(f"Somebody's tool on the node (pid {pid}) opens {chip}, and pod B is deleted.")
        stage.delete(pod, grace=0.5)
        await stage.until(lambda: f"(pid {pid})" in stage.health(chip), "the tool to be named")
        stage.say(f"Pod B's claim is not over: {stage.health(chip)}")
        stage.add("holdfast ends no process that could be somebody's work. It waits for 6 s here")
        stage.add("(dra.unprepareWait, 2 min by default) while pod B is Terminating.")
        await stage.until(lambda: pod.stopped, "pod B to be over")
        await stage.until(lambda: chip in stage.tainted(), "the chip to be tainted")
        stage.say(
            f"Then pod B may go. Its chip stays locked, and has the taint holdfast.dev/held: "
            f"{stage.tainted()[chip]}."
        )
        third, other = await stage.submit("pod-c", Workload())
        if other == chip:
            raise StoryError(f"the scheduler gave pod C {other} in spite of its taint")
        await stage.until_running(third)
        stage.say(f"The scheduler gives pod C {other} instead, and it runs.")
    await stage.until(
        lambda: chip in stage.chips() and chip not in stage.tainted(), "the taint to go"
    )
    stage.say(f"The tool has ended: {chip} is free, and its taint is gone.")
    return third


async def _reboot(stage: DraDemo, pod: Pod) -> None:
    before = len(stage.dra.calls)
    await stage.kubelet.close()
    await stage.stop()
    stage.node.reboot()
    for spec in stage.cdi.iterdir():  # it is in memory
        spec.unlink()
    stage.say("The node reboots: pod C's processes are gone, and so are all CDI specs.")
    starts = pod.starts
    stage.start()
    await stage.kubelet.start()
    await stage.until(lambda: stage.dra.plugins.plugins, "kubelet to register the driver again")
    await stage.kubelet.readmit()
    await stage.until(lambda: pod.starts > starts, f"pod C to start again: {pod.waiting}")
    if stage.dra.calls[before:] != [("prepare", stage.dra.calls[before][1])]:
        raise StoryError(f"kubelet called {stage.dra.calls[before:]}")
    stage.say("Kubelet asks again for a claim that was prepared. Its CDI spec is written again,")
    stage.add("where other drivers answer that all is done, and pod C starts with its chip.")


async def _lose_the_slices(stage: DraDemo) -> None:
    before = _versions(stage)
    began = time.monotonic()
    await stage.kubelet.restart()
    stage.say("Kubelet restarts, and deletes all ResourceSlices of its node, as it always does.")
    await stage.until(
        lambda: len(stage.chips()) == _CHIPS and not before & _versions(stage),
        "the slices to be published again",
    )
    later = time.monotonic() - began
    stage.say(
        f"holdfast hears that it is registered again, and has published them {later:.1f} s later."
    )


def _versions(stage: DraDemo) -> set[str]:
    return {each["metadata"]["uid"] for each in stage.slices()}


@contextlib.contextmanager
def _tool(stage: DraDemo, node: Path) -> Iterator[int]:
    """Have a process that is no pod's open *node*, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _TOOL, str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()
            stage.node.add_process(process.pid, "/user.slice/user-0.slice/session-1.scope")
            yield process.pid
        finally:
            process.kill()
            process.wait()
            stage.node.remove_process(process.pid)
