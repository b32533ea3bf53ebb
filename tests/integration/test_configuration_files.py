"""Changes of the configuration's files are heard of, whatever else is in their folder."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.app.watches.configuration import ConfigurationFiles, _states
from holdfast.host.files.inotify import PathWatcher
from holdfast.runtime.lane import Lane
from waiting import beside, until


class _Watched:
    """Two places that are watched, and how often a change of them was told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder / "named", folder / "etc" / "config.yaml"
        self.folder.mkdir()
        self.file.parent.mkdir()
        self.file.write_text("gate: {}\n")
        self.told = 0

    def read(self) -> None:
        self.told += 1

    async def listens(self) -> None:
        """Return when changes are told."""

        def heard() -> bool:
            (self.folder / "first").write_text("gate: {}\n")
            return self.told > 0

        await until(heard)
        self.told = 0

    async def tells(self) -> None:
        """Return when a change has been told, and forget it."""
        await until(lambda: self.told > 0, limit=60.0)
        self.told = 0


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[_Watched]:
    places, paths, lane = _Watched(tmp_path), PathWatcher(), Lane("configuration", deadline=30.0)
    files = ConfigurationFiles(
        [places.file, places.folder], paths=paths, lane=lane, read=places.read
    )
    task = asyncio.create_task(files.run())
    try:
        await places.listens()
        yield places
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        paths.close()
        lane.close()


async def test_folders_that_lead_back_to_themselves_are_not_followed(watched: _Watched) -> None:
    for name in ("one", "two"):
        (watched.folder / name).symlink_to(".")
    await watched.tells()
    (watched.folder / "first").write_text("gate: {wait: 1s}\n")
    await watched.tells()


async def test_a_folder_that_goes_and_comes_back_is_watched_again(watched: _Watched) -> None:
    gone = watched.folder.rename(watched.folder.parent / "gone")
    await watched.tells()
    watched.file.write_text("gate: {wait: 1s}\n")
    await watched.tells()
    gone.rename(watched.folder)
    watched.file.write_text("gate: {wait: 2s}\n")
    await watched.tells()
    (watched.folder / "second").write_text("gate: {}\n")
    await watched.tells()


async def test_a_folder_that_cannot_be_watched_is_told_once_while_another_is_watched(
    watched: _Watched,
) -> None:
    with capture_logs() as logs:
        shutil.rmtree(watched.file.parent)
        for content in ("gate: {wait: 1s}\n", "gate: {wait: 2s}\n", "gate: {wait: 3s}\n"):
            (watched.folder / "first").write_text(content)
            await watched.tells()

    told = [each for each in logs if each["event"] == "cannot watch the configuration"]
    assert [str(watched.file.parent) in each["reason"] for each in told] == [True]


async def test_what_changes_all_the_time_does_not_hide_a_change(watched: _Watched) -> None:
    async def write() -> None:
        for number in range(1_000_000):
            (watched.folder / "log").write_text(f"{number}\n")
            await asyncio.sleep(0.01)

    async with beside(write()):
        await watched.tells()
        await watched.tells()


def test_a_draft_in_a_folder_is_no_change_of_it_and_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    before = tuple(_states([tmp_path]))
    os.utime(tmp_path, (1.0, 1.0))
    (tmp_path / "..draft").write_text("x")
    assert tuple(_states([tmp_path])) == before
    (tmp_path / "..draft").rename(tmp_path / "b")
    assert tuple(_states([tmp_path])) != before
