"""What kubelet forgets, loses or gets wrong in its checkpoint costs no living pod its devices."""

import json
from pathlib import Path

from fakes.stage import TPU, Stage, asks, end, pod, stage
from simulated.pods import Phase, Pod, PodSpec

_AT_ONCE = {
    "mode": "terminate",
    "letGoGrace": "0s",
    "orphanGrace": "0s",
    "termGrace": "100ms",
    "unseenGrace": "0s",
}
_CHECKPOINT = "kubelet checkpoint"


async def _nothing_is_lost(
    node: Stage, living: Pod, *, state: str = "held", freed: int = 0
) -> None:
    """Look for a while: *living* keeps its devices and its processes; *freed* were free before."""
    await node.for_some_beats()
    assert living.phase is Phase.RUNNING
    assert node.node.lives(living.uid)
    assert set((await node.locks()).values()) == {state}
    assert len(await node.ever("free")) == freed
    assert await node.ever("reclaiming") == []


async def test_a_kubelet_that_restarts_without_its_api_server_ends_and_frees_nothing(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, reclaim=_AT_ONCE) as node:
        living = await node.run(pod("living", chips=2))
        await node.questions()
        await node.restart_kubelet(api_server=False)
        await node.questions()
        await _nothing_is_lost(node, living)
        assert await node.ever("releasing") == []
        assert node.healthy() == set(await node.locks())

        node.kubelet.sources_ready = True
        await node.questions()
        await _nothing_is_lost(node, living)
        await node.end(living)
        await node.until_free()


async def test_a_kubelet_that_lost_its_checkpoint_costs_no_living_pod_a_process(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, reclaim=_AT_ONCE) as node:
        living = await node.run(pod("living", chips=2))
        await node.questions()
        held = node.ids(living)
        await node.kubelet.stop()
        node.checkpoint.unlink()
        node.another_kubelet()
        await node.kubelet.start()
        await node.questions()
        await node.until_locks(dict.fromkeys(held, "releasing"))
        await _nothing_is_lost(node, living, state="releasing")

        # Kubelet gives its devices away; whom they are given to has to wait.
        other = await node.submit(pod("other", chips=2))
        await node.waiting(other, living, f"pid {node.orphans(living)[0]}")
        await node.end(living)
        await node.running(other)


async def test_what_one_container_has_stays_its_pods_though_another_is_given_other_devices(
    short_path: Path,
) -> None:
    """Kubelet allocates anew for a container that starts again, and not for one that runs."""
    containers = asks(TPU, 1, name="one", opens=False), asks(TPU, 1, name="two")
    async with stage(short_path, chips=3) as node:
        living = await node.run(PodSpec(name="living", containers=containers, restart="Always"))
        await node.until(lambda: living.starts == 2, "both containers to run")
        await node.questions()
        held = await node.locks()
        (free,) = node.healthy() - held.keys()
        await node.kubelet.stop()
        node.checkpoint.unlink()
        node.another_kubelet()
        await node.kubelet.start()
        await node.until_locks(dict.fromkeys(held, "releasing"))
        await node.kubelet.devices.grant(living, containers[1], TPU, [free])
        node.kubelet.devices.write()
        end(node.runtime.pid(living, containers[1]))
        await node.until(lambda: living.starts == 3, "the second to start again")
        await node.for_some_beats()
        assert await node.locks() == dict.fromkeys(held, "releasing") | {free: "held"}


async def test_a_checkpoint_without_a_pod_that_kubelet_wrote_for_no_list_ends_nothing(
    short_path: Path,
) -> None:
    """Kubelet drops the pods that are over at a List; what it wrote by itself tells less."""
    async with stage(short_path, chips=1, reclaim=_AT_ONCE) as node:
        living = await node.run(pod("living"))
        await node.questions()
        held = node.ids(living)
        await node.kubelet.pod_resources.stop()
        await node.until_problem(_CHECKPOINT, "cannot list pods")  # no question is under way
        node.kubelet.devices.entries.clear()
        node.kubelet.devices.write()
        await node.until_locks(dict.fromkeys(held, "releasing"))
        await _nothing_is_lost(node, living, state="releasing")


async def test_a_checkpoint_that_cannot_be_read_releases_nothing_and_is_named(
    short_path: Path,
) -> None:
    damages = ("missing", "empty", "truncated", "garbage", "another version", "a folder")
    async with stage(short_path, chips=2, reclaim=_AT_ONCE) as node:
        for damage in (*damages, "a bad link"):
            await _survives(node, damage)


async def _survives(node: Stage, damage: str) -> None:
    """Damage the checkpoint while a pod runs, and mend it once another has come."""
    living = await node.run(pod("living"))
    await node.questions()
    before = len(await node.ever("free"))
    node.kubelet.devices.writes = False
    _damage(node.checkpoint, damage)
    await node.until_problem(_CHECKPOINT, str(node.checkpoint))
    await _nothing_is_lost(node, living, freed=before)
    assert node.healthy() >= node.ids(living)

    # It starts all the same: the one live Allocation of these devices can only be its own.
    blind = await node.run(pod("blind"))
    if damage == "a folder":
        node.checkpoint.rmdir()
    node.kubelet.devices.writes = True
    node.kubelet.devices.write()
    await node.until_problem(_CHECKPOINT, "")
    both = {living.uid, blind.uid}
    await node.until(lambda: _owned_by(node, both), "both to be known again")
    await node.end(living)
    await node.until(lambda: _owned_by(node, {blind.uid}), "the first to be over")
    await node.end(blind)
    await node.until_free()


async def test_a_living_pod_that_stands_in_the_books_without_devices_keeps_them(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_AT_ONCE) as node:
        living = await node.run(pod("living"))
        await node.questions()
        (entry,) = node.kubelet.devices.entries
        node.kubelet.devices.entries.clear()
        node.kubelet.devices.note(entry.pod, TPU, ())
        await node.questions()
        await _nothing_is_lost(node, living)
        assert await node.ever("releasing") == []
        node.kubelet.devices.entries[:] = [entry]
        await node.questions()
        await node.end(living)
        await node.until_free()


async def test_while_pod_resources_is_down_nothing_is_released_and_it_is_named(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        old = await node.run(pod("old"))
        node.kubelet.pod_resources.down = True
        await node.until_problem(_CHECKPOINT, "kubelet is not up")
        await node.end(old)
        await node.for_some_beats()
        assert set((await node.locks()).values()) == {"held"}
        node.kubelet.pod_resources.down = False
        await node.until_free()
        await node.until_problem(_CHECKPOINT, "")


async def test_ids_of_a_former_plugin_are_adopted_and_withheld_while_their_pod_lives(
    short_path: Path,
) -> None:
    async with stage(short_path, start=False) as node:
        former = await node.former_plugins_pod("10")
        node.start()
        await node.until(lambda: len(node.healthy()) == 3, "all but its chip to be offered")
        await node.until(node.owners, "it to be adopted")
        owned = await node.owners()
        assert set(owned.values()) == {former.uid}
        assert not node.healthy() & owned.keys()
        assert not any(owned.keys() <= healthy for healthy in node.told_healthy())

        others = await node.run(pod("others", chips=3))
        assert not node.ids(others) & owned.keys()
        await node.end(former)
        await node.until(lambda: owned.keys() <= node.healthy(), "its chip to be offered")
        await node.run(pod("next"))


async def _owned_by(node: Stage, pods: set[str]) -> bool:
    return set((await node.owners()).values()) == pods


def _damage(checkpoint: Path, how: str) -> None:
    content = checkpoint.read_text()
    checkpoint.unlink()
    if how == "a folder":
        checkpoint.mkdir()
    elif how == "a bad link":
        checkpoint.symlink_to("x" * 300)  # the system has an error for that, other than absence
    elif how != "missing":
        other = json.loads(content)
        other["Data"] = {"Version": 3, "Pods": []}
        contents = {
            "empty": "",
            "truncated": content[: len(content) // 2],
            "garbage": "\0\1\2 not JSON",
            "another version": json.dumps(other),
        }
        checkpoint.write_text(contents[how])
