"""GPUs that pods share by time slicing, on a whole node: the real daemon, pynvml and processes."""

import os
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.gpustage import GPU, RECLAIM, GpuStage, sharing, wants
from fakes.ledgers import stored
from fakes.stage import asks, end
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.nvml import GIB, Slice, uuid
from simulated.pods import Phase, Pod, PodSpec

SHARED = "nvidia.com/gpu.shared"
SLICE, SHARED_SLICE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared"
_OTHER = "example.com/gpu"


def replicas(index: int, count: int) -> tuple[str, ...]:
    return tuple(f"{uuid(index)}::{number}" for number in range(count))


def only_neighbours(node: GpuStage, *names: str) -> None:
    """Take it that these pods, and no others, may have started on a GPU that another has open."""
    trespasses = node.stage.runtime.trespasses
    assert {each.split()[0] for each in trespasses} <= set(names)
    trespasses.clear()


async def test_pods_share_a_gpu_and_what_one_leaves_keeps_its_own_replica(gpu_stage: Any) -> None:
    changes = {"sharing": sharing(3), "reclaim": {**RECLAIM, "mode": "observe"}}
    async with gpu_stage(others=changes) as node:
        node.gpus.arrive(1)
        await node.until_offered(*replicas(0, 3))
        beside = await node.stage.run(wants("beside", 1))
        former = await node.stage.run(wants("former", 1, runs_for=0.5, orphan=1))
        (answer,) = node.stage.answers(beside)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid(0)
        orphan = await node.stage.orphan(former)
        (kept,) = node.stage.ids(beside, GPU)
        # Kubelet may have dropped a pod that is over: only the daemon still knows what it had.
        (lost,) = (await node.stage.locks()).keys() - {kept}
        await node.stage.until_locks({lost: "releasing", kept: "held"})

        # The third replica is free although the orphan is on the GPU; its own is not.
        third = await node.stage.run(wants("third", 1))
        last = await node.stage.submit(wants("last", 1))
        assert node.stage.ids(last, GPU) == {lost}
        await node.stage.waiting(last, f"pid {orphan}")
        end(orphan)
        await node.stage.running(last)
        only_neighbours(node, "former", "third", "last")
        for pod in (beside, third, last):
            await node.stage.end(pod)
        await node.stage.until_free()


async def test_what_a_pod_leaves_on_a_shared_gpu_is_ended_and_its_neighbours_go_on(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(others={"sharing": sharing(2)}) as node:
        node.gpus.arrive(1)
        await node.until_offered(*replicas(0, 2))
        await node.stage.until(
            lambda: "nvidia/idle" in stored(node.stage.state).kept,
            lambda: "its idle memory to be on disk",
        )
        beside = await node.stage.run(wants("beside", 1))
        (works,) = node.stage.orphans(beside)
        node.gpus.change(
            0, lambda card: replace(card, used=2 * GIB, processes=(("compute", works, 2 * GIB),))
        )
        former = await node.stage.run(wants("former", 1, runs_for=0.5, orphan=1))
        await node.stage.orphan(former)
        await node.stage.until_locks(dict.fromkeys(node.stage.ids(beside, GPU), "held"))
        assert await node.stage.ever("reclaiming")
        assert node.stage.orphans(beside) == (works,)
        only_neighbours(node, "former")

        # While a neighbour uses the GPU its memory tells nothing; it does when the last one is over.
        await node.stage.end(beside)
        node.gpus.change(0, lambda card: replace(card, processes=()))
        following = await node.stage.submit(wants("next", 1))
        await node.stage.waiting(following, "its memory is not freed")
        node.gpus.change(0, lambda card: replace(card, used=0))
        await node.stage.running(following)


async def test_pods_share_a_gpu_also_while_the_checkpoint_tells_of_none_who_it_is(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(others={"sharing": sharing(2)}, memoryDeadline="1s") as node:
        node.gpus.arrive(1)
        await node.until_offered(*replicas(0, 2))
        node.stage.kubelet.devices.later_version = True
        node.stage.kubelet.devices.write()
        await node.stage.until_problem("kubelet checkpoint", "of no known version")
        beside = await node.stage.run(wants("beside", 1))
        (works,) = node.stage.orphans(beside)
        node.gpus.change(
            0, lambda card: replace(card, used=2 * GIB, processes=(("compute", works, 2 * GIB),))
        )
        following = await node.stage.run(wants("next", 1))
        await node.stage.end(following)
        await node.stage.run(wants("third", 1))
        only_neighbours(node, "next", "third")


async def test_a_fault_of_a_shared_gpu_is_that_of_all_its_replicas(gpu_stage: Any) -> None:
    async with gpu_stage(others={"sharing": sharing(2, renameByDefault=True)}) as node:
        node.gpus.arrive(2)
        await node.until_offered(*replicas(0, 2), *replicas(1, 2), resource=SHARED)
        assert GPU not in node.stage.kubelet.devices.endpoints
        node.gpus.xid(uuid(1), 79)
        await node.until_offered(*replicas(0, 2), resource=SHARED)
        rows = await node.stage.asked("devices") or []
        ill = {row["id"] for row in rows if any("Xid 79" in each for each in row["reasons"])}
        assert ill == set(replicas(1, 2))
        # A person may name the card by any of them.
        done = await node.stage.asked("unquarantine", device=replicas(1, 2)[1])
        assert "Xid 79" in done["text"]
        await node.until_offered(*replicas(0, 2), *replicas(1, 2), resource=SHARED)


async def test_a_container_may_have_several_replicas_unless_that_is_refused(gpu_stage: Any) -> None:
    async with gpu_stage(others={"sharing": sharing(4)}, deviceIdStrategy="index") as node:
        node.gpus.arrive(1)
        await node.until_offered(*replicas(0, 4))
        made = await node.stage.run(
            PodSpec(name="two", containers=(asks(GPU, 2), asks(GPU, 1, name="side")))
        )
        answers = node.stage.answers(made)
        assert [each.envs["NVIDIA_VISIBLE_DEVICES"] for each in answers] == ["0", "0"]
        assert [each.host_path for each in answers[0].devices].count("/dev/nvidia0") <= 1
        await node.stage.until(lambda: made.starts > 1, "its second container to start")
        only_neighbours(node, "two")  # its second container, beside its own first
        await node.stage.end(made)
        await node.stage.until_free()

        node.stage.configure(sharing=sharing(3, failRequestsGreaterThanOne=True))
        await node.until_offered(*replicas(0, 3))
        refused = await node.stage.kubelet.submit(wants("greedy", 2))
        assert refused.phase is Phase.FAILED
        assert "maximum request size for shared resources is 1; found 2" in refused.message
        assert await node.stage.locks() == {}


def divided(node: GpuStage, *slices: Slice) -> None:
    node.gpus.change(0, lambda card: replace(card, mig=1, slices=slices))


def shared_slices(replicas: int) -> dict[str, Any]:
    return {
        "timeSlicing": {
            "renameByDefault": True,
            "resources": [{"name": SLICE, "replicas": replicas}],
        }
    }


async def test_pods_share_a_slice_and_what_one_leaves_keeps_its_own_share(gpu_stage: Any) -> None:
    changes = {"sharing": shared_slices(2), "reclaim": {**RECLAIM, "mode": "observe"}}
    async with gpu_stage(
        others=changes, migStrategy="mixed", sharedDevicesAllocationPolicy="packed"
    ) as node:

        def one(name: str, **work: Any) -> PodSpec:
            return PodSpec(name=name, containers=(asks(SHARED_SLICE, 1, **work),))

        node.gpus.arrive(1)
        small, other = Slice("MIG-a", gi=7), Slice("MIG-b", gi=8)
        divided(node, small, other)
        everything = {f"MIG-{each}::{number}" for each in "ab" for number in range(2)}
        await node.until_offered(*everything, resource=SHARED_SLICE)
        assert SLICE not in node.stage.kubelet.devices.endpoints
        beside = await node.stage.run(one("beside"))
        (answer,) = node.stage.answers(beside)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "MIG-a"
        (works,) = node.stage.orphans(beside)
        former = await node.stage.run(one("former", runs_for=0.5, orphan=1))
        orphan = await node.stage.orphan(former)
        used = tuple(("compute", pid, GIB) for pid in (works, orphan))
        divided(node, replace(small, used=2 * GIB, processes=used), other)
        assert node.stage.ids(beside, SHARED_SLICE) == {"MIG-a::0"}
        await node.stage.until_locks({"MIG-a::0": "held", "MIG-a::1": "releasing"})

        # The other slice is free, although the orphan has the node of the GPU open.
        third = await node.stage.run(one("third"))
        (had,) = node.stage.ids(third, SHARED_SLICE)
        assert had.startswith("MIG-b::")
        last = [await node.stage.submit(one(f"last-{number}")) for number in range(2)]
        (waits,) = [each for each in last if node.stage.ids(each, SHARED_SLICE) == {"MIG-a::1"}]
        await node.stage.waiting(waits, f"pid {orphan}")
        end(orphan)
        divided(node, replace(small, used=GIB, processes=used[:1]), other)
        for pod in last:
            await node.stage.running(pod)
        only_neighbours(node, "former", "third", "last-0", "last-1")

        # A person withholds the slice, and with it its shares alone.
        await node.stage.asked("quarantine", device=f"{SLICE}/MIG-a", reason="it smokes")
        for pod in (beside, third, *last):
            await node.stage.end(pod)
        divided(node, small, other)
        await node.stage.until_free()
        await node.until_offered("MIG-b::0", "MIG-b::1", resource=SHARED_SLICE)


async def test_a_slice_that_is_made_anew_is_shared_once_no_pod_has_what_was_in_its_place(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(others={"sharing": shared_slices(2)}, migStrategy="mixed") as node:
        node.gpus.arrive(1)
        divided(node, Slice("MIG-a", gi=7))
        await node.until_offered("MIG-a::0", "MIG-a::1", resource=SHARED_SLICE)
        made = await node.stage.run(PodSpec(name="had", containers=(asks(SHARED_SLICE, 1),)))
        divided(node, Slice("MIG-b", gi=7), Slice("MIG-c", gi=8))
        await node.until_offered("MIG-c::0", "MIG-c::1", resource=SHARED_SLICE)
        rows = await node.stage.asked("devices") or []
        why = {reason for row in rows if row["id"].startswith("MIG-b") for reason in row["reasons"]}
        assert any("a pod still has what was in its place" in each for each in why), why
        await node.stage.end(made)
        everything = {f"MIG-{each}::{number}" for each in "bc" for number in range(2)}
        await node.until_offered(*everything, resource=SHARED_SLICE)


async def test_a_divided_gpu_that_is_given_out_whole_is_shared_and_its_slices_are_looked_at(
    gpu_stage: Any,
) -> None:
    changes = {"sharing": sharing(2), "reclaim": {**RECLAIM, "mode": "observe"}}
    async with gpu_stage(others=changes) as node:
        node.gpus.arrive(1)
        small = Slice("MIG-a", gi=7)
        divided(node, small)
        await node.until_offered(*replicas(0, 2))
        pid = os.getpid()
        divided(node, replace(small, used=GIB, processes=(("compute", pid, GIB),)))
        made = await node.stage.submit(wants("one", 1))
        await node.stage.waiting(made, f"pid {pid}")
        divided(node, small)
        await node.stage.running(made)


async def test_a_gpu_that_becomes_shared_is_first_let_go_and_the_other_way_round(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(others={"sharing": sharing(0)}) as node:
        await node.arrive(1)
        whole = await node.stage.run(
            PodSpec(name="whole", containers=(asks(GPU, 1),), restart="Always")
        )
        node.stage.configure(sharing=sharing(2))
        await until_listed(node, uuid(0), *replicas(0, 2))
        # By the name that is no longer offered.
        await _starts_again(node, whole)
        await node.until_offered(uuid(0))  # its pod may be admitted anew, and no other
        assert await node.stage.locks() == {uuid(0): "held"}
        await node.stage.end(whole)
        await node.until_offered(*replicas(0, 2))

        pods = [await node.stage.run(wants(name, 1)) for name in ("one", "other")]
        only_neighbours(node, "other")
        node.stage.configure(sharing=sharing(0))
        await node.until_offered(*replicas(0, 2))
        await node.stage.end(pods[0])
        left = node.stage.ids(pods[1], GPU)
        await node.stage.until_locks(dict.fromkeys(left, "held"))
        await node.until_offered(*left)
        await node.stage.end(pods[1])
        await node.until_healthy(0)


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        (sharing(3), sharing(2)),
        (sharing(3), sharing(0)),
        (sharing(3), sharing(3, renameByDefault=True)),
        (sharing(3, renameByDefault=True), sharing(0)),
        (sharing(3, renameByDefault=True), sharing(3)),
    ],
)
async def test_what_a_pod_has_stays_healthy_however_gpus_are_shared_since(
    gpu_stage: Any, before: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Else kubelet would not admit the pod anew after a reboot."""
    async with gpu_stage(others={"sharing": before}) as node:
        node.gpus.arrive(1)
        had = SHARED if "renameByDefault" in before["timeSlicing"] else GPU
        await node.until_offered(*replicas(0, 3), resource=had)
        for name in ("one", "two", "three"):
            await node.stage.run(PodSpec(name=name, containers=(asks(had, 1),)))
        node.stage.configure(sharing=changed)
        await node.stage.until(
            lambda: node.stage.log.count('"event": "started"') == 2, "the restart"
        )
        await node.until_offered(*replicas(0, 3), resource=had)
        only_neighbours(node, "one", "two", "three")


async def test_a_rule_takes_a_shared_gpu_away_and_gives_it_back_as_pods_let_it_go(
    gpu_stage: Any,
) -> None:
    """What a rule moves is one pod's, and is shared by nobody."""
    rule = {"match": {"uuid": uuid(0)}, "resource": _OTHER}
    async with gpu_stage(others={"sharing": sharing(2), "devices": [rule]}) as node:
        node.gpus.arrive(1)
        await node.until_offered(uuid(0), resource=_OTHER)
        whole = await node.stage.run(
            PodSpec(name="whole", containers=(asks(_OTHER, 1),), restart="Always")
        )
        node.stage.configure(devices=[])
        await until_listed(node, uuid(0), *replicas(0, 2), resource=_OTHER)
        await _starts_again(node, whole)
        assert not node.stage.healthy(GPU)
        assert await node.stage.locks() == {uuid(0): "held"}
        await node.stage.end(whole)
        await node.until_offered(*replicas(0, 2))

        share = await node.stage.run(
            PodSpec(name="share", containers=(asks(GPU, 1),), restart="Always")
        )
        held = node.stage.ids(share, GPU)
        node.stage.configure(devices=[rule])
        await until_listed(node, uuid(0), *held)
        await _starts_again(node, share)
        assert not node.stage.healthy(_OTHER)
        assert await node.stage.locks() == dict.fromkeys(held, "held")
        await node.stage.end(share)
        await node.until_offered(uuid(0), resource=_OTHER)


async def _starts_again(node: GpuStage, pod: Pod) -> None:
    """Return when a container of *pod* that ended has started again, on what it has."""
    before = pod.starts
    end(*node.stage.orphans(pod))
    await node.stage.until(
        lambda: pod.starts > before and not pod.waiting, lambda: f"its next start: {pod.waiting}"
    )


async def until_listed(node: GpuStage, *ids: str, resource: str = GPU) -> None:
    """Return when kubelet was sent these devices, healthy or not."""

    def listed() -> set[str]:
        return set((node.stage.kubelet.messages.get(resource) or [{}])[-1])

    await node.stage.until(
        lambda: listed() == set(ids), lambda: f"the list to be {ids}; it is {listed()}"
    )


async def test_pods_that_nvidias_plugin_let_share_a_gpu_keep_it_and_nobody_gets_it_whole(
    gpu_stage: Any,
) -> None:
    async with gpu_stage() as node:
        former = [Pod(spec=wants(name, 1), phase=Phase.RUNNING) for name in ("one", "other")]
        for pod, id_ in zip(former, replicas(0, 2), strict=True):
            node.stage.kubelet.pods[pod.uid] = pod
            answer = api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": uuid(0)})
            node.stage.kubelet.devices.note(pod.uid, GPU, (id_,), answer=answer.SerializeToString())
            await node.stage.runtime.start(pod, pod.spec.containers[0], answer)
        node.stage.kubelet.devices.write()
        node.gpus.arrive(1)
        await node.stage.until_locks(dict.fromkeys(replicas(0, 2), "held"))
        await node.until_offered(*replicas(0, 2))
        for pod in former:
            await node.stage.end(pod)
        await node.until_healthy(0)
