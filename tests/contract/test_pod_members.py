"""What a look at the processes of a pod makes of those that end meanwhile, and of too many."""

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.procfs import ProcessFacts, Procfs
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.ending import Member, RuntimeState
from holdfast.model.use.holders import Sandbox
from holdfast.reclaim.pods import Pods
from holdfast.runtime.lane import Lane
from simulated.proctree import ProcTree

UID = PodUid("6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b")


class _Cgroups(Cgroups):
    """Lists for the pod what it is told to, one list after the other; the last one stays."""

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree.root)
        self.lists: list[tuple[int, ...]] = [()]
        self.populated = True
        self.unlisted = ""

    def pod(self, uid: PodUid, *, seconds: float = 0.0) -> PodSighting | None:
        pids = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return PodSighting(
            cgroup="/pod",
            inode=7,
            populated=self.populated,
            processes=pids,
            unlisted=self.unlisted,
        )


class _Procfs(Procfs):
    """Takes its time for the question whether a process runs a machine."""

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree.root)
        self.takes = 0.0
        self.asked: list[int] = []

    def runs_a_machine(self, pid: int) -> bool:
        time.sleep(self.takes)
        self.asked.append(pid)
        return super().runs_a_machine(pid)


class _Ending(_Procfs):
    """A process ends as soon as it was read for the second time, and its parent before it."""

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree)
        self._folder = tree.root.proc / "10"
        self._reads = 0

    def certain(self, pid: int) -> ProcessFacts | None:
        found = super().certain(pid)
        self._reads += pid == 10
        if pid == 10 and self._reads == 2:
            shutil.rmtree(self._folder)
        return found


class Scene:
    """A pod with made-up processes."""

    def __init__(self, folder: Path, lane: Lane, *, ends: bool = False) -> None:
        self.tree = ProcTree(folder)
        self.tree.process(1, comm="systemd", ppid=0, started=0)
        self.cgroups = _Cgroups(self.tree)
        self.procfs = (_Ending if ends else _Procfs)(self.tree)
        unused: Any = None
        self.pods = Pods(
            cgroups=self.cgroups,
            runtimes=unused,
            procfs=self.procfs,
            pidfds=unused,
            lane=lane,
            ledger=unused,
        )

    async def members(self) -> dict[int, Sandbox | None]:
        return {each.process.pid: each.sandbox for each in await self.pods.members(UID)}


async def test_who_has_ended_since_a_list_is_looked_for_in_another(
    tmp_path: Path, lane: Lane
) -> None:
    scene = Scene(tmp_path, lane)
    scene.tree.process(11)
    scene.cgroups.lists = [(9,), (10,), (11,)]
    assert list(await scene.members()) == [11]
    scene.cgroups.lists = [(9,)]
    assert not await scene.members(), "not for ever"


async def test_who_cannot_be_read_is_not_taken_for_gone(tmp_path: Path, lane: Lane) -> None:
    """It may be the one that saves all others, such as a pause; too many open files are enough."""
    scene = _scene_with_unread(tmp_path, lane, "10/stat")
    judged: dict[int, Sandbox | None] = {}
    with contextlib.suppress(HostError):
        judged = await scene.members()
    assert not judged, "nobody, without it"


async def test_whose_children_cannot_be_read_may_be_a_shim(tmp_path: Path, lane: Lane) -> None:
    scene = _scene_with_unread(tmp_path, lane, "10/task/10/children")
    with pytest.raises(HostError, match="cannot read"):
        await scene.members()


def _scene_with_unread(folder: Path, lane: Lane, unread: str) -> Scene:
    """Return a pod with two processes, and a file of one that is there and cannot be read."""
    scene = Scene(folder, lane)
    scene.tree.process(10, comm="pause")
    scene.tree.process(11, ppid=1)
    scene.cgroups.lists = [(10, 11)]
    file = scene.tree.root.proc / unread
    file.unlink(missing_ok=True)
    file.mkdir(parents=True)
    return scene


async def test_in_an_empty_cgroup_nobody_is_looked_for(tmp_path: Path, lane: Lane) -> None:
    scene = Scene(tmp_path, lane)
    scene.tree.process(11)
    scene.cgroups.lists, scene.cgroups.populated = [(11,)], False
    assert not await scene.members()


async def test_of_a_pod_that_cannot_all_be_listed_nobody_is_judged(
    tmp_path: Path, lane: Lane
) -> None:
    """Each is judged by the others: the one that is not listed may be the shim."""
    scene = Scene(tmp_path, lane)
    scene.tree.process(11)
    scene.cgroups.lists, scene.cgroups.unlisted = [(11,)], "cannot list it"
    told = ""
    try:
        await scene.members()
    except HostError as error:
        told = str(error)
    assert told == "cannot list it"


async def test_who_ends_while_its_parent_is_looked_for_is_not_there_any_more(
    tmp_path: Path, lane: Lane
) -> None:
    scene = Scene(tmp_path, lane, ends=True)
    scene.tree.process(10, ppid=9, started=10)
    scene.tree.process(11)
    scene.cgroups.lists = [(10, 11)]
    assert list(await scene.members()) == [11]


async def test_what_cannot_be_asked_in_time_may_be_a_machine(tmp_path: Path, lane: Lane) -> None:
    """The answer of kubelet's on which a process is ended must not grow old meanwhile."""
    scene = Scene(tmp_path, lane)
    pids = tuple(range(10, 20))
    for pid in pids:
        scene.tree.process(pid)
    scene.cgroups.lists = [pids]
    scene.procfs.takes = 0.1
    found = await scene.members()
    asked = len(scene.procfs.asked)
    assert 0 < asked < 5
    assert list(found.values()) == [None] * asked + [Sandbox.MACHINE] * (len(pids) - asked)
    scene.procfs.takes = 0.0
    assert set((await scene.members()).values()) == {None}


class _Silent(RuntimeFiles):
    """Gives no answer before it is told to."""

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree.root)
        self.go_on = threading.Event()

    def state(self, pod: PodUid) -> RuntimeState:
        self.go_on.wait(60.0)
        return super().state(pod)


async def test_files_of_the_runtime_that_give_no_answer_show_no_idle_sandbox(
    tmp_path: Path,
) -> None:
    """What runs in a sandbox is no process of the node."""
    files, short = _Silent(ProcTree(tmp_path)), Lane("pods", deadline=0.1)
    unused: Any = None
    pods = Pods(
        cgroups=unused, runtimes=files, procfs=unused, pidfds=unused, lane=short, ledger=unused
    )
    sentry = Member(process=ProcessId(7, 7), command="exe", sandbox=Sandbox.SENTRY)
    state = await pods.runtime_state(UID, [sentry])
    files.go_on.set()
    short.close(patience=5.0)
    assert state is not None
    assert not state.only_pause
    assert state.problem
