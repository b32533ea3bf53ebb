"""What is to leave its resource, leaves: pods queue for it, and none of them gets it.

Kubelet gives a device on with the first admission after its pod's end, before anybody can ask it
whether the pod is over.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.gpustage import GPU, GpuStage, sharing, wants
from fakes.stage import TPU, Stage, pod, stage
from simulated.nvml import uuid
from simulated.pods import Phase, Pod

_NEVER_ASKED = {"minInterval": "1h", "settle": "1h", "idleInterval": "1h", "timeout": "2s"}
"""Only what is seen of a pod's processes tells that it is over."""
_AS_DELIVERED = {"minInterval": "1s", "settle": "1s", "idleInterval": "10s", "timeout": "2s"}
_RECLAIM = {"poll": "2s", "releasePoll": "200ms", "unseenGrace": "30s"}
"""What leaves is withheld however seldom is looked: these are the defaults."""
_QUEUE = 6
_RULES = ({"exclude": True}, {"resource": "example.com/debug"})


async def _take_away(node: Stage, chip: str, action: dict[str, Any]) -> None:
    """Have a rule take *chip* away, and return when the daemon has taken that up."""
    node.configure(devices=[{"match": {"pci": chip}, **action}])

    async def leaving() -> bool:
        rows = await node.asked("devices") or ()
        return any("no pod has it" in why for row in rows for why in row["reasons"])

    await node.until(leaving, f"{chip} to be leaving")


@asynccontextmanager
async def _leaving(
    folder: Path, question: dict[str, str], action: dict[str, Any]
) -> AsyncIterator[tuple[Stage, str, Pod]]:
    """Yield a node with one chip, which a rule has taken away, and the pod that has it still."""
    async with stage(
        folder, chips=1, own_process=True, question=question, reclaim=_RECLAIM
    ) as node:
        (chip,) = node.healthy()
        holder = await node.run(pod("holder"))
        await _take_away(node, chip, action)
        yield node, chip, holder


async def _queue(node: Stage, resource: str, *, of: int = _QUEUE) -> list[tuple[Phase, set[str]]]:
    """Return what became of pods that came one after the other, and what they were given."""
    found = []
    for number in range(of):
        came = await node.kubelet.submit(wants_one(resource, f"next-{number}"))
        found.append((came.phase, node.ids(came, resource)))
    return found


def wants_one(resource: str, name: str) -> Any:
    return pod(name) if resource == TPU else wants(name, 1)


@pytest.mark.parametrize("question", [_AS_DELIVERED, _NEVER_ASKED], ids=["asked", "never asked"])
@pytest.mark.parametrize("action", _RULES)
async def test_no_pod_of_a_queue_gets_a_chip_that_a_rule_takes_away(
    short_path: Path, action: dict[str, Any], question: dict[str, str]
) -> None:
    async with _leaving(short_path, question, action) as (node, chip, holder):
        assert node.healthy() == {chip}, "its pod may be admitted anew"

        await node.end(holder)
        assert await _queue(node, TPU) == [(Phase.FAILED, set())] * _QUEUE


async def test_a_chip_that_is_to_leave_is_withheld_with_its_pods_last_process(
    short_path: Path,
) -> None:
    """Kubelet still counts the pod then, and cannot be asked."""
    async with stage(
        short_path, chips=2, own_process=True, question=_NEVER_ASKED, reclaim=_RECLAIM
    ) as node:
        holder = await node.run(pod("holder", runs_for=2.0))
        (chip,) = node.ids(holder)
        (other,) = node.healthy() - {chip}
        await _take_away(node, chip, _RULES[0])
        await node.until(lambda: node.healthy() == {other}, f"{chip} to be withheld")
        assert (await node.owners())[chip] == holder.uid

        found = await _queue(node, TPU, of=2)
        assert found == [(Phase.PENDING, {other}), (Phase.FAILED, set())]


async def test_a_kubelet_that_reads_an_old_list_is_refused_a_chip_that_leaves(
    short_path: Path,
) -> None:
    async with _leaving(short_path, _NEVER_ASKED, _RULES[0]) as (node, chip, holder):
        node.kubelet.hears.clear()
        await node.end(holder)
        late = await node.kubelet.submit(pod("late"))
        node.kubelet.hears.set()

        assert late.phase is Phase.FAILED
        assert f"cannot allocate {TPU}/{chip}: no new pod is given it: devices[0]" in late.message


async def test_a_pod_whose_processes_ended_with_kubelet_is_admitted_anew(
    short_path: Path,
) -> None:
    async with _leaving(short_path, _NEVER_ASKED, _RULES[0]) as (node, chip, holder):
        await node.kubelet.close()
        await node.for_some_beats()  # that the processes have ended is seen before kubelet is back
        await node.kubelet.start()
        await node.until(lambda: node.healthy() == {chip}, "kubelet to hear of the chip")
        await node.kubelet.readmit()
        await node.running(holder)
        assert holder.phase is Phase.RUNNING, holder.message
        assert node.ids(holder) == {chip}


async def test_a_container_starts_again_on_what_is_to_leave_where_its_pod_has_no_sandbox_process(
    short_path: Path,
) -> None:
    """Between two starts the chip is withheld: kubelet starts the container all the same."""
    async with stage(short_path, chips=1, own_process=True, reclaim=_RECLAIM) as node:
        (chip,) = node.healthy()
        node.runtime.has_pause = False
        holder = await node.run(pod("holder", restart="Always", runs_for=0.5))
        await _take_away(node, chip, _RULES[0])
        await node.until(lambda: chip in node.ever_unhealthy(), f"{chip} to be withheld")
        starts = holder.starts
        await node.until(lambda: holder.starts > starts + 1, "the container to start twice again")
        assert node.ids(holder) == {chip}
        assert await node.locks() == {chip: "held"}


async def _shared_by(gpus: GpuStage, count: int) -> dict[int, Pod]:
    """Return the pods that share the only GPU, by the number of the replica that each has."""
    node = gpus.stage
    gpus.gpus.arrive(1)
    await node.until(lambda: len(node.healthy(GPU)) == count, "the replicas to be offered")
    pods = [await node.run(wants(f"pod-{number}", 1)) for number in range(count)]
    found = {int(id_.rpartition(":")[2]): each for each in pods for id_ in node.ids(each, GPU)}
    assert sorted(found) == list(range(count))
    return found


async def _share_by(gpus: GpuStage, count: int) -> None:
    """Have fewer pods share a GPU, and return when kubelet has heard of it."""
    node = gpus.stage
    started = node.log.count('"event": "started"')
    node.configure(sharing=sharing(count))
    await node.until(lambda: node.log.count('"event": "started"') > started, "another start")
    heard = node.heard(GPU)
    await node.until(lambda: node.heard(GPU) > heard, "the lists to be sent")


async def test_no_pod_of_a_queue_gets_a_replica_once_gpus_are_not_shared(gpu_stage: Any) -> None:
    changes = {"sharing": sharing(3), "question": _AS_DELIVERED}
    async with gpu_stage(others=changes) as gpus:
        node = gpus.stage
        pods = await _shared_by(gpus, 3)
        await _share_by(gpus, 0)
        for number in range(2):
            await node.end(pods[number])
            assert await _queue(node, GPU, of=2) == [(Phase.FAILED, set())] * 2
        await node.end(pods[2])
        node.runtime.trespasses.clear()
        await gpus.until_healthy(0)


async def test_no_more_pods_than_replicas_share_a_gpu_after_their_number_was_lowered(
    gpu_stage: Any,
) -> None:
    changes = {"sharing": sharing(4), "question": _AS_DELIVERED}
    async with gpu_stage(others=changes) as gpus:
        node = gpus.stage
        pods = await _shared_by(gpus, 4)
        await _share_by(gpus, 2)
        card = uuid(0)

        # As many of the lower ones are withheld as pods have higher ones.
        for number in (0, 1):
            await node.end(pods[number])
            assert await _queue(node, GPU, of=2) == [(Phase.FAILED, set())] * 2
        await node.until(lambda: len(node.healthy(GPU)) == 2, "only the higher ones to be healthy")
        await node.end(pods[2])
        expected = {f"{card}::0", f"{card}::3"}
        await node.until(lambda: node.healthy(GPU) == expected, "one to be given again")
        first = await node.run(wants("first", 1))
        assert node.ids(first, GPU) == {f"{card}::0"}
        assert await _queue(node, GPU, of=1) == [(Phase.FAILED, set())]

        await node.end(pods[3])
        both = {f"{card}::0", f"{card}::1"}
        await node.until(lambda: node.healthy(GPU) == both, "the number to be reached")
        second = await node.run(wants("second", 1))
        assert node.ids(second, GPU) == {f"{card}::1"}
        node.runtime.trespasses.clear()
