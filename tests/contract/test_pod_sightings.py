"""When pods' cgroups are read: after each change, by the kernel's events or in turn."""

import asyncio
import itertools
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.reclaim.sightings import PodSightings
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges
from manual_clock import ManualClock
from simulated.proctree import ProcTree
from waiting import until

A, B = PodUid("6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"), PodUid("0" * 32)
IN_IT, LATER = 41, 42
_TURN = 10.0


class _Cgroups(Cgroups):
    """Notes whose cgroup was read, and takes the processor time that the list of some `costs`."""

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree.root, monotonic=lambda: self.passed)
        self.passed = 0.0
        self.read: list[PodUid] = []
        self.costs: dict[PodUid, float] = {}
        self.spent = 0.0

    def pod(self, uid: PodUid, *, seconds: float = 1.0) -> PodSighting | None:
        self.read.append(uid)
        cost = self.costs.get(uid, 0.0)
        until = (began := time.thread_time()) + min(cost, seconds)
        while time.thread_time() < until:
            pass
        self.spent += max(0.0, until - began)
        return super().pod(uid, seconds=seconds if cost <= seconds else -1.0)


class Scene:
    """Pods' cgroups below one folder, and who looks at them."""

    def __init__(self, folder: Path, lane: Lane, *, version: int = 2) -> None:
        tree = ProcTree(folder)
        self.base = tree.root.cgroup
        if version == 2:
            (self.base / "cgroup.controllers").write_text("pids\n")
        else:
            self.base /= "pids"
        self.cgroups, self.paths, self.clock = _Cgroups(tree), PathWatcher(), ManualClock()
        self.nudges = Nudges()
        self.pods = PodSightings(
            cgroups=self.cgroups,
            paths=self.paths,
            lane=lane,
            clock=self.clock,
            nudges=self.nudges,
        )

    def folder(self, pod: PodUid) -> Path:
        return self.base / f"kubepods/pod{pod}"

    def make(self, pod: PodUid, *pids: int) -> None:
        self.folder(pod).mkdir(parents=True)
        (self.folder(pod) / "cgroup.events").write_text("populated 0\n")
        self.fill(pod, *pids)

    def fill(self, pod: PodUid, *pids: int, populated: bool | None = None) -> None:
        """Put *pids* alone into the cgroup, of which nobody is told."""
        (self.folder(pod) / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        events = self.folder(pod) / "cgroup.events"
        if events.exists():  # what is written through a mapping is not told
            says = bool(pids) if populated is None else populated
            with events.open("r+b") as file, mmap.mmap(file.fileno(), 0) as text:
                text[:] = b"populated %d\n" % says

    async def tell(self, pod: PodUid) -> None:
        """Let the kernel tell of a change, and wait until that was heard."""
        before, events = self.nudges.value, self.folder(pod) / "cgroup.events"
        text = events.read_text()
        with events.open("r+") as file:
            file.write(text)
        await until(lambda: self.nudges.value > before)

    async def read(self, *pods: PodUid, again: tuple[PodUid, ...] = ()) -> dict[PodUid, list[int]]:
        """Return the processes that a look shows, and note in `cgroups.read` whose were read."""
        self.cgroups.read.clear()
        found = await self.pods.sight(pods, again=again)
        return {pod: list(each.processes) for pod, each in found.items()}

    async def settled(self, *pods: PodUid) -> None:
        """Look until nothing more is read: each is watched, was read since, and had its turn."""
        for _ in range(8):
            await self.read(*pods)
        assert self.cgroups.read == []


@pytest.fixture
async def scene(tmp_path: Path, lane: Lane) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, lane)
    yield made
    made.paths.close()


async def test_a_pod_whose_cgroup_does_not_change_is_not_read_again(scene: Scene) -> None:
    scene.make(A, IN_IT)
    await scene.settled(A)
    assert await scene.read(A) == {A: [IN_IT]}
    assert scene.cgroups.read == []


async def test_a_change_that_the_kernel_tells_of_is_read(scene: Scene) -> None:
    scene.make(A, IN_IT)
    scene.make(B, IN_IT)
    await scene.settled(A, B)
    for pids in ((), (LATER,), (LATER, IN_IT)):
        scene.fill(A, *pids)
        await scene.tell(A)
        assert await scene.read(A, B) == {A: sorted(pids), B: [IN_IT]}
        assert scene.cgroups.read == [A]
        await scene.read(A, B)


async def test_a_change_before_the_watch_begins_is_read_with_the_next_look(scene: Scene) -> None:
    """The first look finds the cgroup, and only then can it be watched."""
    scene.make(A, IN_IT)
    await scene.read(A)
    scene.fill(A)
    assert await scene.read(A) == {A: []}


async def test_a_change_while_the_cgroup_is_read_is_read_with_the_next_look(
    scene: Scene, lane: Lane
) -> None:
    scene.make(A, IN_IT)
    await scene.settled(A)
    held = threading.Event()
    behind = asyncio.create_task(lane.run(held.wait))
    looking = asyncio.create_task(scene.pods.sight([A], again=[A]))
    await scene.tell(A)
    held.set()
    await asyncio.gather(behind, looking)
    scene.fill(A)
    assert await scene.read(A) == {A: []}


async def test_a_change_that_nobody_told_of_is_read_in_turn(scene: Scene) -> None:
    scene.make(A, IN_IT)
    await scene.settled(A)
    scene.fill(A, LATER)
    scene.clock.shift(_TURN - 1.0)
    assert await scene.read(A) == {A: [IN_IT]}
    scene.clock.shift(1.0)
    assert await scene.read(A) == {A: [LATER]}


async def test_of_many_pods_a_few_are_read_in_each_turn(scene: Scene) -> None:
    many = [PodUid(f"{number:032}") for number in range(20)]
    for pod in many:
        scene.make(pod, IN_IT)
    await scene.settled(*many)
    scene.clock.shift(_TURN)
    turns = []
    for _ in range(3):
        await scene.read(*many)
        turns.append(sorted(scene.cgroups.read))
    assert [len(each) for each in turns] == [8, 8, 4]
    assert sorted(itertools.chain(*turns)) == many


async def test_what_is_to_be_read_anew_is(scene: Scene) -> None:
    scene.make(A, IN_IT)
    await scene.settled(A)
    scene.fill(A, LATER)
    assert await scene.read(A, again=(A,)) == {A: [LATER]}


async def test_an_empty_cgroup_is_read_each_time_since_its_end_is_not_told(scene: Scene) -> None:
    scene.make(A)
    for _ in range(4):
        assert await scene.read(A) == {A: []}
    for name in ("cgroup.procs", "cgroup.events"):
        (scene.folder(A) / name).unlink()
    scene.folder(A).rmdir()
    assert await scene.read(A) == {}


async def test_a_pod_is_over_by_the_kernels_word_and_not_because_nobody_could_be_listed(
    scene: Scene,
) -> None:
    """A process that goes on by forking can be in no list, and one that has ended in the last."""
    scene.make(A, IN_IT)
    scene.fill(A, populated=True)
    for _ in range(4):
        found = await scene.pods.sight([A])
        assert (found[A].populated, found[A].processes) == (True, ())
        assert scene.cgroups.read == [A], "it is looked for again"
        scene.cgroups.read.clear()
    scene.fill(A, IN_IT, populated=False)
    found = await scene.pods.sight([A])
    assert (found[A].populated, found[A].processes) == (False, ())


async def test_a_part_that_cannot_be_listed_is_tried_in_turn_and_for_who_ends_each_time(
    scene: Scene,
) -> None:
    scene.make(A, IN_IT)
    broken = scene.folder(A) / "container"
    broken.mkdir()
    (broken / "cgroup.procs").write_text("not a number\n")
    await scene.settled(A)
    for _ in range(3):
        await scene.read(A, again=(A,))
        assert scene.cgroups.read == [A]
    await scene.settled(A)
    scene.clock.shift(_TURN)
    (broken / "cgroup.procs").write_text(f"{LATER}\n")
    assert await scene.read(A) == {A: [IN_IT, LATER]}


async def test_of_pods_with_too_many_cgroups_one_is_listed_in_a_look_and_no_other_pod_suffers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0.05
    monkeypatch.setattr("holdfast.host.cgroup.cgroups._LONGEST", longest)
    hostile = [PodUid(f"{number:032}") for number in range(1, 9)]
    pods = [*hostile, A]
    for pod in pods:
        scene.make(pod, IN_IT)
    scene.cgroups.costs = dict.fromkeys(hostile, 0.7 * longest)
    whole: list[PodUid] = []
    for _ in range(1 + 2 * len(hostile)):
        scene.cgroups.spent, scene.cgroups.passed = 0.0, scene.cgroups.passed + 100.0
        found = await scene.pods.sight(pods, again=pods)
        assert scene.cgroups.spent < 2 * longest, "it does not grow with the pods"
        assert {pod: each.populated for pod, each in found.items()} == dict.fromkeys(pods, True)
        assert not found[A].unlisted
        whole += [pod for pod in hostile if not found[pod].unlisted]
    assert {pod: whole.count(pod) for pod in hostile} == dict.fromkeys(hostile, 2), "in turn"
    scene.cgroups.spent = 0.0
    found = await scene.pods.sight(pods, again=pods)
    assert all(found[pod].unlisted for pod in hostile)
    assert scene.cgroups.spent == 0.0, "not so soon again"
    scene.cgroups.costs, scene.cgroups.passed = {}, scene.cgroups.passed + 100.0
    found = await scene.pods.sight(pods, again=pods)
    assert not any(each.unlisted for each in found.values())


async def test_a_pod_without_a_cgroup_is_looked_for_each_time(scene: Scene) -> None:
    scene.make(B, IN_IT)
    for _ in range(4):
        assert await scene.read(A) == {}
    scene.make(A, IN_IT)
    assert await scene.read(A) == {A: [IN_IT]}


async def test_without_events_as_with_version_1_each_look_reads_all(
    tmp_path: Path, lane: Lane
) -> None:
    scene = Scene(tmp_path, lane, version=1)
    scene.make(A, IN_IT)
    (scene.folder(A) / "cgroup.events").unlink()
    for pid in (IN_IT, LATER, IN_IT, LATER):
        scene.fill(A, pid)
        assert await scene.read(A) == {A: [pid]}
    scene.paths.close()


async def test_what_is_not_asked_about_is_not_watched(scene: Scene) -> None:
    scene.make(A, IN_IT)
    await scene.settled(A)
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted
    await scene.read()
    scene.fill(A)
    with (scene.folder(A) / "cgroup.events").open("r+") as events:
        events.write("populated 0\n")
    assert await scene.read(A) == {A: []}
    assert scene.nudges.value == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208 - only counted
