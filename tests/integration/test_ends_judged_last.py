"""Who comes, goes or was not meant while a pod's processes are ended, and what changes meanwhile."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import KUBELET, X, Y, unreadable
from fakes.reclaimscene import Living, ReclaimScene, reclaim_scene
from holdfast.host.proc.procfs import Procfs
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Grounds, ReclaimStep, Warrant
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Duration, Interval

_KINDS = [("cgroup.kill",), ("cgroup.freeze",), ()]
"""What a kernel has to end a cgroup as one: cgroup.kill, the freezer alone, or nothing."""
_SLOW = ReclaimSettings(
    evidence_age=Interval(60), term_grace=Duration(10), kill_grace=Duration(1000)
)
"""What kubelet said, and the word of a person, are good for as long as a slow machine takes."""
_BEFORE_SIGKILL = (0.0, 10.0)
"""Seconds after each beat: the decision, and SIGTERM."""
_LISTS_BEFORE_KILL = 3


def _process(scene: ReclaimScene, living: Living) -> ProcessId:
    facts = Procfs(scene.tree.root).process(living.pid)
    assert facts is not None
    return facts.process


async def _until_sigkill(scene: ReclaimScene) -> None:
    """Let all pass up to the beat that sends SIGKILL, on a person's word, without graces."""
    scene.settings = _SLOW
    scene.reclaimer.retry(X, Grounds.FORCE)
    for seconds in _BEFORE_SIGKILL:
        await scene.beat()
        scene.clock.pass_by(seconds)


async def _ended(scene: ReclaimScene, living: Living) -> None:
    """Let time pass until *living* is ended: a beat that is too slow to judge it spares it."""
    limit = time.monotonic() + 60.0
    while living.lives:
        assert time.monotonic() < limit
        await scene.beat()
        scene.clock.pass_by(10.0)


@pytest.mark.parametrize("files", _KINDS)
async def test_who_was_not_meant_does_not_end_with_who_was(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    """Of a pod that lives only the holders of one device are meant."""
    async with reclaim_scene(tmp_path, files=files) as scene:
        scene.settings = _SLOW
        meant, other = scene.start(deaf=True), scene.start(deaf=True)
        warrant = Warrant(
            gap="",
            grounds=Grounds.FORCE,
            lock=scene.lock,
            pod=X,
            only=frozenset({_process(scene, meant)}),
        )
        ending, evidence = scene.reclaimer.ending, scene.reclaimer.evidence
        assert await ending.end(warrant, ReclaimStep.KILL, evidence)
        assert not meant.lives
        assert other.lives
        assert not scene.kernel.killed


async def test_a_cgroup_that_is_empty_at_the_last_moment_is_not_ended(tmp_path: Path) -> None:
    """Whoever enters it then was judged by nobody."""
    async with reclaim_scene(tmp_path) as scene:
        gone = scene.start(deaf=True)
        await _until_sigkill(scene)
        lists = [lambda: None] * _LISTS_BEFORE_KILL + [lambda: scene.leave(gone.pid)]
        late: list[Living] = []
        scene.kernel.before_list = lambda: lists.pop(0)() if lists else None
        scene.kernel.before_kill = lambda: late.append(scene.start())
        await scene.beat()
        assert not lists
        assert all(each.lives for each in late)
        assert not scene.kernel.killed


@pytest.mark.parametrize("files", _KINDS)
async def test_of_a_pod_that_may_live_a_word_ends_no_process_that_comes_meanwhile(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    """Kubelet has not let go of it: nobody can say which of its starts are new."""
    async with reclaim_scene(tmp_path, files=files) as scene:
        victim = scene.start(deaf=True)
        await scene.note(let_go_at=None)
        late: list[Living] = []
        scene.kernel.before_kill = scene.kernel.before_freeze = lambda: late.append(scene.start())
        await _until_sigkill(scene)
        await scene.beat()
        assert not victim.lives
        assert all(each.lives for each in late)
        assert not scene.kernel.killed


async def test_of_a_pod_that_kubelet_counts_again_a_word_freezes_nobody(tmp_path: Path) -> None:
    """It does so once the kernel has refused to end the cgroup: a container may start in it."""
    async with reclaim_scene(tmp_path, files=("cgroup.freeze",)) as scene:
        victim = scene.start(deaf=True)
        await _until_sigkill(scene)
        loop = asyncio.get_running_loop()

        def counted() -> None:
            scene.kernel.before_list = lambda: None
            asyncio.run_coroutine_threadsafe(scene.note(let_go_at=None), loop).result(60.0)

        def refused() -> None:
            scene.kernel.before_list = counted

        scene.kernel.before_kill = refused
        await scene.beat()
        assert victim.lives
        assert not scene.kernel.froze


async def test_who_leaves_a_frozen_cgroup_before_it_is_ended_is_spared(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=("cgroup.freeze",)) as scene:
        scene.make_pod(Y)
        orphan, victim = scene.start(deaf=True), scene.start(deaf=True)
        await _until_sigkill(scene)

        def looked(_count: int) -> None:
            if scene.kernel.froze == [True]:  # it is listed there for the first time
                scene.pods.looked = lambda _look: None
                scene.leave(victim.pid)
                scene.enter(victim.pid, Y)

        scene.pods.looked = looked
        await scene.beat()
        assert not orphan.lives
        assert victim.lives


async def test_a_checkpoint_that_cannot_be_read_any_more_saves_the_pod(tmp_path: Path) -> None:
    """Kubelet may have put the pod back into it meanwhile."""
    async with reclaim_scene(tmp_path) as scene:
        scene.settings = _SLOW
        victim = scene.start()

        def spoil(_look: int) -> None:
            scene.reader.view.set(unreadable(scene.reader.view.value))

        scene.pods.looked = spoil
        await scene.wait_long()
        assert victim.lives
        scene.pods.looked = lambda _look: None
        await _ended(scene, victim)


@pytest.mark.parametrize("by", ["a later let-go", "the same let-go again", "another kubelet"])
async def test_new_evidence_that_kubelet_let_go_has_a_grace_of_its_own(
    tmp_path: Path, by: str
) -> None:
    """Between the two the pod was counted, or there was a kubelet that had not read its pods."""
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.settings = replace(_SLOW, let_go_grace=Duration(200), orphan_grace=Duration(0))
        await scene.beat()
        scene.clock.pass_by(190.0)
        if by == "another kubelet":
            kubelet = ProcessId(KUBELET.pid, KUBELET.start_ticks + 1)
            scene.reader.kubelet = kubelet
            scene.reader.write()
            await scene.note(counted_by=kubelet)
        elif by == "the same let-go again":  # a claim came and went since kubelet was asked
            before = scene.ledger.book.value.pods[X].let_go_at
            await scene.note(let_go_at=None)
            await scene.beat()
            await scene.note(let_go_at=before)
        else:
            await scene.note(let_go_at=scene.clock.uptime())
        for _ in range(5):
            await scene.beat()
            scene.clock.pass_by(10.0)
        assert victim.lives
        scene.clock.pass_by(200.0)
        await _ended(scene, victim)
