"""What the daemon tells scheduler and kubelet of its devices while claims come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import DRIVER, ClaimStage, claim_stage
from fakes.controlplane import NODE
from fakes.driver_side import dra_kubelet
from simulated.dramanager import DraManager


@pytest.fixture
async def at(short_path: Path) -> AsyncIterator[ClaimStage]:
    async with claim_stage(short_path) as made:
        yield made


def chips(at: ClaimStage) -> dict[str, dict[str, Any]]:
    return {
        device["name"]: device
        for each in at.plane.slices().values()
        for device in each["spec"].get("devices", ())
        if device["attributes"]["type"] == {"string": "tpu"}
    }


def kubelet(at: ClaimStage) -> AbstractAsyncContextManager[DraManager]:
    """Return the half of a kubelet that registers drivers and hears of health."""
    return dra_kubelet(at.root, DraManager.on_cluster(at.root, at.plane.store, NODE))


async def test_the_chips_are_in_slices_and_one_that_is_still_held_is_tainted(
    at: ClaimStage,
) -> None:
    await at.node.until(lambda: set(chips(at)) == {at.label(0), at.label(1)}, "the slices")
    claim = at.allocate("first", 0)
    await at.prepared(claim)
    held = at.opens(claim.pods[0], 0)
    ending = asyncio.create_task(at.unprepare(claim))
    await at.node.until(lambda: "taints" in chips(at)[at.label(0)], "the taint")
    (taint,) = chips(at)[at.label(0)]["taints"]
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/held", "NoSchedule")
    assert "taints" not in chips(at)[at.label(1)]
    await at.node.until(lambda: _offered(at, 1), "the other chip alone to be offered")
    held.end()
    await ending
    await at.node.until(lambda: "taints" not in chips(at)[at.label(0)], "the taint to go")
    await at.node.until(lambda: _offered(at, 2), "both chips to be offered")


async def _offered(at: ClaimStage, count: int) -> bool:
    """Tell whether `holdfast status` and `holdfast devices` show so many devices as offered."""
    status = await at.node.asked("status") or {"resources": []}
    devices = await at.node.asked("devices") or ()
    counted = sum(each["offered"] for each in status["resources"])
    listed = sum(each["offered"] for each in devices)
    return [counted, listed] == [count, count]


async def test_each_kubelet_is_told_of_health_and_finds_the_slices_again(at: ClaimStage) -> None:
    await at.node.until(lambda: len(chips(at)) == 2, "the slices")
    claim = at.allocate("first", 0)
    await at.prepared(claim)
    before = {each["metadata"]["uid"] for each in at.plane.slices().values()}
    for _ in range(2):  # the second one is kubelet after a restart
        async with kubelet(at) as manager:
            await at.node.until(lambda: manager.plugins.health.get(DRIVER), "the health of devices")
            told = manager.plugins.health[DRIVER]
            assert told[NODE, at.label(1)].message == ""
            assert "is held by " in told[NODE, at.label(0)].message
            assert "by claim team/first" in told[NODE, at.label(0)].message
            await at.node.until(lambda: len(chips(at)) == 2, "the slices to be there again")
            now = {each["metadata"]["uid"] for each in at.plane.slices().values()}
            assert not now & before
            before = now


async def test_the_node_is_ready_once_kubelet_and_the_scheduler_know_its_chips(
    at: ClaimStage,
) -> None:
    async def failing() -> dict[str, str]:
        status = await at.node.asked("status") or {"checks": []}
        wanted = {f"registered {DRIVER}", "ResourceSlices"}
        return {
            each["name"]: each["reason"]
            for each in status["checks"]
            if each["name"] in wanted and not each["passes"]
        }

    async def only_kubelet_fails() -> bool:
        return set(await failing()) == {f"registered {DRIVER}"}

    async def all_is_well() -> bool:
        return not await failing()

    await at.node.until(only_kubelet_fails, "the slices to be there")
    async with kubelet(at):
        await at.node.until(all_is_well, "kubelet to register the driver")
