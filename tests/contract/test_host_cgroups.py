"""Pods' cgroups on trees of plain files, in every form that kubelet and the kernel give them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups, cgroup_of
from holdfast.host.use.holders import HolderScan
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.model.node.cgroup_names import pod_of
from manual_clock import ManualClock
from simulated.proctree import ProcTree

UID = PodUid("6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b")
OTHER = PodUid("0123456789abcdef0123456789abcdef")
ID = "ab" * 32
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    (tree.root.cgroup / "cgroup.controllers").write_text("cpu memory pids\n")
    tree.myself()
    return tree


def make(tree: ProcTree, path: str, *pids: int) -> Path:
    folder = tree.root.cgroup / path
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    return folder


def look(cgroups: Cgroups, pod: PodUid = UID) -> PodSighting:
    found = cgroups.pod(pod)
    assert found is not None
    return found


PLACES = [
    f"kubepods/pod{UID}",
    f"kubepods/burstable/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
    f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
    f"kubepods.slice/kubepods-burstable.slice/{SLICE}",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-{SLICE}",
    f"system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-{SLICE}",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_pod_is_found_by_its_uid_with_all_that_lives_in_it(tree: ProcTree, place: str) -> None:
    folder = make(tree, place)
    make(tree, f"{place}/{ID}", 8, 7)
    make(tree, f"{place}/{ID}/nested", 9)
    found = look(Cgroups(tree.root))
    assert found.cgroup == f"/{place}"
    assert found.inode == folder.stat().st_ino
    assert found.processes == (7, 8, 9)


@pytest.mark.parametrize(
    ("name", "levels"), [("a", 1100), ("\udcff" * 250, 20), ("\U0001f4a5" * 63, 40)]
)
def test_cgroups_that_are_nested_however_deep_are_all_listed(
    tree: ProcTree, name: str, levels: int
) -> None:
    """A pod that may write its own cgroup may nest them where no path of 4 KiB leads."""
    folder = make(tree, f"kubepods/pod{UID}")
    before, opened = Path.cwd(), len([*Path("/proc/self/fd").iterdir()])
    try:
        os.chdir(folder)
        for _ in range(levels):
            Path(name).mkdir()
            os.chdir(name)
        Path("cgroup.procs").write_text("9\n")
        os.chdir(before)
        found = look(Cgroups(tree.root))
    finally:
        os.chdir(before)
        subprocess.run(["rm", "-r", folder], check=True)  # nobody else removes what is so deep
    assert found.processes == (9,)
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


def test_of_a_pod_with_too_many_cgroups_others_do_not_wait_for_the_list(tree: ProcTree) -> None:
    """Who lives in it, the kernel tells all the same; where nobody lives is not looked at."""
    make(tree, f"kubepods/pod{UID}", 5)
    empty = make(tree, f"kubepods/pod{UID}/{ID}")
    (empty / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (empty / "cgroup.procs").write_text("what is not read\n")
    found = look(Cgroups(tree.root))
    assert (found.processes, found.unlisted) == ((5,), "")
    late = Cgroups(tree.root).pod(UID, seconds=-1.0)
    assert late is not None
    assert (late.populated, late.processes) == (True, ())
    assert "too many cgroups" in late.unlisted


def test_what_is_told_of_a_cgroup_is_text_whatever_it_is_called(tree: ProcTree) -> None:
    make(tree, f"kubepods/pod{UID}")
    folder = make(tree, f"kubepods/pod{UID}/\udcff\x1b[2J")
    (folder / "cgroup.procs").write_text("7 all\n")
    found = look(Cgroups(tree.root))
    assert r"\udcff\x1b[2J" in found.unlisted


def test_a_pod_without_cgroup_is_none_and_appears_later(tree: ProcTree) -> None:
    cgroups = Cgroups(tree.root)
    assert cgroups.pod(UID) is None
    make(tree, f"kubepods/burstable/pod{UID}", 5)
    assert cgroups.pod(UID) is not None
    assert cgroups.pod(OTHER) is None
    make(tree, f"kubepods/besteffort/pod{OTHER}")
    assert not look(cgroups, OTHER).processes


def test_a_kubelet_that_changes_its_driver_is_followed(tree: ProcTree) -> None:
    cgroups = Cgroups(tree.root)
    make(tree, f"kubepods/pod{OTHER}")
    assert cgroups.pod(OTHER) is not None
    make(tree, f"kubepods.slice/kubepods-burstable.slice/{SLICE}", 5)
    assert cgroups.pod(UID) is not None


def test_a_kubelet_that_nests_its_cgroup_from_now_on_is_followed(tree: ProcTree) -> None:
    """What it had before stays, empty, until the machine boots."""
    clock = ManualClock()
    cgroups = Cgroups(tree.root, monotonic=clock.monotonic)
    make(tree, f"kubepods/pod{OTHER}")
    assert cgroups.pod(OTHER) is not None
    make(tree, f"pods/of/kubepods/pod{UID}", 5)
    clock.shift(60.0)
    assert cgroups.pod(UID) is not None
    assert cgroups.pod(OTHER) is not None


@pytest.mark.parametrize("used", ["a/kubepods", "b/kubepods"])
def test_of_two_cgroups_of_a_pod_the_one_with_processes_counts(tree: ProcTree, used: str) -> None:
    """A kubelet whose root is another leaves containers that run where they are."""
    for root in ("a/kubepods", "b/kubepods"):
        pod = make(tree, f"{root}/pod{UID}")
        if root != used:
            (pod / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    found = look(Cgroups(tree.root))
    assert found.cgroup == f"/{used}/pod{UID}"


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu,cpuacct", "systemd"])
def test_any_tree_of_version_1_will_do(tmp_path: Path, controller: str) -> None:
    tree = ProcTree(tmp_path)
    (tree.root.cgroup / "freezer").mkdir()
    make(tree, f"{controller}/kubepods/burstable/pod{UID}/{ID}", 5)
    cgroups = Cgroups(tree.root)
    found = look(cgroups)
    assert (found.cgroup, found.processes) == (f"/kubepods/burstable/pod{UID}", (5,))
    assert found.populated
    assert cgroups.inode(found.cgroup) == found.inode
    with pytest.raises(HostError, match=r"cannot write cgroup\.kill .*cgroup v1"):
        cgroups.kill(found.cgroup, found.inode)


@pytest.mark.parametrize(
    ("says", "populated", "listed", "pids"),
    [
        ("populated 1\nfrozen 0\n", True, (5,), (5,)),
        ("frozen 0\npopulated 1\n", True, (5,), (5,)),
        ("populated 0\nfrozen 0\n", False, (5,), ()),  # whoever was listed has ended since
        ("populated 1\nfrozen 0\n", True, (), ()),  # who forks on is in no list
    ],
)
def test_the_kernel_says_whether_a_cgroup_is_populated(
    tree: ProcTree, says: str, populated: bool, listed: tuple[int, ...], pids: tuple[int, ...]
) -> None:
    folder = make(tree, f"kubepods/pod{UID}")
    make(tree, f"kubepods/pod{UID}/{ID}", *listed)
    (folder / "cgroup.events").write_text(says)
    found = look(Cgroups(tree.root))
    assert (found.populated, found.processes, found.unlisted) == (populated, pids, "")


def test_whoever_is_in_another_pid_namespace_lives_and_has_no_pid(tree: ProcTree) -> None:
    folder = make(tree, f"kubepods/pod{UID}", 0)
    (folder / "cgroup.events").write_text("populated 1\n")
    found = look(Cgroups(tree.root))
    assert (found.populated, found.processes) == (True, ())


@pytest.mark.parametrize("broken", ["absent", "a loop", "empty", "populated 2\n", "frozen 0\n"])
def test_what_the_kernel_does_not_say_is_unknown(tree: ProcTree, broken: str) -> None:
    events = make(tree, f"kubepods/pod{UID}") / "cgroup.events"
    if broken == "absent":
        events.unlink()
    elif broken == "a loop":
        events.unlink()
        events.symlink_to(events.name)
    else:
        events.write_text(broken.removeprefix("empty"))
    found = look(Cgroups(tree.root))
    assert found.populated is None
    assert str(events) in found.unlisted


class _Changing(Cgroups):
    """Has done what it is told to each time that pids were listed."""

    def __init__(self, tree: ProcTree, *changes: Callable[[], object]) -> None:
        super().__init__(tree.root)
        self._changes = list(changes)

    def _list(self, folder: Path, seconds: float = 1.0) -> tuple[tuple[int, ...], str]:
        found = super()._list(folder, seconds)
        self._changes.pop(0)()
        return found


def test_a_cgroup_that_is_removed_while_it_is_read_is_none(tree: ProcTree) -> None:
    folder = make(tree, f"kubepods/pod{UID}", 5)
    assert _Changing(tree, lambda: shutil.rmtree(folder)).pod(UID) is None


def test_of_version_1_two_lists_have_to_be_empty(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    procs = make(tree, f"pids/kubepods/pod{UID}") / "cgroup.procs"
    for second, populated in (("", False), ("8\n", True), ("none\n", None)):
        procs.write_text("")
        found = look(_Changing(tree, partial(procs.write_text, second), list))
        assert found.populated is populated


@pytest.mark.parametrize(
    ("lists", "namespace", "populated"),
    [
        ([], "pid:[4026531836]", False),
        ([], "pid:[4026532222]", None),
        (["7\n"], "pid:[4026532222]", True),
        (["no number\n"], "pid:[4026531836]", None),
    ],
)
def test_without_the_kernels_word_as_with_version_1_lists_have_to_do(
    tmp_path: Path, lists: list[str], namespace: str, populated: bool | None
) -> None:
    tree = ProcTree(tmp_path)
    (tree.root.proc / "self/ns").mkdir(parents=True)
    (tree.root.proc / "self/ns/pid").symlink_to(namespace)
    folder = make(tree, f"pids/kubepods/pod{UID}/{ID}")
    for text in lists:
        (folder / "cgroup.procs").write_text(text)
    found = look(Cgroups(tree.root))
    assert found.populated is populated
    assert bool(found.unlisted) is (populated is None)


def test_events_are_there_while_the_cgroup_is(tree: ProcTree) -> None:
    cgroups = Cgroups(tree.root)
    folder = make(tree, f"kubepods/pod{UID}")
    assert cgroups.events_path(f"/kubepods/pod{UID}") == folder / "cgroup.events"
    assert cgroups.events_path(f"/kubepods/pod{OTHER}") is None
    assert cgroups.inode(f"/kubepods/pod{OTHER}") is None


def test_a_threaded_cgroup_that_refuses_to_list_is_passed_over(tree: ProcTree) -> None:
    make(tree, f"kubepods/pod{UID}", 5)
    odd = make(tree, f"kubepods/pod{UID}/{ID}")
    (odd / "cgroup.procs").write_text("not a pid\n")
    found = look(Cgroups(tree.root))
    assert found.processes == (5,)


def test_kill_and_freeze_write_the_kernels_files(tree: ProcTree) -> None:
    folder = make(tree, f"kubepods/pod{UID}", 5)
    for name in ("cgroup.kill", "cgroup.freeze"):
        (folder / name).write_text("")
    cgroups = Cgroups(tree.root)
    found = look(cgroups)
    assert not cgroups.is_frozen(found.cgroup)
    cgroups.freeze(found.cgroup, found.inode, frozen=True)
    assert cgroups.is_frozen(found.cgroup)
    cgroups.kill(found.cgroup, found.inode)
    assert [(folder / name).read_text() for name in ("cgroup.freeze", "cgroup.kill")] == ["1", "1"]


def test_a_cgroup_that_cannot_be_frozen_is_an_error_and_not_one_that_is_not_frozen(
    tree: ProcTree,
) -> None:
    make(tree, f"kubepods/pod{UID}", 5)
    with pytest.raises(HostError, match=r"has no file cgroup\.freeze"):
        Cgroups(tree.root).is_frozen(f"/kubepods/pod{UID}")


def test_a_cgroup_made_anew_under_the_same_name_is_not_killed(tree: ProcTree) -> None:
    folder = make(tree, f"kubepods/pod{UID}", 5)
    (folder / "cgroup.kill").write_text("")
    cgroups = Cgroups(tree.root)
    with pytest.raises(HostError, match="another cgroup has its name now"):
        cgroups.kill(f"/kubepods/pod{UID}", folder.stat().st_ino + 1)
    assert (folder / "cgroup.kill").read_text() == ""
    with pytest.raises(HostError, match="No such file"):
        cgroups.kill(f"/kubepods/pod{OTHER}", 1)


def test_a_path_from_a_private_namespace_becomes_the_hosts_by_the_pods_uid(tree: ProcTree) -> None:
    place = f"kubepods.slice/kubepods-burstable.slice/{SLICE}"
    make(tree, place)
    cgroups = Cgroups(tree.root)
    assert (
        cgroups.absolute(f"/../{SLICE}/cri-containerd-{ID}.scope")
        == f"/{place}/cri-containerd-{ID}.scope"
    )
    assert cgroups.absolute(f"/../../kubepods-burstable.slice/{SLICE}") == f"/{place}"
    make(tree, f"kubepods/besteffort/pod{OTHER}")
    assert cgroups.absolute(f"/../../pod{OTHER}/{ID}") == f"/kubepods/besteffort/pod{OTHER}/{ID}"


@pytest.mark.parametrize("above", ["", f"/system.slice/docker-{ID}.scope/{'n' * 250}"])
def test_other_paths_from_a_private_namespace_are_resolved_where_we_are_listed(
    tmp_path: Path, above: str
) -> None:
    tree = ProcTree(tmp_path)
    (tree.root.cgroup / "cgroup.controllers").write_text("")
    tree.myself(cgroup="/inner", cgroup_namespace="cgroup:[4026532999]")
    inner = make(tree, f"{above}/kubepods/pod{UID}/{ID}/inner".lstrip("/"))
    clock = ManualClock()
    cgroups = Cgroups(tree.root, monotonic=clock.monotonic)
    assert cgroups.is_private
    assert cgroups.absolute("/../x") == "/../x", "it was not told where that is"
    (inner / "cgroup.procs").write_text(f"{os.getpid()}\n")
    clock.shift(60.0)
    assert cgroups.absolute("/../../../x.service") == f"{above}/x.service"
    assert cgroups.absolute(f"/../{'cd' * 32}") == f"{above}/kubepods/pod{UID}/{'cd' * 32}"


def test_a_namespace_that_begins_at_the_top_of_a_tree_of_version_1_adds_nothing(
    tmp_path: Path,
) -> None:
    tree = ProcTree(tmp_path)
    tree.myself(cgroup_namespace="cgroup:[4026532999]")
    (make(tree, "pids") / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert not Cgroups(tree.root).namespace_root


def test_a_path_that_cannot_be_resolved_stays_as_it_is(tree: ProcTree) -> None:
    cgroups = Cgroups(tree.root)
    assert not cgroups.is_private
    assert cgroups.absolute("/../../system.slice") == "/../../system.slice"
    assert cgroups.absolute("/system.slice") == "/system.slice"


def test_a_path_stays_as_it_is_where_the_tree_cannot_be_looked_at(tree: ProcTree) -> None:
    tree.process(70, cgroup=f"/../../besteffort/pod{UID}/{ID}")
    controllers = tree.root.cgroup / "cgroup.controllers"
    controllers.unlink()
    controllers.symlink_to(controllers)  # stat(2) fails, though not because of ENOENT
    assert Cgroups(tree.root).of_process(70) == f"/../../besteffort/pod{UID}/{ID}"
    (holder,) = HolderScan(tree.root).named([70]).values()
    assert holder.pod == UID


def test_the_cgroup_of_a_process_is_absolute(tree: ProcTree) -> None:
    make(tree, f"kubepods/besteffort/pod{UID}")
    tree.process(70, cgroup=f"/../../besteffort/pod{UID}/{ID}")
    cgroups = Cgroups(tree.root)
    assert cgroups.of_process(70) == f"/kubepods/besteffort/pod{UID}/{ID}"
    assert cgroups.of_process(71) == ""


def test_who_hides_in_a_cgroup_that_is_not_told_is_no_program_of_the_nodes(tree: ProcTree) -> None:
    """Before Linux 6.8 the file of a process below a path of more than 4 KiB cannot be read."""
    told = tree.process(70) / "cgroup"
    told.unlink()
    told.mkdir()
    cgroups = Cgroups(tree.root)
    assert cgroups.pod_of_process(70) is not None
    assert pod_of(cgroups.of_process(70))[0] == cgroups.pod_of_process(70)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/system.slice/a.service\n", "/system.slice/a.service"),
        (
            f"11:pids:/kubepods/pod{UID}/{ID}\n1:name=systemd:/system.slice\n0::/\n",
            f"/kubepods/pod{UID}/{ID}",
        ),
        (
            f"4:memory:/\n3:cpu,cpuacct:/kubepods/pod{UID}\n0::/system.slice/containerd.service/very-long-name\n",
            f"/kubepods/pod{UID}",
        ),
        ("9:name=systemd:/\n4:memory:/process\n0::/\n", "/process"),
        ("0::/with:colons:inside\n", "/with:colons:inside"),
        ("", ""),
        ("garbage\n", ""),
    ],
)
def test_the_line_that_names_the_pod_counts(text: str, path: str) -> None:
    assert cgroup_of(text) == path


@pytest.mark.parametrize("where", ["", ID, f"{ID}/nested"])
@pytest.mark.parametrize("how", ["a folder", "a loop", "no numbers"])
def test_a_cgroup_that_cannot_be_read_is_not_one_without_processes(
    tree: ProcTree, where: str, how: str
) -> None:
    place = PLACES[1]
    make(tree, place)
    make(tree, f"{place}/{ID}", 7)
    make(tree, f"{place}/{ID}/nested", 8)
    odd = tree.root.cgroup / place / where / "cgroup.procs"
    odd.unlink()
    if how == "a folder":
        odd.mkdir()
    elif how == "a loop":
        odd.symlink_to(odd.name)
    else:
        odd.write_text("7 all\n")
    cgroups = Cgroups(tree.root)
    found = look(cgroups)
    assert f"{where}/cgroup.procs" in found.unlisted
    assert set(found.processes) == {7, 8} - {{"": 0, ID: 7}.get(where, 8)}, "the others are told"
    odd.rmdir() if how == "a folder" else odd.unlink()
    found = look(cgroups)
    assert not found.unlisted, "what vanished meanwhile has no processes"


def test_of_version_1_the_cgroup_that_names_a_pod_counts_however_long_others_are() -> None:
    text = f"""12:cpuset:/
7:name=systemd:/system.slice/a-service-with-a-very-long-name-that-keeps-its-tree-to-itself.service/{ID}
3:memory:/kubepods/burstable/pod{UID}/{ID}
1:pids:/kubepods
"""
    assert cgroup_of(text) == f"/kubepods/burstable/pod{UID}/{ID}"
