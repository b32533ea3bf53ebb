"""GPUs that nobody can look at: whoever has one may have it still, and nothing of them is FREE.

Each is a restart of the real daemon, so that it knows of them by its ledger alone.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.gpustage import RECLAIM, GpuStage, wants
from fakes.stage import asks, end
from simulated.nvml import Slice, uuid
from simulated.pods import PodSpec

LOST = 15
SMALL = "nvidia.com/mig-1g.10gb"
DEBUG = "example.com/debug"


@asynccontextmanager
async def _restarted(
    node: GpuStage, made: Any, change: Callable[[], None], **gpu: Any
) -> AsyncIterator[None]:
    """End all of a pod while the daemon is down, and after *change* start it again."""
    orphan = await node.stage.orphan(made)
    await node.stage.stop()
    change()
    before = node.stage.settings["gpu"]
    node.stage.settings |= {"reclaim": {**RECLAIM, "mode": "observe"}, "gpu": {**before, **gpu}}
    node.stage.start()
    await node.stage.until(lambda: node.stage.asked("status"), "the daemon to answer")
    end(orphan)
    await node.stage.for_some_beats()
    yield
    await node.stage.stop()
    node.stage.settings["gpu"] = before
    node.stage.start()


async def _keeps_the_lost(node: GpuStage, made: Any) -> None:
    """Lose one GPU of two while the daemon is down: its lock stays until it can be seen again."""

    def lose() -> None:
        node.gpus.change(1, lambda card: replace(card, errors={"*": LOST}))

    async with _restarted(node, made, lose):
        await node.stage.until_locks({uuid(1): "releasing"})
        await node.stage.for_some_beats()
        assert await node.stage.locks() == {uuid(1): "releasing"}
        node.gpus.change(1, lambda card: replace(card, errors={}))
    await node.stage.until_free()


async def test_a_slice_whose_driver_is_away_at_a_start_is_not_taken_for_gone(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(migStrategy="mixed", passDeviceSpecs=False) as node:
        node.gpus.arrive(1, mig=1, slices=(Slice("MIG-a", gi=7),))
        await node.stage.until(lambda: node.stage.healthy(SMALL), "the slice to be offered")
        work = asks(SMALL, 1, runs_for=0.5, orphan=1)
        made = await node.stage.run(PodSpec(name="former", containers=(work,)))
        async with _restarted(node, made, node.gpus.leave):
            assert await node.stage.locks() == {"MIG-a": "releasing"}
            node.gpus.arrive(1, mig=1, slices=(Slice("MIG-a", gi=7),))
        await node.stage.until_free()


async def test_a_gpu_that_is_lost_at_a_start_is_not_taken_for_gone(gpu_stage: Any) -> None:
    """NVML does not tell who it is, so that it may be any that is not there."""
    async with gpu_stage() as node:
        await node.arrive(2)
        made = await node.stage.run(wants("former", 2, runs_for=0.5, orphan=2))
        await _keeps_the_lost(node, made)


async def test_nor_is_one_that_a_rule_has_moved_beside_another_that_can_be_seen(
    gpu_stage: Any,
) -> None:
    rule = {"match": {"uuid": "GPU-*"}, "resource": DEBUG}
    async with gpu_stage(others={"devices": [rule]}) as node:
        node.gpus.arrive(2)
        moved = {uuid(0), uuid(1)}
        await node.stage.until(lambda: node.stage.healthy(DEBUG) == moved, "both to be moved")
        work = asks(DEBUG, 2, runs_for=0.5, orphan=2)
        made = await node.stage.run(PodSpec(name="former", containers=(work,)))
        await _keeps_the_lost(node, made)


@pytest.mark.parametrize("there", [True, False], ids=["with the driver", "without"])
async def test_a_gpu_that_is_not_to_be_advertised_any_more_is_not_taken_for_gone(
    gpu_stage: Any, *, there: bool
) -> None:
    async with gpu_stage() as node:
        await node.arrive(1)
        made = await node.stage.run(wants("former", 1, runs_for=0.5, orphan=1))

        def leave() -> None:
            if not there:
                node.gpus.leave()

        async with _restarted(node, made, leave, enabled=False):
            assert await node.stage.locks() == {uuid(0): "releasing"}
            node.gpus.arrive(1)
        await node.stage.until_free()
