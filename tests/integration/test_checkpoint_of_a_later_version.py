"""A kubelet whose checkpoint no reader of today understands: the node goes on, unverified."""

from pathlib import Path

from fakes.stage import TPU, Stage, asks, end, pod, stage
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api

_PROBLEM = "of no known version"


async def _updated(node: Stage) -> None:
    """Have kubelet write as a later version does from now on, and return when that was seen."""
    node.kubelet.devices.later_version = True
    node.kubelet.devices.write()
    await node.until_problem("kubelet checkpoint", _PROBLEM)


async def _passed(node: Stage) -> list[str]:
    """Return what the history tells of each start."""
    moves = await node.asked("history", limit=1000)
    return [move["evidence"] for move in moves if move["evidence"].startswith("gate passed")]


async def test_a_device_goes_on_from_pod_to_pod_and_each_start_is_marked_unverified(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        await _updated(node)
        for name in ("a", "b", "c"):
            made = await node.run(pod(name))
            await node.end(made)
        starts = await _passed(node)
        assert len(starts) == 3
        assert all("unverified" in each and "checkpoint" in each for each in starts)


async def test_what_a_former_pod_left_on_the_device_is_waited_for_and_named(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
        await _updated(node)
        _, left = await node.left_behind("first")
        following = await node.submit(pod("next"))
        await node.waiting(following, f"pid {left}")
        end(left)
        await node.running(following)


async def test_a_pod_that_was_known_before_is_over_when_its_cgroup_is_gone(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2) as node:
        ends = await node.run(pod("ends"))
        stays = await node.run(pod("stays"))
        await node.until_named(ends)
        await node.until_named(stays)
        await _updated(node)
        await node.end(ends)
        (kept,) = node.ids(stays)
        await node.until_locks({kept: "held"})
        assert await node.owners() == {kept: stays.uid}
        assert "unverified" in (await node.ever("releasing"))[-1]["evidence"]


async def test_a_pod_that_is_ending_is_waited_for_when_kubelet_allocates_its_device_again(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
        first = await node.run(pod("first", runs_for=0.0, orphan=-1))
        await node.until_named(first)
        await _updated(node)
        left = await node.orphan(first)
        following = await node.submit(pod("next"))
        await node.waiting(following, first)
        await node.for_some_beats()
        assert node.orphans(first) == (left,)
        assert following.starts == 0
        end(left)
        await node.running(following)


async def test_what_was_promised_to_a_former_pod_is_not_asked_of_the_next(
    short_path: Path,
) -> None:
    """The checkpoint that was read last still has the former pod with the same device."""
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        former = await node.former_plugins_pod("10")
        (entry,) = node.kubelet.devices.entries
        promise = api.ContainerAllocateResponse()
        promise.devices.add(host_path="/dev/vfio/99", container_path="/dev/vfio/99")
        entry.ids, entry.answer = (only,), promise.SerializeToString()
        node.kubelet.devices.write()
        await node.questions(2)
        await _updated(node)
        await node.end(former)
        await node.run(pod("next"))


async def test_an_init_container_may_have_more_devices_than_the_main_one(short_path: Path) -> None:
    async with stage(short_path, chips=2) as node:
        await _updated(node)
        setup = asks(TPU, 2, name="setup", runs_for=0.0)
        made = await node.run(pod("one", init=(setup,)))
        assert len(node.ids(made)) == 2
        await node.end(made)
        await node.run(pod("two", chips=2))
