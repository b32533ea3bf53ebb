"""When the inventory of GPUs begins NVML anew: real files of a node, a library that is counted."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.root import HostRoot
from holdfast.model.nvidia.gpu import (
    DriverState,
    Gpu,
    GpuLinks,
    GpuProblem,
    GpuReading,
    GpuTraits,
    GpuUse,
)
from holdfast.model.nvidia.mig import MigStrategy
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.driver import DriverWatch
from manual_clock import ManualClock
from waiting import beside, until


@dataclass
class Library(Nvml):
    """One that always answers; `others` begin it, too."""

    begun: int = 0
    opened: int = 0
    others: bool = True
    version: str = ""
    asked: int = 0
    gpus: tuple[Gpu, ...] = ()

    @property
    def in_use(self) -> bool:
        return self.others or self.begun > 0

    def open(self) -> None:
        self.begun += 1
        self.opened += 1

    def close(self) -> None:
        self.begun -= 1

    def read(self) -> GpuReading:
        return GpuReading(state=DriverState.READY, driver_version=self.version, gpus=self.gpus)

    def use(self, uuid: str) -> GpuUse:
        raise NotImplementedError(uuid)

    def traits(self, uuids: Iterable[str]) -> Mapping[str, GpuTraits]:
        self.asked += 1
        return {}

    def links(self, uuids: Iterable[str]) -> GpuLinks:
        assert set(uuids) == {gpu.uuid for gpu in self.gpus}
        return GpuLinks()


@dataclass
class Driver:
    proc: Path
    library: Library
    source: DriverWatch
    clock: ManualClock

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
    clock = ManualClock()
    source = DriverWatch(
        files=NvidiaFiles(root, driver_root=""),
        make=lambda _: library,
        lane=lane,
        clock=clock,
        look=Watched(5.0),
        strategy=MigStrategy.NONE,
        rescan=Watched(30.0),
        imex_required=False,
        known={},
    )
    yield Driver(tmp_path / "proc/driver/nvidia", library, source, clock)
    lane.close(patience=5.0)


async def test_a_library_is_begun_once_while_the_driver_stays(driver: Driver) -> None:
    driver.load("550")
    assert [await driver.source.refresh() for _ in range(3)] == [DriverState.READY] * 3
    assert driver.library.opened == 1


async def test_with_a_driver_that_was_replaced_nvml_is_begun_anew_once_all_others_let_go(
    driver: Driver,
) -> None:
    """It would be counted into the former one, which may go on answering of what is gone."""
    driver.load("550")
    await driver.source.refresh()
    driver.load("570")
    assert await driver.source.refresh() is DriverState.NOT_READY
    assert driver.library.begun == 0, "whoever else has it open cannot bring the new one"
    assert await driver.source.refresh() is DriverState.NOT_READY
    assert "calls to the former driver hang" in driver.source.reading.value.reason
    driver.library.others = False
    assert await driver.source.refresh() is DriverState.READY
    assert (driver.library.begun, driver.library.opened) == (1, 2)


async def test_a_driver_that_cannot_be_looked_at_is_looked_at_again_after_a_pause(
    driver: Driver,
) -> None:
    driver.load("550")
    module = driver.proc.parents[2] / "sys/module/nvidia"
    module.parent.mkdir(parents=True)
    module.symlink_to(module)  # stat(2) fails, though not because of ENOENT
    with capture_logs() as logs:
        async with beside(driver.source.run()):
            for _ in range(3):
                await until(lambda: driver.clock.sleepers, limit=5.0)
                driver.clock.shift(5.0)
            module.unlink()
            await driver.clock.run_until(
                lambda: driver.source.reading.value.state is DriverState.READY
            )
    assert [each["log_level"] for each in logs].count("warning") == 1


async def test_what_gpus_are_is_asked_once_of_each_driver(driver: Driver) -> None:
    """Another driver supports another version of CUDA."""
    driver.library.version, driver.library.others = "550", False
    driver.load("550")
    for _ in range(3):
        await driver.source.refresh()
    assert driver.library.asked == 1
    driver.library.version = "570"
    driver.load("570")
    for _ in range(3):
        await driver.source.refresh()
    assert driver.library.asked == 2


async def test_what_gpus_are_is_asked_again_of_one_that_answers_again_or_was_divided(
    driver: Driver,
) -> None:
    """What it did not tell would be missing from slices, and its NVLinks from the topology."""
    lost = GpuProblem(asked="name", error="NVML_ERROR_GPU_IS_LOST", lost=True)
    well = Gpu(index=0, uuid="GPU-0")
    driver.library.version, driver.library.others = "550", False
    driver.load("550")
    # One that is lost says nothing new, so that what is known of it stays.
    states = (replace(well, problems=(lost,)), well, replace(well, problems=(lost,)))
    asked = []
    for gpu in (*states, well, replace(well, mig=True), replace(well, mig=True), well):
        driver.library.gpus = (gpu,)
        await driver.source.refresh()
        asked.append(driver.library.asked)
    assert asked == [1, 2, 2, 3, 4, 4, 5]


async def test_with_a_driver_that_came_back_nvml_is_begun_anew_once_all_others_let_go(
    driver: Driver,
) -> None:
    driver.load("550")
    await driver.source.refresh()
    driver.unload()
    assert await driver.source.refresh() is DriverState.ABSENT
    driver.load("550")
    assert await driver.source.refresh() is DriverState.NOT_READY
    driver.library.others = False
    assert await driver.source.refresh() is DriverState.READY


async def test_while_others_have_nvml_open_the_driver_is_still_held(driver: Driver) -> None:
    driver.load("550")
    await driver.source.refresh()
    await driver.source.let_go("drained for its removal")
    assert driver.source.holds_driver
    driver.library.others = False
    assert not driver.source.holds_driver
