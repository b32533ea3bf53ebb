"""Who started a process of a pod: read from below up to the first parent that is not the pod's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.host.proc.procfs import (
    INIT_PID_NAMESPACE,
    ProcessFacts,
    Procfs,
    containing,
    outside_parent,
)
from holdfast.host.root import HostRoot
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Parent
from simulated.proctree import ProcTree

_INIT = Parent(pid=1, command="systemd", is_init=True)
_INSIDE = "pid:[4026532000]"
_POD = frozenset({10, 11, 12, 13})


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    made = ProcTree(tmp_path)
    made.process(1, comm="systemd", ppid=0, started=0)
    return made


def _outside(tree: ProcTree, pid: int) -> Parent | None:
    procfs = Procfs(tree.root)
    child = procfs.process(pid)
    assert child is not None
    return outside_parent(procfs, child, _POD, {})


def test_a_chain_inside_the_pod_that_ends_at_init_is_an_orphans(tree: ProcTree) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 12)):
        tree.process(pid, ppid=parent, started=pid)
    assert [_outside(tree, pid) for pid in sorted(_POD)] == [_INIT] * 4


class _Counting(Procfs):
    """Counts how many processes it reads."""

    reads = 0

    def process(self, pid: int) -> ProcessFacts | None:
        self.reads += 1
        return super().process(pid)


def test_in_a_long_chain_of_children_no_way_up_is_gone_twice(tree: ProcTree) -> None:
    """Else a pod with some thousand processes of which each began the next stops all looks."""
    chain = range(10, 110)
    for pid in chain:
        tree.process(pid, ppid=pid - 1 if pid > 10 else 1, started=pid)
    procfs, known = _Counting(tree.root), dict[ProcessId, Parent]()
    for pid in reversed(chain):
        child = Procfs(tree.root).process(pid)
        assert child is not None
        assert outside_parent(procfs, child, frozenset(chain), known) == _INIT
    assert procfs.reads == len(chain)


def test_the_first_parent_outside_the_pod_is_told_whatever_it_is_called(tree: ProcTree) -> None:
    tree.process(5, comm="acme) shim", ppid=1, started=1)
    tree.process(10, ppid=5, started=10)
    tree.process(11, ppid=10, started=11)
    assert _outside(tree, 11) == Parent(pid=5, command="acme) shim")


def test_a_kernel_thread_without_a_parent_is_not_init(tree: ProcTree) -> None:
    tree.process(2, comm="kthreadd", ppid=0, started=0, flags=0x00200000)
    tree.process(10, ppid=2, started=10)
    assert _outside(tree, 10) == Parent(pid=2, command="kthreadd")


def test_a_way_up_that_cannot_be_read_to_its_end_tells_nothing(tree: ProcTree) -> None:
    tree.process(10, ppid=9, started=10)  # its parent has just gone
    tree.process(11, ppid=10, started=11)
    tree.process(12, ppid=13, started=12)  # each the other's parent: pids were given anew meanwhile
    tree.process(13, ppid=12, started=12)
    assert [_outside(tree, pid) for pid in sorted(_POD)] == [None] * 4


class _Ending(Procfs):
    """Processes of which each ends once it was read, and its child has the next for a parent."""

    def __init__(self, tree: ProcTree, *parents: int) -> None:
        super().__init__(tree.root)
        self._tree, self._parents = tree, list(parents)

    def process(self, pid: int) -> ProcessFacts | None:
        found = super().process(pid)
        if pid == 10 and self._parents:
            shutil.rmtree(self._tree.root.proc / "10")
            self._tree.process(10, ppid=self._parents.pop(0), started=10)
        return found


@pytest.mark.parametrize(
    ("parents", "parent"), [((), None), ((1,), _INIT), ((8, 7, 1), _INIT), ((8,), None)]
)
def test_where_a_parent_has_just_ended_the_one_that_comes_after_it_counts(
    tree: ProcTree, parents: tuple[int, ...], parent: Parent | None
) -> None:
    tree.process(10, ppid=9, started=10)
    procfs = _Ending(tree, *parents)
    child = procfs.process(10)
    assert child is not None
    assert outside_parent(procfs, child, frozenset({10}), {}) == parent


def test_of_a_pid_that_was_given_away_meanwhile_no_parent_is_told(tree: ProcTree) -> None:
    tree.process(10, ppid=9, started=10)
    child = Procfs(tree.root).process(10)
    assert child is not None
    shutil.rmtree(tree.root.proc / "10")
    tree.process(10, ppid=1, started=11)
    assert outside_parent(Procfs(tree.root), child, frozenset({10}), {}) is None


def test_a_parent_is_as_old_as_its_child_or_older(tree: ProcTree) -> None:
    tree.process(10, ppid=1, started=20)
    tree.process(11, ppid=10, started=20)
    tree.process(12, ppid=10, started=19)
    assert _outside(tree, 11) == _INIT
    assert _outside(tree, 12) is None


def _in(home: Path, *, mounts: str, pids: str = INIT_PID_NAMESPACE) -> None:
    (home / "ns").mkdir()
    for kind, namespace in (("mnt", mounts), ("pid", pids)):
        if namespace:
            (home / "ns" / kind).symlink_to(namespace)


@pytest.mark.parametrize(
    ("parent", "child", "pids", "contains"),
    [
        ("mnt:[1]", "mnt:[2]", INIT_PID_NAMESPACE, True),
        ("mnt:[1]", "mnt:[1]", INIT_PID_NAMESPACE, False),
        # What cannot be read may be so.
        ("mnt:[1]", "", INIT_PID_NAMESPACE, True),
        ("", "mnt:[1]", INIT_PID_NAMESPACE, True),
        ("", "", INIT_PID_NAMESPACE, True),
        ("mnt:[1]", "mnt:[2]", "", True),
        # A container that makes namespaces of its own is no shim.
        ("mnt:[1]", "mnt:[2]", _INSIDE, False),
    ],
)
def test_a_shim_is_who_has_a_child_in_other_mounts_and_is_in_no_container(
    tree: ProcTree, parent: str, child: str, pids: str, contains: bool
) -> None:
    _in(tree.process(10, ppid=1), mounts=parent, pids=pids)
    _in(tree.process(11, ppid=10), mounts=child, pids=_INSIDE)
    assert containing(Procfs(tree.root), _POD) == (frozenset({10}) if contains else frozenset())


def test_one_child_in_other_mounts_is_enough(tree: ProcTree) -> None:
    for pid, parent, mounts in ((10, 1, "mnt:[1]"), (11, 10, "mnt:[1]"), (12, 10, "mnt:[2]")):
        _in(tree.process(pid, ppid=parent), mounts=mounts)
    assert containing(Procfs(tree.root), _POD) == frozenset({10})


@pytest.mark.parametrize(("mounts", "contains"), [("mnt:[2]", True), ("mnt:[1]", False)])
def test_a_child_counts_also_where_it_was_moved_out_of_the_pod(
    tree: ProcTree, mounts: str, contains: bool
) -> None:
    shim = tree.process(10, ppid=1)
    _in(shim, mounts="mnt:[1]")
    _in(tree.process(30, ppid=10), mounts=mounts)
    (shim / "task/10").mkdir(parents=True, exist_ok=True)
    (shim / "task/10/children").write_text("30 ")
    assert containing(Procfs(tree.root), _POD) == (frozenset({10}) if contains else frozenset())


@pytest.mark.parametrize(("threads", "contains"), [(1, False), (2, True)])
def test_a_child_that_has_ended_is_no_container(
    tree: ProcTree, threads: int, contains: bool
) -> None:
    _in(tree.process(10, ppid=1), mounts="mnt:[1]")
    _in(tree.process(11, ppid=10, state="Z", threads=threads), mounts="")
    assert containing(Procfs(tree.root), _POD) == (frozenset({10}) if contains else frozenset())


@pytest.mark.parametrize(("mounts", "contains"), [("mnt:[2]", True), ("mnt:[1]", False)])
def test_whose_leader_has_exited_is_known_by_its_threads(
    tree: ProcTree, mounts: str, contains: bool
) -> None:
    for pid, parent, where in ((10, 1, "mnt:[1]"), (11, 10, mounts)):
        _in(tree.process(pid, ppid=parent, state="Z", threads=2), mounts="")
        _in(tree.thread(pid, pid + 50), mounts=where)
    assert containing(Procfs(tree.root), _POD) == (frozenset({10}) if contains else frozenset())


def test_the_kernel_tells_whose_parent_a_process_is() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        told = Procfs(HostRoot.under()).children(os.getpid())
        child.kill()
    assert child.pid in told or not any(Path("/proc/self/task").glob("*/children"))
