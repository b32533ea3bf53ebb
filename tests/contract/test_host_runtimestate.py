"""The files of container runtimes, laid out as containerd and runsc write them."""

import os
from pathlib import Path

import pytest

from fakes.runtimes import RUNSC, RuntimeFolder, spec
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.root import HostRoot
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import RuntimeState

UID = PodUid("6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b")
SLICE = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice:cri-containerd:s1"


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeFolder:
    return RuntimeFolder(HostRoot.under(tmp_path).run)


@pytest.fixture
def files(tmp_path: Path) -> RuntimeFiles:
    return RuntimeFiles(HostRoot.under(tmp_path))


@pytest.mark.parametrize("cgroup", [SLICE, f"/kubepods/besteffort/pod{UID}/s1"])
@pytest.mark.parametrize("place", ["containerd", "k3s/containerd"])
def test_a_pod_is_found_by_its_cgroup_where_older_containerd_does_not_name_it(
    runtime: RuntimeFolder, files: RuntimeFiles, cgroup: str, place: str
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", cgroup=cgroup), place=place)
    assert files.state(UID).only_pause
    runtime.bundle("c1", spec("container", "s1"), place=place)
    assert files.state(UID) == RuntimeState(containers=("c1",))


def test_a_container_that_is_gone_is_seen_to_be_gone(
    runtime: RuntimeFolder, files: RuntimeFiles
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    work = runtime.bundle("c1", spec("container", "s1", uid=UID))
    assert files.state(UID).containers == ("c1",)
    work.unlink()  # the folder outlives it for a moment
    assert files.state(UID).only_pause


def test_a_file_that_changes_is_read_anew(runtime: RuntimeFolder, files: RuntimeFiles) -> None:
    saved = spec("sandbox", "s1", uid=UID)
    runtime.saved("s1", "s1", 3, saved)
    work = runtime.saved("c1", "s1", 3, spec("container", "s1", uid=UID))
    assert files.state(UID).containers == ("c1",)
    before = work.stat()
    work.write_text(work.read_text().replace('"status": 3', '"status": 4'))
    os.utime(work, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert files.state(UID).only_pause


@pytest.mark.parametrize("place", [RUNSC, "runsc"])
@pytest.mark.parametrize(
    ("status", "running"),
    [
        *[(0, True), (1, True), (2, True), (3, True), (4, False)],
        # As Debian's runsc of 2024 was seen to write them.
        *[("created", True), ("running", True), ("paused", True), ("stopped", False)],
    ],
)
def test_runscs_own_word_counts_for_every_state_but_stopped(
    runtime: RuntimeFolder, files: RuntimeFiles, place: str, status: int | str, running: bool
) -> None:
    runtime.saved("s1", "s1", 3, spec("sandbox", "s1", cgroup=SLICE), place=place)
    runtime.saved("c1", "s1", status, spec("container", "s1"), place=place)
    assert bool(files.state(UID).containers) is running


def test_either_of_both_runtimes_files_shows_a_container(
    runtime: RuntimeFolder, files: RuntimeFiles
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    runtime.saved("s1", "s1", 3, spec("sandbox", "s1", uid=UID))
    assert files.state(UID).only_pause
    runtime.saved("c1", "s1", 3, spec("container", "s1", uid=UID))
    assert files.state(UID).containers == ("c1",)


def test_a_sandbox_that_nobody_asked_for_as_one_is_a_program(
    runtime: RuntimeFolder, files: RuntimeFiles
) -> None:
    runtime.saved("s1", "s1", 3, {"linux": {"cgroupsPath": SLICE}})
    assert files.state(UID).containers == ("s1",)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"annotations": 3}', '{"annotations": {"a": 1}}', "\xff"]
)
def test_a_file_that_makes_no_sense_leaves_everything_open(
    runtime: RuntimeFolder, files: RuntimeFiles, content: str
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    broken = runtime.bundle("c1", content)
    state = files.state(UID)
    assert not state.only_pause
    assert str(broken) in state.problem


def test_a_state_of_another_sandbox_that_makes_no_sense_says_nothing_of_this_one(
    runtime: RuntimeFolder, files: RuntimeFiles
) -> None:
    runtime.saved("s1", "s1", 3, spec("sandbox", "s1", uid=UID))
    runtime.saved("c9", "s9", 3, {}).write_text("{")
    assert files.state(UID).only_pause
    runtime.saved("c1", "s1", 3, {}).write_text("{")
    assert not files.state(UID).only_pause


def test_without_any_files_nothing_is_known(files: RuntimeFiles) -> None:
    state = files.state(UID)
    assert not state.only_pause
    assert "do not have the pod's sandbox" in state.problem


def test_a_folder_that_cannot_be_listed_leaves_everything_open(
    runtime: RuntimeFolder, files: RuntimeFiles
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    folder = runtime.run / "containerd/runsc"
    folder.symlink_to(folder)  # even root cannot follow a link to itself
    assert "cannot list" in files.state(UID).problem


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"annotations": ' + "[" * 100_000])
def test_a_file_that_cannot_be_understood_leaves_its_container_unknown(
    runtime: RuntimeFolder, files: RuntimeFiles, text: str
) -> None:
    runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    runtime.bundle("c1", spec("container", "s1", uid=UID)).write_text(text)
    runtime.saved("c2", "s1", 3, spec("container", "s1", uid=UID)).write_text(text)

    assert "cannot read" in files.state(UID).problem
