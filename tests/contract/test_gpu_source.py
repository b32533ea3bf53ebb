"""When the inventory of GPUs begins NVML anew: real files of a node, a library that is counted."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.discovery.gpus import GpuSource
from holdfast.host.nvidia import NvidiaFiles
from holdfast.host.root import HostRoot
from holdfast.model.gpu import DriverState, GpuLinks, GpuReading, GpuUse
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock


@dataclass
class Library:
    """One that always answers; `others` begin it, too."""

    begun: int = 0
    opened: int = 0
    others: bool = True

    @property
    def in_use(self) -> bool:
        return self.others or self.begun > 0

    def open(self) -> None:
        self.begun += 1
        self.opened += 1

    def close(self) -> None:
        self.begun -= 1

    def read(self) -> GpuReading:
        return GpuReading(state=DriverState.READY)

    def use(self, uuid: str) -> GpuUse:
        raise NotImplementedError(uuid)

    def links(self, uuids: tuple[str, ...]) -> GpuLinks:
        assert not uuids
        return GpuLinks()


@dataclass
class Driver:
    proc: Path
    library: Library
    source: GpuSource

    def load(self, version: str) -> None:
        self.proc.mkdir(parents=True, exist_ok=True)
        (self.proc / "version").write_text(version)

    def unload(self) -> None:
        (self.proc / "version").unlink()
        self.proc.rmdir()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    root = HostRoot(
        **{name: tmp_path / name for name in ("sys", "proc", "dev", "cgroup", "etc", "run")}
    )
    library, lane = Library(), Lane("nvml", deadline=30.0)
    source = GpuSource(NvidiaFiles(root), lambda _: library, lane=lane, clock=ManualClock())
    yield Driver(tmp_path / "proc/driver/nvidia", library, source)
    lane.close(patience=5.0)


async def test_a_library_is_begun_once_while_the_driver_stays(driver: Driver) -> None:
    driver.load("550")
    assert [await driver.source.look() for _ in range(3)] == [DriverState.READY] * 3
    assert driver.library.opened == 1


async def test_with_a_driver_that_was_replaced_nvml_is_begun_anew_once_all_others_let_go(
    driver: Driver,
) -> None:
    """It would be counted into the former one, which may go on answering of what is gone."""
    driver.load("550")
    await driver.source.look()
    driver.load("570")
    assert await driver.source.look() is DriverState.NOT_READY
    assert driver.library.begun == 0, "whoever else has it open cannot bring the new one"
    assert await driver.source.look() is DriverState.NOT_READY
    assert "have not come back" in driver.source.reading.value.reason
    driver.library.others = False
    assert await driver.source.look() is DriverState.READY
    assert (driver.library.begun, driver.library.opened) == (1, 2)


async def test_with_a_driver_that_came_back_nvml_is_begun_anew_once_all_others_let_go(
    driver: Driver,
) -> None:
    driver.load("550")
    await driver.source.look()
    driver.unload()
    assert await driver.source.look() is DriverState.ABSENT
    driver.load("550")
    assert await driver.source.look() is DriverState.NOT_READY
    driver.library.others = False
    assert await driver.source.look() is DriverState.READY
