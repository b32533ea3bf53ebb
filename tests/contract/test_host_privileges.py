"""What a process may do and see, and which filesystem a path is on: real, and from odd files."""

import os
from pathlib import Path

import pytest

from holdfast.host.files.paths import Mount, mount_of, mounts
from holdfast.host.own import privileges
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from simulated.proctree import ProcTree

REAL = HostRoot.under()
_MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:21 / /sys ro,nosuid shared:2 - sysfs sysfs rw
24 23 0:22 / /sys/devices rw,nosuid shared:2 - sysfs sysfs rw
25 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate
26 22 0:24 / /mnt/a\\040folder rw master:1 propagate_from:2 - nfs4 server:/x ro,vers=4.2
27 22 0:25 / broken
"""


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def test_this_very_process_is_told_as_the_kernel_knows_it() -> None:
    found = privileges(REAL)

    assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
    assert found.sight.capabilities is not None
    assert found.has(0) == bool(found.sight.capabilities & 1)
    assert found.in_init_user_namespace is not None
    assert found == privileges(REAL, str(os.getpid()))


def test_a_process_that_is_gone_is_told_as_unknown_and_nothing_is_raised(tree: ProcTree) -> None:
    found = privileges(tree.root, "4711")

    assert (found.pid, found.uid, found.has(5)) == (None, None, None)
    assert found.in_init_user_namespace is None
    assert found.devices_writable is None


def test_mounts_are_told_with_their_kind_and_whether_they_can_be_written(tree: ProcTree) -> None:
    tree.myself(mountinfo=_MOUNTINFO)

    seen = mounts(tree.root)

    assert [mount.point for mount in seen] == [
        "/",
        "/sys",
        "/sys/devices",
        "/sys/fs/cgroup",
        "/mnt/a folder",
    ]
    assert [mount.writable for mount in seen] == [True, False, True, True, False]
    assert seen[3].options == ("rw", "nsdelegate")
    on = mount_of(seen, "/mnt/a folder/below/../x")
    assert on is not None
    assert on.kind == "nfs4"


def test_a_mount_over_devices_alone_makes_them_writable(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.myself(
        mountinfo=_MOUNTINFO.replace(" /", f" {tmp_path}/").replace(f"{tmp_path}/ /", "/ /")
    )

    found = privileges(tree.root)

    assert found.devices_writable is True
    assert found.bus_writable is False
    assert found.cgroup_writable is True


@pytest.mark.parametrize(
    ("files", "whole", "unified"),
    [
        (("cgroup.controllers",), True, True),
        (("cgroup.controllers", "cgroup.type"), False, True),
        (("systemd/cgroup.sane_behavior",), True, False),
        (("systemd/tasks",), False, False),
        (("memory/cgroup.sane_behavior", "unified/cgroup.controllers"), True, False),
        ((), False, False),
    ],
)
def test_only_the_very_top_of_the_cgroup_tree_is_the_whole_of_it(
    files: tuple[str, ...], whole: bool, unified: bool, tree: ProcTree
) -> None:
    (tree.myself() / "root").symlink_to("/")
    for name in files:
        file = tree.root.cgroup / name
        file.parent.mkdir(exist_ok=True)
        file.touch()

    found = privileges(tree.root)

    assert (found.whole_cgroup_tree, found.unified) == (whole, unified)


@pytest.mark.parametrize(
    ("texts", "label"),
    [
        ({}, ""),
        ({"attr/current": "unconfined\n"}, "unconfined"),
        (
            {"attr/current": "system_u:system_r:container_t:s0\0"},
            "system_u:system_r:container_t:s0",
        ),
        ({"attr/apparmor/current": "x (enforce)\n", "attr/current": "y"}, "x (enforce)"),
    ],
)
def test_the_label_of_apparmor_or_selinux_is_told_without_its_ends(
    texts: dict[str, str], label: str, tree: ProcTree
) -> None:
    home = tree.myself()
    for name, text in texts.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)

    assert privileges(tree.root).label == label


_POD = "/kubepods/besteffort/pod6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b/c1"


@pytest.mark.parametrize(
    ("cgroup", "namespace", "capabilities", "bound"),
    [
        pytest.param("/", "cgroup:[4026532000]", "00000000002c0004", True, id="the chart's pod"),
        pytest.param("/", "cgroup:[4026532000]", "000001ffffffffff", False, id="privileged"),
        pytest.param("/", "cgroup:[4026532000]", "0000003fffffffff", False, id="an older kernel"),
        pytest.param(_POD, "cgroup:[4026531835]", "00000000002c0004", True, id="cgroup v1"),
        pytest.param(
            "/system.slice/holdfast.service",
            "cgroup:[4026531835]",
            "00000000002c0004",
            False,
            id="a service of the host",
        ),
        pytest.param("/", "cgroup:[4026532000]", "", None, id="capabilities unknown"),
        pytest.param("/", "", "000001ffffffffff", None, id="namespace unknown"),
    ],
)
def test_only_a_pod_without_privileges_is_bound_by_its_runtimes_device_rules(
    cgroup: str, namespace: str, capabilities: str, bound: bool | None, tree: ProcTree
) -> None:
    home = tree.myself()
    (home / "cgroup").write_text(f"0::{cgroup}\n")
    (home / "status").write_text(f"CapEff:\t{capabilities}\n")
    (home / "ns").mkdir(exist_ok=True)
    (home / "ns/cgroup").unlink(missing_ok=True)
    if namespace:
        (home / "ns/cgroup").symlink_to(namespace)

    assert privileges(tree.root).pods_devices_only is bound


def test_who_has_a_file_locked_is_read_from_the_kernels_list(tree: ProcTree) -> None:
    locks = tree.root.proc / "locks"
    found = tree.root.proc.stat()
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = (
        f"1: POSIX  ADVISORY  WRITE 11 {file} 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 12 {file}8 0 EOF\n"
        f"2: -> FLOCK  ADVISORY  WRITE 13 {file} 0 EOF\n"
        "3: FLOCK\n"
    )
    for text, holder in (
        (f"{lines}4: FLOCK  ADVISORY  WRITE 14 {file} 0 EOF\n", 14),
        (lines, None),
    ):
        locks.write_text(text)
        assert Procfs(tree.root).flock_holder(tree.root.proc) == holder
    assert Procfs(tree.root).flock_holder(tree.root.proc / "absent") is None
    assert mount_of((Mount(point="/var", kind="xfs"),), "/etc") is None
