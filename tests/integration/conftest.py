"""A node with GPUs, for the tests of a whole node.

The daemon on it is a process of its own: pynvml has one library for all of a process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import ClaimStage, begin, claim_stage
from fakes.gpustage import OFTEN, RECLAIM, GpuStage
from fakes.nvml import build
from fakes.stage import stage
from simulated.gpus import SimulatedGpus
from simulated.nvml import CONTROL


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of a file system that has NVML where drivers put it."""
    root = tmp_path_factory.mktemp("driver")
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    build(folder)
    return root


@pytest.fixture
def gpu_stage(driver_root: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a node of the settings of its GPUs, and of *others*; its driver is not there yet."""

    @asynccontextmanager
    async def made(
        *, chips: int = 1, others: dict[str, Any] | None = None, **gpu: Any
    ) -> AsyncIterator[GpuStage]:
        control = short_path / "nvml"
        monkeypatch.setenv(CONTROL, str(control))
        settings = {
            "driverRoot": str(driver_root),
            "passDeviceSpecs": True,
            **OFTEN,
            **gpu,
        }
        changes = {"reclaim": RECLAIM, **(others or {})}
        async with stage(
            short_path, chips=chips, own_process=True, gpu=settings, **changes
        ) as node:
            yield GpuStage(node, SimulatedGpus(node.node, control))

    return made


@pytest.fixture
def claimed_gpus(driver_root: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a node whose *count* GPUs come by claims, of their settings, and of *others*."""

    @asynccontextmanager
    async def made(
        count: int, *, others: dict[str, Any] | None = None, **gpu: Any
    ) -> AsyncIterator[tuple[ClaimStage, SimulatedGpus]]:
        control = short_path / "nvml"
        monkeypatch.setenv(CONTROL, str(control))
        settings = {"driverRoot": str(driver_root), "api": "dra", **OFTEN, **gpu}
        changes = {"tpu": {"enabled": False}, **(others or {})}
        async with claim_stage(short_path, start=False, gpu=settings, **changes) as at:
            gpus = SimulatedGpus(at.node.node, control)
            gpus.arrive(count)
            await begin(at)
            yield at, gpus

    return made
