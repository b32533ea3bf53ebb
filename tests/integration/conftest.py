"""A node with GPUs, for the tests of a whole node.

The daemon on it is a process of its own: pynvml has one library for all of a process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.gpustage import RECLAIM, GpuStage
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
            "look": "100ms",
            "rescan": "200ms",
            "healthBeat": "200ms",
            "passDeviceSpecs": True,
            **gpu,
        }
        changes = {"reclaim": RECLAIM, **(others or {})}
        async with stage(
            short_path, chips=chips, own_process=True, gpu=settings, **changes
        ) as node:
            yield GpuStage(node, SimulatedGpus(node.node, control))

    return made
