"""Pods that kubelet gave up, and what the daemon then does with what they had or were to have."""

import asyncio
import json
from pathlib import Path

from fakes.stage import TPU, Stage, end, pod, stage
from simulated.pods import Container, Phase, Pod, Workload

_ENDS = {"mode": "terminate", "letGoGrace": "200ms", "orphanGrace": "200ms"}


async def _given_up_before_it_started(node: Stage) -> tuple[Pod, int]:
    """Return a pod that was deleted while it was set up, and what it left in its cgroup."""
    setup = Container(name="setup", workload=Workload(orphan=-1))
    early = await node.submit(pod("early", init=(setup,)))
    await node.until(lambda: early.starts == 1, "the set-up to run")
    await node.until(lambda: _owned_by(node, early), "its chip to be locked")
    await node.questions()
    await node.end(early)
    return early, await node.orphan(early)


async def test_what_a_pod_that_never_started_left_behind_is_waited_for_by_name(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        early, left = await _given_up_before_it_started(node)
        await node.until(node.all_releasing, "its lock to be released")
        following = await node.submit(pod("next"))
        await node.waiting(following, early, f"pid {left}")
        end(left)
        await node.running(following)


async def test_what_a_pod_that_never_started_left_behind_is_ended_by_the_rules(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_ENDS | {"termGrace": "200ms"}) as node:
        early, _ = await _given_up_before_it_started(node)
        await node.until_free()
        await node.until(lambda: not node.orphans(early), "the node to have noticed its end")
        assert [move["pod"] for move in await node.ever("reclaiming")] == [early.uid]


async def test_a_pod_that_came_back_is_asked_to_end_anew_before_it_is_made_to(
    short_path: Path,
) -> None:
    uid = "7" * 32
    grace = 8.0  # long beside what a busy machine takes from here to the pod that came back
    reclaim = _ENDS | {"termGrace": f"{grace:g}s"}
    log = {"format": "json"}
    async with stage(short_path, chips=1, own_process=True, reclaim=reclaim, log=log) as node:
        old, left = await node.left_behind("static", uid=uid)
        await node.until(lambda: _signals(node) == ["SIGTERM"], "it to be asked to end")
        # Its manifest is back: it counts again, for longer than is left of the first end's grace.
        # Kubelet has not read that the device is withheld meanwhile.
        await node.until(lambda: not node.healthy(), "it to be withheld")
        for device in node.kubelet.devices.endpoints[TPU].devices.values():
            device.health = "Healthy"
        back = await node.submit(pod("static", uid=uid))
        await node.until(lambda: _owned_by(node, back), "it to have its chip again")
        await asyncio.sleep(grace)  # the proof is that nothing happens
        assert node.orphans(old) == (left,)
        await node.end(back)
        await node.until(lambda: not node.orphans(old), "it to be ended")
        assert _signals(node)[:2] == ["SIGTERM", "SIGTERM"]
        await node.until_free()


async def test_a_pod_that_is_given_a_quarantined_device_is_not_refused_but_waits(
    short_path: Path,
) -> None:
    times = {"termGrace": "100ms", "killGrace": "100ms"}
    reclaim = {**_ENDS, **times, "retry": {"first": "1h", "last": "1h"}}
    async with stage(short_path, chips=1, reclaim=reclaim) as node:
        (only,) = node.healthy()
        old = await node.run(pod("old", runs_for=0.0, orphan=1))
        with node.held_open("/dev/vfio/10"):
            await node.until(lambda: old.stopped, "the pod to be over")
            await node.until_locks({only: "quarantined"})
            # As long as kubelet has not read that the device is withheld.
            node.kubelet.devices.endpoints[TPU].devices[only].health = "Healthy"
            following = await node.kubelet.submit(pod("next"))
            assert following.phase is Phase.PENDING, following.message
            await node.waiting(following, only)
            assert await node.locks() == {only: "quarantined"}
            assert await node.queued() == 1
        await node.running(following)
        assert await node.owners() == {only: following.uid}


def _signals(node: Stage) -> list[str]:
    """Return the signals that the daemon has sent."""
    lines = (node.folder / "daemon.log").read_text().splitlines()
    words = [json.loads(line) for line in lines if line.startswith("{")]
    return [word["signal"] for word in words if word.get("event") == "signal sent"]


async def _owned_by(node: Stage, owner: Pod) -> bool:
    return set((await node.owners()).values()) == {owner.uid}
