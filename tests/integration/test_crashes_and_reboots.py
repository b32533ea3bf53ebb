"""The daemon is killed at every stage of a pod's life, and the node reboots: no lock is lost."""

from pathlib import Path

import pytest

from fakes.stage import PATIENT, Stage, pod, stage
from simulated.pods import Phase, Pod

_REFUSED = "UnexpectedAdmissionError"


async def test_killed_between_allocate_and_start_the_pod_starts_on_what_it_was_given(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True) as node:
        slow = await node.submit(pod("slow", chips=2, pull=1.0))
        await node.kill_and_start()
        await node.until_locks(dict.fromkeys(node.ids(slow), "held"))
        await node.running(slow)
        assert await node.owners() == dict.fromkeys(node.ids(slow), slow.uid)
        assert [move["pod"] for move in await node.ever("free")] == []


async def test_killed_while_a_pod_runs_it_keeps_its_devices_and_they_stay_offered(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True) as node:
        living = await node.run(pod("living", chips=2))
        before = node.heard()
        await node.kill_and_start()
        # Not even the first message after the start may call a living pod's device Unhealthy.
        assert node.told_healthy()[before] == node.ids(living)
        await node.for_some_beats()
        assert await node.owners() == dict.fromkeys(node.ids(living), living.uid)
        await node.end(living)
        await node.until_free()


async def test_killed_it_leaves_no_socket_that_nobody_serves_any_more(short_path: Path) -> None:
    async with stage(short_path, own_process=True) as node:
        another = node.kubelet.folder / "other-google-com_tpu.sock"
        another.touch()
        node.kill()
        node.configure(tpu={"resourceName": "example.com/tpu"})
        await node.start_and_register("example.com/tpu")
        names = {path.name for path in node.kubelet.folder.glob("*.sock")}
        assert names == {"kubelet.sock", "holdfast-example-com_tpu.sock", another.name}


async def test_killed_while_it_reclaims_it_begins_anew_and_ends_the_orphan(
    short_path: Path,
) -> None:
    reclaim = {"mode": "terminate", "letGoGrace": "200ms", "orphanGrace": "200ms"}
    reclaim |= {"termGrace": "1500ms"}
    async with stage(short_path, chips=1, own_process=True, reclaim=reclaim) as node:
        old, left = await node.left_behind()
        await node.until(lambda: _all_are(node, "reclaiming"), "the orphan to be ended")
        await node.kill_and_start()
        assert node.orphans(old) == (left,), "SIGTERM alone does not end it"
        await node.until(lambda: not node.orphans(old), "the orphan to be ended")
        await node.until_free()
        assert [move["pod"] for move in await node.ever("reclaiming")] == [old.uid]


async def test_killed_again_and_again_it_admits_a_full_nodes_pods_one_after_the_other(
    short_path: Path,
) -> None:
    async with stage(short_path, own_process=True) as node:
        former = await node.run(pod("pod-0", chips=4, ignores_term=True))
        for number in range(1, 4):
            node.kubelet.delete(former, grace=0.5, force=True)
            following = await node.submit(pod(f"pod-{number}", chips=4, ignores_term=True))
            await node.kill_and_start()
            await node.running(following)
            assert not node.node.lives(former.uid)
            former = following


async def test_after_a_reboot_a_pod_starts_on_its_replayed_answer_without_an_allocate(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2) as node:
        same = await node.run(pod("same", chips=2))
        allocations = await _allocations(node)
        await node.reboot()
        assert same.reason != _REFUSED, same.message
        await node.running(same)
        assert same.starts == 2
        assert await _allocations(node) == allocations
        assert await node.owners() == dict.fromkeys(node.ids(same), same.uid)
        await node.end(same)
        await node.until_free()


async def test_after_a_reboot_an_empty_ledger_learns_from_the_replayed_start(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        same = await node.run(pod("same"))
        await node.kubelet.close()
        await node.stop()
        for file in node.state.iterdir():
            file.unlink()
        node.node.reboot()
        await node.kubelet.start()
        await node.start_and_register()
        await node.kubelet.readmit()
        await node.running(same)
        assert await node.owners() == dict.fromkeys(node.ids(same), same.uid)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        # What the old answer names is another's now, or nobody's.
        ({10: 11, 11: 10}, "/dev/vfio/1"),
        ({10: 20, 11: 21}, "/dev/vfio/2"),
    ],
    ids=["that changed places", "that are new"],
)
async def test_after_a_reboot_with_other_group_numbers_the_gate_says_delete_the_pod(
    short_path: Path, groups: dict[int, int], told: str
) -> None:
    async with stage(short_path, chips=2) as node:
        same = await node.run(pod("same"))
        (chip,) = node.ids(same)
        await node.reboot(groups=groups)
        assert same.reason != _REFUSED, same.message
        await node.waiting(same, "delete the pod", chip, told)
        assert same.starts == 1
        await node.end(same)
        fresh = await node.run(pod("fresh", chips=2))
        assert node.ids(fresh) == set(await node.owners())


async def test_after_a_reboot_what_a_pod_left_behind_is_free(short_path: Path) -> None:
    async with stage(short_path, chips=1, gate=PATIENT) as node:
        await node.left_behind()
        await node.until(node.all_releasing, "the lock to be released")
        await node.reboot()
        await node.until_free()
        following = await node.run(pod("next"))
        assert following.refusals == 0


@pytest.mark.parametrize("stopped_for_good", [False, True])
async def test_a_daemon_that_is_away_while_a_pod_ends_finds_its_device_free(
    short_path: Path, stopped_for_good: bool
) -> None:
    async with stage(short_path, chips=1) as node:
        old = await node.run(pod("old"))
        await node.stop()
        await node.end(old)
        if stopped_for_good:  # kubelet too was down, and forgot the pod
            await node.kubelet.stop()
            await node.kubelet.start()
        await node.start_and_register()
        following = await node.submit(pod("next"))
        assert following.phase is not Phase.FAILED
        await node.running(following)
        assert await node.owners() == dict.fromkeys(node.ids(following), following.uid)


async def _all_are(node: Stage, state: str) -> bool:
    return set((await node.locks()).values()) == {state}


async def _allocations(node: Stage) -> list[Pod]:
    return [move["pod"] for move in await node.ever("held") if move["from"] == "free"]


async def test_a_daemon_that_cannot_look_at_the_hardware_when_it_starts_frees_none_of_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, discovery={"rescan": "10m"}) as node:
        old = await node.run(pod("old"))
        path = node.answers(old)[0].devices[0].host_path
        with node.held_open(path):
            await node.end(old)
            await node.until(node.all_releasing, "the lock to be released")
            await node.stop()
            bus = node.node.root.sys / "bus"
            away = bus.rename(bus.with_name("away"))
            await node.start_and_register()
            await node.until_problem("hardware", "is not a sysfs")
            await node.until_problem("first process scan", "")
            await node.for_some_beats()
            assert await node.all_releasing()
            away.rename(bus)
            await node.until_problem("hardware", "")
            assert await node.ever("free") == []
        await node.until_free()
