"""NVML is let go before the driver is unloaded: nothing of it is open, and it comes back by itself."""

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.commands import drain_for_removal
from fakes.gpustage import GpuStage, wants
from simulated.gpus import NOT_LOADED


def keep_track(node: GpuStage, folder: Path) -> Path:
    """Return the file that NVML has open while anybody in a process has begun it."""
    kept = folder / "driver"
    kept.touch()
    node.gpus.show(replace(node.gpus.stub, keeps=str(kept)))
    return kept


def has_open(node: GpuStage, file: Path) -> bool:
    """Tell whether the daemon has *file* open, by what the kernel shows."""
    files = Path(f"/proc/{node.stage.process.pid}/fd")
    return str(file) in {str(each.readlink()) for each in files.iterdir() if each.is_symlink()}


async def test_while_the_driver_container_stops_the_daemon_has_nothing_of_the_driver_open(
    gpu_stage: Any, short_path: Path
) -> None:
    async with gpu_stage(rescan="1h") as node:
        ready = node.stage.node.root.run / "nvidia/validations/.driver-ctr-ready"
        ready.parent.mkdir(parents=True)
        ready.touch()
        kept = keep_track(node, short_path)
        await node.arrive(2)
        await node.stage.until(lambda: has_open(node, kept), "the driver to be open")
        ready.unlink()
        await node.until_healthy()
        await node.stage.until(lambda: not has_open(node, kept), "the driver to be let go")
        assert any("driver container is stopping" in each for each in await node.reasons(0))
        await node.stage.for_some_beats()
        assert not has_open(node, kept)
        ready.touch()
        await node.until_healthy(0, 1)


async def test_a_drain_for_removal_ends_with_the_driver_let_go_and_undrain_takes_it_up(
    gpu_stage: Any, short_path: Path
) -> None:
    async with gpu_stage() as node:
        kept = keep_track(node, short_path)
        await node.arrive(1)
        runs = await node.stage.run(wants("runs", 1))
        with drain_for_removal(node.stage.state) as asking:
            await node.stage.for_some_beats()
            assert asking.poll() is None
            assert has_open(node, kept), "only NVML tells when the pod's GPU is free"
            await node.stage.end(runs)
            out, _ = await asyncio.to_thread(asking.communicate, timeout=60)
        assert "holdfast has closed NVML" in out
        assert not has_open(node, kept)
        await node.stage.for_some_beats()
        assert not has_open(node, kept)
        assert (await node.stage.command("undrain")).returncode == 0
        await node.until_healthy(0)
        assert has_open(node, kept)


async def _let_go(node: GpuStage, kept: Path) -> None:
    """Drain the node, and return when the daemon has let the driver go."""
    await node.stage.asked("drain")

    async def removable() -> bool:
        return not await node.stage.asked("removable")

    await node.stage.until(removable, "nothing to be in the way")
    assert not has_open(node, kept)


async def _restart(node: GpuStage) -> None:
    """End the daemon as a crash does, and return when the next one has looked at the driver."""
    before = node.stage.log.count("NVIDIA driver state")
    node.stage.kill()
    node.stage.start()
    await node.stage.until(
        lambda: node.stage.log.count("NVIDIA driver state") > before, "a look at the driver"
    )


async def test_a_driver_that_was_let_go_for_removal_stays_so_over_a_restart_until_undrain(
    gpu_stage: Any, short_path: Path
) -> None:
    async with gpu_stage() as node:
        kept = keep_track(node, short_path)
        await node.arrive(1)
        await _let_go(node, kept)

        await _restart(node)

        await node.stage.for_some_beats()
        assert not has_open(node, kept)
        await node.stage.asked("undrain")
        await node.until_healthy(0)
        await node.stage.until(lambda: has_open(node, kept), "the driver to be taken up")

        await node.stage.asked("drain")
        await _restart(node)
        await node.stage.until(lambda: has_open(node, kept), "the driver, which was not let go")


async def test_a_driver_that_was_let_go_for_removal_and_loaded_anew_is_taken_up(
    gpu_stage: Any, short_path: Path
) -> None:
    async with gpu_stage() as node:
        kept = keep_track(node, short_path)
        await node.arrive(1)
        await _let_go(node, kept)
        node.gpus.leave()
        await node.stage.for_some_beats()
        node.gpus.arrive(1)
        await node.stage.until(lambda: has_open(node, kept), "the driver to be taken up")
        assert any("drain" in each for each in await node.reasons(0))


async def test_a_driver_that_does_not_answer_while_it_is_let_go_is_not_taken_up_once_it_does(
    gpu_stage: Any, short_path: Path
) -> None:
    async with gpu_stage() as node:
        kept = keep_track(node, short_path)
        await node.arrive(1)
        node.gpus.show(replace(node.gpus.stub, init=NOT_LOADED))
        node.gpus.replace_driver("560.28.03")
        await node.until_said(0, "cannot start NVML")
        await node.stage.until(lambda: not has_open(node, kept), "the former driver to be let go")
        await _let_go(node, kept)
        await node.until_said(0, "drained for removal")
        node.gpus.show(replace(node.gpus.stub, init=0))
        await _restart(node)
        await node.stage.for_some_beats()
        assert not has_open(node, kept)
