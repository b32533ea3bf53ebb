"""The file of node labels on real folders, and what keeps it true."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.labels import told
from fakes.smalldisk import mounted
from holdfast.app.watches.featurefile import LabelWatch
from holdfast.discovery.source import Source, Sources
from holdfast.errors import HostError
from holdfast.host.files.specfolder import FeatureFile
from holdfast.model.devices import Inventory
from holdfast.model.ids import ResourceName
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import LabelsSettings
from manual_clock import ManualClock
from waiting import beside, until

HOUR = 3600.0
GPUS = frozenset({ResourceName("nvidia.com/gpu")})


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, of 16 KiB."""
    with mounted(tmp_path / "small", size="16k") as folder:
        yield folder


def test_the_file_is_written_whole_for_everybody_to_read_and_only_when_it_differs(
    tmp_path: Path,
) -> None:
    file = FeatureFile(tmp_path)
    before = os.umask(0o077)
    try:
        assert file.hold("a=1\n")
    finally:
        os.umask(before)
    with file.path.open() as reader:
        assert file.hold("a=2\n")
        assert reader.read() == "a=1\n", "who reads it has it whole"
    written = file.path.stat()
    assert not file.hold("a=2\n")
    assert file.path.stat().st_mtime_ns == written.st_mtime_ns
    assert written.st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["holdfast"]


def test_what_a_crash_left_is_hidden_from_node_feature_discovery_and_goes(tmp_path: Path) -> None:
    (tmp_path / ".holdfast").write_text("half")
    FeatureFile(tmp_path).hold("a=1\n")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"holdfast": "a=1\n"}


def test_a_folder_of_labels_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    file = FeatureFile(tmp_path / "features.d")
    with pytest.raises(HostError, match="there is no such folder; install node-feature-discovery"):
        file.hold("a=1\n")
    assert not file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_the_former_labels(small: Path) -> None:
    file = FeatureFile(small)
    file.hold("a=1\n")
    with contextlib.suppress(OSError):
        (small / "others").write_bytes(bytes(1 << 20))
    with pytest.raises(HostError, match="No space left on device; see that .* has room"):
        file.hold("a=2\n" * 1024)
    assert file.path.read_text() == "a=1\n"
    assert sorted(each.name for each in small.iterdir()) == ["holdfast", "others"]


def test_a_folder_of_labels_that_is_read_only_is_told(small: Path) -> None:
    file = FeatureFile(small)
    file.hold("a=1\n")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with pytest.raises(HostError, match="Read-only file system; see that holdfast may write"):
        file.hold("a=2\n")
    with pytest.raises(HostError, match=r"cannot remove .*Read-only file system"):
        file.remove()
    assert not file.hold("a=1\n"), "what is right needs no writing"


class Rig(Source):
    """A watch on a folder; `told` is what the adapters say."""

    def __init__(self, folder: Path, lane: Lane) -> None:
        self.folder, self.lane = folder, lane
        self.clock = ManualClock()
        self.inventory = Watched(Inventory())
        self.told = {"example.com/chips": "8"}
        self.settings = Watched(LabelsSettings(enabled=True, folder=str(folder)))

    def watch(self) -> LabelWatch:
        return LabelWatch(
            self.settings,
            sources=Sources([self]),
            inventory=self.inventory,
            lanes=self,
            clock=self.clock,
        )

    def labels(self, inventory: Inventory) -> Mapping[str, str]:
        return self.told

    def open_lane(self, _name: str, _deadline: Watched[float]) -> Lane:
        return self.lane

    @property
    def file(self) -> Path:
        return self.folder / "holdfast"

    @property
    def written(self) -> dict[str, str]:
        return told(self.file.read_text()) if self.file.exists() else {}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Lane("labels", deadline=30.0)) as lane:
        yield Rig(tmp_path, lane)


async def test_each_new_inventory_has_its_labels_written(rig: Rig) -> None:
    async with beside(rig.watch().run()):
        await until(lambda: rig.written == {"example.com/chips": "8"}, what="the first labels")
        rig.told = {"example.com/chips": "7"}
        rig.inventory.set(Inventory(resources=(ResourceName("example.com/chip"),)))
        await until(lambda: rig.written == rig.told, what="the labels to follow")


async def test_labels_of_hardware_that_went_go_with_it(rig: Rig) -> None:
    watch = rig.watch()
    await watch.refresh()
    rig.told = {}
    with capture_logs() as logs:
        await watch.refresh()
    assert not rig.file.exists()
    assert [entry["event"] for entry in logs] == ["node labels removed"]


@pytest.mark.parametrize("before", ["a former daemon", "this one"])
async def test_labels_that_are_no_longer_wanted_are_removed(rig: Rig, before: str) -> None:
    watch = rig.watch()
    await watch.refresh()
    rig.inventory.set(Inventory(unseen=GPUS))
    rig.settings.set(LabelsSettings(folder=str(rig.folder)))
    if before == "a former daemon":
        watch = rig.watch()
    async with beside(watch.run()):
        await until(lambda: not rig.file.exists(), what="the file to go")
        await until(lambda: not list(watch.checks()), what="nothing to be checked")
        rig.settings.set(LabelsSettings(enabled=True, folder=str(rig.folder)))
        await until(lambda: rig.written == rig.told, what="the labels to be back")


async def test_labels_follow_their_folder(tmp_path: Path, rig: Rig) -> None:
    watch = rig.watch()
    await watch.refresh()
    other = tmp_path / "other"
    other.mkdir()
    rig.settings.set(LabelsSettings(enabled=True, folder=str(other)))
    await watch.refresh()
    assert not rig.file.exists()
    assert told((other / "holdfast").read_text()) == rig.told


async def test_labels_in_a_former_folder_are_removed_once_that_is_possible(
    small: Path, rig: Rig
) -> None:
    later = rig.folder / "later"
    later.mkdir()
    rig.settings.set(LabelsSettings(enabled=True, folder=str(small)))
    watch = rig.watch()
    await watch.refresh()
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    rig.settings.set(LabelsSettings(enabled=True, folder=str(later)))
    with capture_logs() as logs:
        for _ in range(2):
            await watch.refresh()
            assert told((later / "holdfast").read_text()) == rig.told
            (check,) = watch.checks()
            assert f"cannot remove {small}/holdfast: Read-only file system" in check.reason
    assert [entry["log_level"] for entry in logs] == ["info", "warning"], "it is told once"
    subprocess.run(["mount", "-o", "remount,rw", small], check=True)
    await watch.refresh()
    assert list(small.iterdir()) == []
    assert [check.reason for check in watch.checks()] == [""]


async def test_what_a_former_daemon_wrote_stays_while_gpus_are_not_found_yet(rig: Rig) -> None:
    """A label that is gone for a moment ends pods of DaemonSets that select by it."""
    rig.file.write_text("nvidia.com/gpu.count=8\n")
    rig.inventory.set(Inventory(unseen=GPUS))
    watch = rig.watch()
    await watch.refresh()
    assert rig.written == {"nvidia.com/gpu.count": "8"}
    rig.clock.shift(31.0)
    await watch.refresh()
    assert rig.written == rig.told


async def test_a_gpu_that_falls_silent_later_holds_no_label_up(rig: Rig) -> None:
    watch = rig.watch()
    await watch.refresh()
    rig.told = {"example.com/chips": "7"}
    rig.inventory.set(Inventory(unseen=GPUS))
    await watch.refresh()
    assert rig.written == rig.told


async def test_a_node_without_labels_need_not_wait_for_gpus(rig: Rig) -> None:
    rig.inventory.set(Inventory(unseen=GPUS))
    await rig.watch().refresh()
    assert rig.written == rig.told


async def test_labels_expire_a_day_after_the_last_daemon_and_are_renewed_before(rig: Rig) -> None:
    watch = rig.watch()
    await watch.refresh()
    first = rig.file.read_text()
    assert first.startswith("# +expiry-time=2023-11-15T22:13:20Z\n")
    rig.clock.shift(11 * HOUR)
    await watch.refresh()
    assert rig.file.read_text() == first, "each change makes node-feature-discovery work"
    rig.clock.shift(2 * HOUR)
    await watch.refresh()
    assert rig.file.read_text().startswith("# +expiry-time=2023-11-16T11:13:20Z\n")


@pytest.mark.parametrize(
    ("days", "expires"), [(1000, "2026-08-11T22:13:20Z"), (-1000, "2021-02-18T22:13:20Z")]
)
async def test_a_clock_that_was_set_changes_when_labels_expire(
    rig: Rig, days: int, expires: str
) -> None:
    watch = rig.watch()
    await watch.refresh()
    rig.clock.step_wall(days * 24 * HOUR)
    await watch.refresh()
    assert rig.file.read_text().startswith(f"# +expiry-time={expires}\n")


async def test_what_fails_is_told_once_and_tried_again(tmp_path: Path, rig: Rig) -> None:
    rig.folder = tmp_path / "later"
    rig.settings.set(LabelsSettings(enabled=True, folder=str(rig.folder)))
    watch = rig.watch()
    with capture_logs() as logs:
        for _ in range(3):
            await watch.refresh()
    assert [entry["event"] for entry in logs] == ["cannot write node labels"]
    (check,) = watch.checks()
    assert "there is no such folder" in check.reason
    assert not check.passes
    rig.folder.mkdir()
    await watch.refresh()
    (check,) = watch.checks()
    assert (check.passes, check.reason, rig.written) == (True, "", rig.told)
