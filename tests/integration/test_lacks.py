"""What a daemon says that it may not do, from the files of a process."""

from pathlib import Path

import pytest

from fakes.stage import stage
from holdfast.app.wiring.hosts import lacks, missing_folders
from holdfast.host.root import HostRoot
from holdfast.settings import convert

_ALL = (1 << 41) - 1


def _root(path: Path, *, without: int | None = None, whole: bool = True) -> HostRoot:
    """Make a host whose only process is ours, root without one capability."""
    root = HostRoot.under(path)
    home = root.proc / "self"
    (home / "ns").mkdir(parents=True)
    mask = _ALL if without is None else _ALL & ~(1 << without)
    (home / "status").write_text(f"Name:\tholdfast\nUid:\t0\t0\t0\t0\nCapEff:\t{mask:016x}\n")
    (home / "mountinfo").write_text(f"1 0 0:1 / {root.cgroup} rw - cgroup2 cgroup rw\n")
    (home / "ns/pid").symlink_to("pid:[4026531836]")
    (home / "ns/user").symlink_to("user:[4026531837]")
    (home / "root").symlink_to("/")
    root.cgroup.mkdir(parents=True)
    (root.cgroup / "cgroup.controllers").touch()
    if not whole:
        (root.cgroup / "cgroup.type").touch()
    return root


def test_who_may_do_everything_lacks_nothing(tmp_path: Path) -> None:
    assert lacks(convert({}), _root(tmp_path)) == ()


@pytest.mark.parametrize(
    ("capability", "name"), [(2, "DAC_READ_SEARCH"), (5, "KILL"), (19, "SYS_PTRACE")]
)
def test_each_capability_less_is_named_with_what_is_lost(
    tmp_path: Path, capability: int, name: str
) -> None:
    (told,) = lacks(convert({}), _root(tmp_path, without=capability))
    assert told.startswith(f"without {name} ")
    assert f"add {name}" in told


def test_what_the_settings_do_not_ask_for_is_not_missed(tmp_path: Path) -> None:
    root = _root(tmp_path, without=5)
    assert lacks(convert({"reclaim": {"mode": "observe"}}), root) == ()


def test_the_container_s_own_part_of_the_cgroup_tree_is_not_the_node_s(tmp_path: Path) -> None:
    (told,) = lacks(convert({}), _root(tmp_path, whole=False))
    assert "volumes.cgroup" in told


def test_what_cannot_be_told_is_not_said_to_be_missing(tmp_path: Path) -> None:
    assert lacks(convert({}), HostRoot.under(tmp_path)) == ()


def test_without_kubelets_folder_of_pods_it_is_told_what_is_lost_and_where_it_is(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pod-resources"
    settings = convert({"kubelet": {"podResourcesSocket": str(folder / "kubelet.sock")}})
    (told,) = missing_folders(settings, _root(tmp_path / "host"))
    assert told.startswith(f"without {folder} holdfast cannot ask kubelet for its pods")
    assert "kubelet.podResourcesSocket" in told

    folder.mkdir()
    assert missing_folders(settings, _root(tmp_path / "other")) == ()


@pytest.mark.parametrize(
    ("kind", "why"), [("overlay", "the next container"), ("tmpfs", "a reboot")]
)
def test_a_state_folder_that_goes_with_the_container_is_told(
    tmp_path: Path, kind: str, why: str
) -> None:
    root = _root(tmp_path)
    (root.proc / "self/mountinfo").write_text(f"1 0 0:1 / / rw - {kind} {kind} rw\n")
    settings = convert({"kubelet": {"podResourcesSocket": str(tmp_path / "kubelet.sock")}})
    (told,) = missing_folders(settings, root)
    assert "/var/lib/holdfast is on /" in told
    assert why in told


async def test_a_daemon_that_is_blind_says_so_once_when_it_starts(short_path: Path) -> None:
    """As with the manifest of NVIDIA's plugin: no hostPID, no capability, no tree of cgroups."""
    async with stage(short_path, chips=1, start=False, own_process=True) as node:
        home = node.node.root.proc / "self"
        (home / "status").unlink()
        (home / "ns/pid").unlink()
        (home / "status").write_text(f"Uid:\t0\t0\t0\t0\nCapEff:\t{0:016x}\n")
        (home / "ns/pid").symlink_to("pid:[4026532001]")
        await node.start_and_register()
        await node.until(lambda: "without KILL" in node.log, "the lacks to be told")
        await node.for_some_beats()

        told = [line for line in node.log.splitlines() if "permission or mount missing" in line]
        for need in ("hostPID", "SYS_PTRACE", "DAC_READ_SEARCH", "KILL"):
            (line,) = [each for each in told if f"without {need} " in each]
            assert '"level": "warning"' in line
