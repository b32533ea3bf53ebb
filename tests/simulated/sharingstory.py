"""Four ways to ask for a GPU on one node, as a story: by number, by share, by slice, by claim.

A plugin that writes down only those who ask in one way gives their cards to the others, too
(volcano-sh/volcano#3824). Here all of them are in one ledger.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from simulated import nvml
from simulated.demo import StoryError, play, short
from simulated.drademo import DraDemo, cluster
from simulated.gpunode import GpuNode
from simulated.pods import Container, Phase, Pod, PodSpec, Workload
from simulated.stage import running

_GPU, _SHARED, _SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
_NUMBERED, _CLAIMED = "example.com/gpu", "example.com/claimed-gpu"
_MIG = "MIG-0a1b2c3d-0000-5000-8000-000000000000"
_SLICED = 2
_LEAVES = Workload(runs_for=3.0, orphan=1)


class _Way(Struct, frozen=True):
    """One way to ask for a GPU, and how a person says it."""

    name: str
    resource: str


_WAYS = (_Way("number", _NUMBERED), _Way("share", _SHARED), _Way("slice", _SLICE))


def main(*, keep: bool = False) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running.

    Return 3, with what is missing on the terminal, where the stand-in for NVIDIA's library or the
    certificates of the control plane cannot be made.
    """
    return play(
        partial(_tell, keep=keep),
        instead="The story of TPUs needs nothing of the kind: `make demo` without ARGS=--sharing.",
    )


async def _tell(folder: Path, *, keep: bool) -> None:
    library = await asyncio.to_thread(nvml.build, folder)
    node = GpuNode(folder / "node", library=library, gpus=4)
    with cluster(folder) as made:
        stage = DraDemo(
            folder,
            node,
            made,
            resource=_SHARED,
            toolkit=node.visible,
            changes=_settings(replicas=2),
            environment={nvml.CONTROL: str(node.control)},
        )
        async with running(stage):
            node.load_driver()
            node.divide(_SLICED, _MIG)
            stage.start()
            await _appear(stage)
            former = await _ask_in_every_way(stage)
            await _follow_in_every_way(stage, former)
            await _end_sharing(stage, node)
            stage.say("The end. Every step happened.")
            if keep:
                await stage.stay()


def _settings(*, replicas: int) -> dict[str, Any]:
    """Return settings by which GPU 0 is shared by so many pods; 0: by none."""
    shared = [{"name": _GPU, "replicas": replicas}] if replicas else []
    return {
        "tpu": {"enabled": False},
        "gpu": {"migStrategy": "mixed", "rescan": "1s", "healthBeat": "500ms"},
        "sharing": {"timeSlicing": {"renameByDefault": True, "resources": shared}},
        "devices": [
            {"match": {"index": "1"}, "resource": _NUMBERED},
            {"match": {"index": "3"}, "resource": _CLAIMED, "api": "dra"},
        ],
    }


async def _appear(stage: DraDemo) -> None:
    stage.say("A node with four H100s, and the holdfast daemon. Its settings say how pods ask:")
    stage.add(f"GPU 0 is shared by two pods ({_SHARED}), GPU 1 is one pod's ({_NUMBERED}),")
    stage.add(f"GPU 2 is divided by MIG ({_SLICE}), and GPU 3 is given by ResourceClaims.")
    for way, count in zip(_WAYS, (1, 2, 1), strict=True):
        await stage.until(partial(_is_offered, stage, way.resource, count), way.resource)
    await stage.until(lambda: len(stage.devices()) == 1, "GPU 3 to be in a ResourceSlice")
    stage.say("Kubelet has the first three, and the scheduler has GPU 3.")


async def _ask_in_every_way(stage: DraDemo) -> Mapping[str, Pod]:
    """Return the pods that leave a process behind, by the way in which they asked."""
    pods = {
        way.name: await stage.kubelet.submit(_pod(f"{way.name}-1", way.resource, _LEAVES))
        for way in _WAYS
    }
    pods["claim"], _ = await stage.submit(
        "claim-1", Workload(orphan=1, ignores_term=True), kind="claimed-gpu"
    )
    beside = await stage.kubelet.submit(_pod("share-2", _SHARED, Workload()))
    for pod in (*pods.values(), beside):
        await stage.until_running(pod)
    stage.say("Five pods ask, in four ways, and all of them run. One ledger has them all:")
    await _tell_locks(stage, count=5)
    return pods


async def _follow_in_every_way(stage: DraDemo, former: Mapping[str, Pod]) -> None:
    for way in _WAYS:
        await _until_over(stage, former[way.name])
    stage.delete(former["claim"], force=True, grace=1.0)
    claimant, device = await stage.submit("claim-3", Workload(), kind="claimed-gpu")
    following = {
        way.name: await stage.kubelet.submit(_pod(f"{way.name}-3", way.resource, Workload()))
        for way in _WAYS
    }
    following["claim"] = claimant
    stage.say(
        "All but share-2 have ended, and each left a process on its GPU. Their GPUs are given"
    )
    stage.add("to the next pods at once, and each of these is told which pod it waits for:")
    for name, pod in following.items():
        told = await _told(stage, pod, device if name == "claim" else "", former[name])
        stage.add(f"by {name}: {told.partition('; ')[0]}")
    for pod in following.values():
        await stage.until_running(pod)
    stage.say("Every guard agrees, the leftovers are ended, and only then the next pods start.")
    if not all(stage.node.members(pod.uid) == () for pod in former.values()):
        raise StoryError("a pod started beside what another had left")
    for name, pod in following.items():
        if name != "share":
            await _over(stage, pod)


async def _told(stage: DraDemo, pod: Pod, device: str, former: Pod) -> str:
    """Return what *pod* is told while it waits for *former*; *device* comes by a claim."""

    def text() -> str:
        return stage.health(device) if device else short(pod.waiting)

    def named() -> bool:
        return f"/{former.spec.name}" in text() or former.uid in text()

    await stage.until(lambda: named() or pod.phase is not Phase.PENDING, "the next pod to be told")
    if not named():
        raise StoryError(f"{pod.spec.name} was not told it waits for {former.spec.name}: {text()}")
    return text()


async def _end_sharing(stage: DraDemo, node: GpuNode) -> None:
    """Give the shared GPU out whole while two pods have it."""
    stage.configure(**_settings(replicas=0))
    stage.say(f"The settings change: GPU 0 is no longer shared, it becomes {_GPU}.")
    listed = partial(stage.kubelet.devices.endpoints.get, _GPU)
    await stage.until(listed, "the daemon to have taken the settings up")
    pods = [pod for pod in stage.kubelet.active() if pod.spec.name.startswith("share")]
    if not all(node.members(pod.uid) for pod in pods):
        raise StoryError("a pod was ended when the settings changed")
    stage.say("The running daemon applies that: kubelet gets GPU 0 as one device, still Unhealthy.")
    for pod in pods:
        if stage.healthy(_GPU):
            raise StoryError("GPU 0 is offered whole while a pod shares it")
        await _over(stage, pod)
        stage.say(f"Pod {pod.spec.name} has ended.")
    await stage.until(lambda: stage.healthy(_GPU), "GPU 0 to be offered whole")
    whole = await stage.kubelet.submit(_pod("number-4", _GPU, Workload()))
    await stage.until_running(whole)
    stage.say("No pod shares it any more. Now GPU 0 is offered, and number-4 has all of it:")
    await _tell_locks(stage, count=1)


async def _over(stage: DraDemo, pod: Pod) -> None:
    if pod.spec.claims:
        stage.delete(pod, grace=0.5)
    else:
        stage.kubelet.delete(pod, grace=0.5)
    await _until_over(stage, pod)


async def _until_over(stage: DraDemo, pod: Pod) -> None:
    await stage.until(lambda: pod.stopped, f"{pod.spec.name} to be over")


def _is_offered(stage: DraDemo, resource: str, count: int) -> bool:
    return len(stage.healthy(resource)) == count


async def _tell_locks(stage: DraDemo, *, count: int) -> None:
    rows: list[Mapping[str, Any]] = []

    async def told() -> bool:
        rows[:] = [row for row in await stage.asked("locks") or () if row["state"] == "held"]
        return len(rows) == count

    await stage.until(told, lambda: f"{count} devices to be held: {rows}")
    names = {pod.uid: pod.spec.name for pod in stage.kubelet.active()}
    for row in sorted(rows, key=lambda row: str(row["device"])):
        stage.add(f"{row['device']}: {names[row['pod']]}")


def _pod(name: str, resource: str, workload: Workload) -> PodSpec:
    return PodSpec(name=name, containers=(Container(limits={resource: 1}, workload=workload),))
