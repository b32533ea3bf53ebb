"""Memory limits on trees of plain files, in every form the kernel and runtimes give them."""

import os
from pathlib import Path

import pytest

from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.root import HostRoot
from holdfast.model.node.memory import UNSEEN, CgroupMemory
from simulated.proctree import ProcTree

REAL = HostRoot.under()
MIB = 1 << 20
NODE = 1024 * MIB
UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
CONTAINER = "ab" * 32
POD = f"kubepods/burstable/pod{UID}"
_CACHE_V1 = f"inactive_file 1\ntotal_active_file {4 * MIB}\ntotal_inactive_file {6 * MIB}"
_CACHE_V2 = f"anon 5\ninactive_file {16 * MIB}\nactive_file {4 * MIB}\nunevictable {8 * MIB}"
PRIVATE = "cgroup:[4026532500]"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    (tree.root.proc / "meminfo").write_text(
        "MemTotal:        1048576 kB\nMemFree: 5 kB\nMemAvailable:     921600 kB\n"
    )
    return tree


def write(tree: ProcTree, path: str, text: object) -> None:
    file = tree.root.cgroup / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def mounted(tree: ProcTree, root: str) -> str:
    return f"33 32 0:29 {root} {tree.root.cgroup} ro,nosuid - cgroup2 cgroup rw\n"


class TestOwnLimit:
    def test_without_limits_it_is_what_the_node_has(self, tree: ProcTree) -> None:
        tree.myself(cgroup="/a/b")
        write(tree, "a/b/memory.max", "max")
        own = MemoryReader(tree.root).own()
        assert own.limit == NODE
        assert own.tightest is None
        assert own.headroom == 900 * MIB

    def test_the_tightest_ancestor_counts(self, tree: ProcTree) -> None:
        tree.myself(cgroup="/a/b/c")
        write(tree, "a/b/c/memory.max", "max")
        write(tree, "a/b/memory.max", 300 * MIB)
        write(tree, "a/memory.max", 200 * MIB)
        own = MemoryReader(tree.root).own()
        assert own.limit == 200 * MIB
        assert own.tightest is not None
        assert own.tightest.path == "/a"

    def test_a_container_sees_its_own_limit_at_the_top(self, tree: ProcTree) -> None:
        tree.myself(cgroup="/kubepods/not/below/our/mount")
        write(tree, "memory.max", 100 * MIB)
        assert MemoryReader(tree.root).own().limit == 100 * MIB

    def test_a_part_of_the_tree_is_mounted_as_older_runtimes_do(self, tree: ProcTree) -> None:
        tree.myself(cgroup="/docker/abc/sub", mountinfo=mounted(tree, "/docker/abc"))
        write(tree, "sub/memory.max", 60 * MIB)
        write(tree, "memory.max", 100 * MIB)
        assert MemoryReader(tree.root).own().limit == 60 * MIB

    def test_of_a_private_namespace_with_its_own_mount_only_our_own_shows(
        self, tree: ProcTree
    ) -> None:
        tree.myself(cgroup="/", cgroup_namespace=PRIVATE, mountinfo=mounted(tree, "/"))
        write(tree, "memory.max", 100 * MIB)
        own = MemoryReader(tree.root).own()
        assert [each.path for each in own.cgroups] == ["/"]
        assert own.limit == 100 * MIB

    @pytest.mark.parametrize("says_where", [True, False])
    def test_above_a_private_namespace_limits_show_in_the_hosts_tree(
        self, tree: ProcTree, *, says_where: bool
    ) -> None:
        mountinfo = mounted(tree, "/../../../..") if says_where else ""
        tree.myself(cgroup="/", cgroup_namespace=PRIVATE, mountinfo=mountinfo)
        write(tree, "cgroup.controllers", "memory")
        write(tree, f"{POD}/{CONTAINER}/cgroup.procs", os.getpid())
        write(tree, f"{POD}/{CONTAINER}/memory.max", 300 * MIB)
        write(tree, f"{POD}/memory.max", 64 * MIB)
        own = MemoryReader(tree.root).own()
        assert own.limit == 64 * MIB
        assert own.tightest is not None
        assert own.tightest.path == f"/{POD}"

    def test_version_1_has_its_own_files(self, tree: ProcTree) -> None:
        home = tree.myself()
        (home / "cgroup").write_text("4:memory:/pod\n1:cpu:/other\n0::/\n")
        write(tree, "memory/pod/memory.limit_in_bytes", 50 * MIB)
        write(tree, "memory/pod/memory.usage_in_bytes", 30 * MIB)
        write(tree, "memory/pod/memory.stat", _CACHE_V1)
        write(tree, "memory/memory.limit_in_bytes", 9223372036854771712)
        own = MemoryReader(tree.root).own()
        assert (own.limit, own.usage, own.headroom) == (50 * MIB, 20 * MIB, 30 * MIB)

    def test_version_1_tells_of_limits_that_no_mount_shows(self, tree: ProcTree) -> None:
        home = tree.myself(mountinfo="")
        (home / "cgroup").write_text("4:memory:/\n")
        write(tree, "memory/memory.limit_in_bytes", 9223372036854771712)
        write(tree, "memory/memory.stat", f"hierarchical_memory_limit {70 * MIB}")
        own = MemoryReader(tree.root).own()
        assert own.limit == 70 * MIB
        assert own.tightest is not None
        assert own.tightest.path == UNSEEN

    def test_in_hybrid_the_controller_may_be_on_either_version(self, tree: ProcTree) -> None:
        home = tree.myself()
        (home / "cgroup").write_text("4:memory,hugetlb:/a\n0::/b\n")
        write(tree, "memory/a/memory.limit_in_bytes", 90 * MIB)
        write(tree, "unified/b/cgroup.procs", "")
        assert MemoryReader(tree.root).own().limit == 90 * MIB
        (home / "cgroup").write_text("4:cpu:/a\n0::/b\n")
        write(tree, "unified/b/memory.max", 80 * MIB)
        assert MemoryReader(tree.root).own().limit == 80 * MIB

    @pytest.mark.parametrize(
        "text",
        ["", "banana", "-1", "0", "1e6", "9223372036854771712", "9" * 5000, str(4096 * MIB), "٣"],
    )
    def test_an_odd_or_larger_limit_is_none(self, tree: ProcTree, text: str) -> None:
        tree.myself(cgroup="/a")
        write(tree, "a/memory.max", text)
        assert MemoryReader(tree.root).own().limit == NODE

    def test_an_unreadable_limit_is_none(self, tree: ProcTree) -> None:
        tree.myself(cgroup="/a")
        write(tree, "memory.max", 700 * MIB)
        (tree.root.cgroup / "a/memory.max").mkdir(parents=True)
        assert MemoryReader(tree.root).own().limit == 700 * MIB

    def test_where_the_nodes_memory_cannot_be_read_a_cgroups_limit_counts(
        self, tree: ProcTree
    ) -> None:
        (tree.root.proc / "meminfo").write_text("MemTotal: none kB\n")
        tree.myself(cgroup="/a")
        write(tree, "a/memory.max", 700 * MIB)
        assert MemoryReader(tree.root).own().limit == 700 * MIB

    def test_nothing_to_read_is_unknown(self, tmp_path: Path) -> None:
        own = MemoryReader(HostRoot.under(tmp_path)).own()
        assert (own.limit, own.usage, own.headroom) == (None, None, None)
        assert MemoryReader(HostRoot.under(tmp_path)).resident() is None

    def test_this_machine_has_some(self) -> None:
        reader = MemoryReader(REAL)
        limit, resident = reader.own().limit, reader.resident()
        assert limit is not None
        assert resident is not None
        assert MIB < resident < limit


class TestOthers:
    def test_a_holders_usage_is_its_own_cgroups_and_its_headroom_the_least_around_it(
        self, tree: ProcTree
    ) -> None:
        tree.process(71, cgroup=f"/{POD}/{CONTAINER}")
        write(tree, f"{POD}/{CONTAINER}/memory.max", 300 * MIB)
        write(tree, f"{POD}/{CONTAINER}/memory.high", 250 * MIB)
        write(tree, f"{POD}/{CONTAINER}/memory.current", 120 * MIB)
        write(tree, f"{POD}/{CONTAINER}/memory.stat", _CACHE_V2)
        write(tree, f"{POD}/memory.max", 400 * MIB)
        write(tree, f"{POD}/memory.current", 350 * MIB)
        memory = MemoryReader(tree.root).of_process(71)
        assert memory.cgroups[0] == CgroupMemory(
            path=f"/{POD}/{CONTAINER}", limit=300 * MIB, high=250 * MIB, usage=100 * MIB
        )
        assert (memory.limit, memory.usage, memory.headroom) == (300 * MIB, 100 * MIB, 50 * MIB)

    def test_one_seen_from_a_private_namespace_is_found_in_the_hosts_tree(
        self, tree: ProcTree
    ) -> None:
        tree.myself(cgroup_namespace=PRIVATE, mountinfo=mounted(tree, "/../../.."))
        write(tree, "cgroup.controllers", "memory")
        tree.process(71, cgroup=f"/../../pod{UID}/{CONTAINER}")
        write(tree, f"{POD}/{CONTAINER}/memory.max", 300 * MIB)
        write(tree, f"{POD}/memory.max", 200 * MIB)
        tightest = MemoryReader(tree.root).of_process(71).tightest
        assert tightest is not None
        assert (tightest.path, tightest.limit) == (f"/{POD}", 200 * MIB)

    @pytest.mark.parametrize("root", ["/", "/../../..", ""])
    def test_one_out_of_sight_is_never_given_our_own_limit(self, tree: ProcTree, root: str) -> None:
        mountinfo = mounted(tree, root) if root else ""
        tree.myself(cgroup_namespace=PRIVATE, mountinfo=mountinfo)
        write(tree, "cgroup.controllers", "memory")
        write(tree, "cgroup.procs", os.getpid())
        write(tree, "memory.max", 64 * MIB)
        tree.process(71, cgroup=f"/../../pod{UID}/{CONTAINER}")
        tree.process(72, cgroup=f"/{POD}/{CONTAINER}")
        for pid in (71, 72):
            assert MemoryReader(tree.root).of_process(pid).cgroups == ()

    @pytest.mark.parametrize("root", ["/", "/../../.."])
    def test_one_out_of_sight_is_not_taken_for_a_cgroup_of_the_same_name(
        self, tree: ProcTree, root: str
    ) -> None:
        tree.myself(cgroup_namespace=PRIVATE, mountinfo=mounted(tree, root))
        write(tree, "cgroup.controllers", "memory")
        if root == "/":
            write(tree, "cgroup.procs", os.getpid())
        inside, outside = f"slice/{CONTAINER}", f"../../slice/{CONTAINER}"
        write(tree, f"{inside}/memory.max", 64 * MIB)
        write(tree, f"{outside}/memory.max", 64 * MIB)
        tree.process(71, cgroup=f"/../../slice/{CONTAINER}")
        assert MemoryReader(tree.root).of_process(71).cgroups == ()

    def test_one_in_the_hosts_own_root_may_use_the_node(self, tree: ProcTree) -> None:
        tree.process(71, cgroup="/")
        memory = MemoryReader(tree.root).of_process(71)
        assert [each.path for each in memory.cgroups] == ["/"]
        assert (memory.limit, memory.headroom) == (NODE, 900 * MIB)

    def test_one_that_is_gone_has_none(self, tree: ProcTree) -> None:
        assert MemoryReader(tree.root).of_process(4711).cgroups == ()


class TestMemlock:
    def limits(self, tree: ProcTree, soft: str, *, able: int = 0, locked: int = 0) -> None:
        home = tree.process(71)
        (home / "limits").write_text(
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max processes             unlimited            unlimited            processes \n"
            f"Max locked memory         {soft:<20} {soft:<20} bytes     \n"
        )
        with (home / "status").open("a") as status:
            status.write(f"VmLck:\t{locked:8} kB\nCapEff:\t{able:016x}\n")

    def test_what_runtimes_give_by_default_is_too_low_for_vfio(self, tree: ProcTree) -> None:
        self.limits(tree, "8388608", locked=4096)
        memlock = MemoryReader(tree.root).memlock(71)
        assert memlock is not None
        assert (memlock.limit, memlock.locked, memlock.too_low) == (8 * MIB, 4 * MIB, True)

    @pytest.mark.parametrize(
        ("soft", "able"), [("unlimited", 0), ("68719476736", 0), ("8388608", 1 << 14)]
    )
    def test_no_limit_gkes_and_the_capability_are_enough(
        self, tree: ProcTree, soft: str, able: int
    ) -> None:
        self.limits(tree, soft, able=able)
        memlock = MemoryReader(tree.root).memlock(71)
        assert memlock is not None
        assert not memlock.too_low

    @pytest.mark.parametrize("soft", ["", "banana", "-5", "9" * 5000])
    def test_garbage_is_unknown(self, tree: ProcTree, soft: str) -> None:
        self.limits(tree, soft)
        assert MemoryReader(tree.root).memlock(71) is None

    def test_a_real_process_has_one(self) -> None:
        assert MemoryReader(REAL).memlock(os.getpid()) is not None
