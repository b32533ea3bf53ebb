"""What holdfast freezes goes on again, whatever becomes of the freeze, of the daemon and its ledger."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.books import BOOT, X
from fakes.ledgers import ledger_in
from fakes.reclaimscene import ReclaimScene, judging, reclaim_scene
from fakes.stage import Stage, pod, stage
from holdfast.errors import HostError
from holdfast.host.own import boot_id
from holdfast.ledger.disk import FILE
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.book.draft import Draft
from holdfast.model.ids import BootId
from holdfast.model.reclaim.ending import Member
from holdfast.reclaim.pods import CgroupOutcome, FrozenCgroup, Pods
from waiting import until

_PATH = f"/kubepods/pod{X}"
_FREEZES = ("cgroup.freeze",)


def _frozen(scene: ReclaimScene) -> bool:
    return (scene.folder_of() / "cgroup.freeze").read_text() == "1"


def _noted(ledger: Ledger) -> dict[str, FrozenCgroup]:
    return LedgerTopic(ledger, "reclaim/frozen", FrozenCgroup).value


async def _kill(
    scene: ReclaimScene, may_end: Callable[[tuple[Member, ...]], bool] = bool
) -> CgroupOutcome:
    return await scene.pods.kill(
        X,
        path=_PATH,
        inode=scene.folder_of().stat().st_ino,
        may_end=may_end,
        as_one=lambda _members: False,
        ask_again=judging(may_end),
    )


def _once_frozen(scene: ReclaimScene, *do: Callable[[], None]) -> None:
    """Let *do* happen on the lane, one each time that the frozen cgroup is listed."""
    left = list(do)

    def listed() -> None:
        if left and _frozen(scene):
            left.pop(0)()

    scene.kernel.before_list = listed


async def test_a_freeze_that_ends_in_an_error_is_thawed(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        victim = scene.start(deaf=True)

        def fails() -> None:
            raise HostError("cannot list it")

        _once_frozen(scene, fails)
        assert await _kill(scene) is CgroupOutcome.IMPOSSIBLE
        assert victim.lives
        assert scene.kernel.froze == [True, False]
        assert not _noted(scene.ledger)


async def test_a_daemon_that_stops_thaws_first(tmp_path: Path) -> None:
    """The lane is at another call just then, behind which the thaw waits."""
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        busy, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        others: list[asyncio.Future[bool]] = []

        async def hold_up() -> None:
            others.append(asyncio.ensure_future(scene.lane.run(lambda: go_on.wait(60.0))))

        def last_word(_members: tuple[Member, ...]) -> bool:
            if _frozen(scene):
                busy.set()
            return True

        def last_list() -> None:
            asyncio.run_coroutine_threadsafe(hold_up(), loop).result(60.0)

        _once_frozen(scene, lambda: None, last_list)
        killing = asyncio.create_task(_kill(scene, last_word))
        await asyncio.wait_for(busy.wait(), 60.0)
        killing.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await killing
        await scene.lane.run(lambda: None)
        assert scene.kernel.froze == [True, False]
        assert not _noted(scene.ledger)
        await asyncio.gather(*others)


async def test_a_freeze_that_comes_after_everybody_has_given_up_is_thawed(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        victim = scene.start(deaf=True)
        loop, go_on = asyncio.get_running_loop(), threading.Event()

        def hangs() -> None:
            call = scene.lane._current
            assert call is not None
            scene.patience.set(0.05)  # for the thaw, which waits behind this call
            loop.call_soon_threadsafe(scene.lane._give_up, call, 0.0)
            go_on.wait(60.0)

        scene.kernel.before_freeze = hangs
        assert await _kill(scene) is CgroupOutcome.SPARED
        assert not scene.kernel.froze
        await scene.pods.thaw()
        scene.patience.set(20.0)
        go_on.set()
        await scene.lane.run(lambda: None)
        assert _frozen(scene), "only now does it come into effect"
        await scene.pods.thaw()
        assert not _frozen(scene)
        assert victim.lives
        assert not _noted(scene.ledger)


async def test_a_thaw_that_fails_is_tried_again_and_told_once(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        file, aside = scene.folder_of() / "cgroup.freeze", tmp_path / "aside"

        def cannot_be_written() -> None:
            file.rename(aside)
            file.mkdir()

        _once_frozen(scene, cannot_be_written)
        with capture_logs() as logs:
            assert await _kill(scene) is CgroupOutcome.FROZEN
            for _ in range(3):
                await scene.pods.thaw()
            (told,) = [each for each in logs if each["log_level"] == "warning"]
        assert told["event"] == "cannot unfreeze a cgroup"
        assert told["cgroup"] == _PATH
        assert "write 0 into" in told["next"]
        file.rmdir()
        aside.rename(file)
        await scene.pods.thaw()
        assert not _frozen(scene)
        assert not _noted(scene.ledger)


async def test_a_cgroup_that_cannot_be_frozen_is_not_called_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the cgroup tree is mounted read-only: then processes are ended one by one."""
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)

        def is_read_only(_path: str, _inode: int, *, frozen: bool) -> None:
            raise HostError(f"cannot write {frozen:d}: Read-only file system")

        monkeypatch.setattr(scene.kernel, "freeze", is_read_only)
        with capture_logs() as logs:
            assert await _kill(scene) is CgroupOutcome.IMPOSSIBLE
        assert not [each for each in logs if each["log_level"] == "warning"]
        assert not _noted(scene.ledger)


def _let_the_disk_be_slow(
    scene: ReclaimScene, monkeypatch: pytest.MonkeyPatch, *, answers: bool = True
) -> None:
    """Let a commit take longer than kubelet's answer is good for; *answers*: it answers again."""
    commit = scene.ledger.apply

    async def takes_long(_: Ledger, decide: Callable[[Draft], object]) -> object:
        found = await commit(decide)
        scene.clock.pass_by(2 * scene.settings.evidence_age)
        scene.reader.answers = answers
        return found

    monkeypatch.setattr(Ledger, "apply", takes_long)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_slow_disk_keeps_nobody_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Once the freeze is noted, what kubelet said before is too old: it is asked again."""
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        victim = scene.start(deaf=True)
        _let_the_disk_be_slow(scene, monkeypatch, answers=answers)
        await scene.wait_long()
        assert victim.lives is not answers
        assert scene.kernel.froze == ([True, False] if answers else [])
        assert not _noted(scene.ledger)


async def test_a_slow_disk_keeps_nobody_alive_whose_cgroup_cannot_be_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try was noted: kubelet is asked again before the processes are ended one by one."""
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        victim = scene.start(deaf=True)

        def is_read_only() -> None:
            raise HostError("cannot write 1: Read-only file system")

        scene.kernel.before_freeze = is_read_only
        _let_the_disk_be_slow(scene, monkeypatch)
        await scene.wait_long()
        assert not victim.lives
        assert not _noted(scene.ledger)


async def _killed_while_frozen(scene: ReclaimScene) -> Path:
    """Return the state folder as a daemon leaves it that is killed with the cgroup frozen."""
    later = scene.folder / "later"

    def killed() -> None:
        shutil.copytree(scene.folder / "state", later)

    _once_frozen(scene, killed)
    await _kill(scene, lambda _members: not _frozen(scene))
    (scene.folder_of() / "cgroup.freeze").write_text("1")
    return later


async def _next_daemon(scene: ReclaimScene, state: Path, boot: BootId = BOOT) -> None:
    """Do what the next daemon does at its start."""
    async with ledger_in(state, boot=boot) as ledger:
        assert list(_noted(ledger)) == [_PATH]
        pods = Pods(
            cgroups=scene.kernel,
            runtimes=scene.pods.runtimes,
            procfs=scene.pods.procfs,
            pidfds=scene.pidfds,
            lane=scene.lane,
            ledger=ledger,
        )
        await pods.thaw()
        assert not _noted(ledger)


async def test_a_daemon_thaws_what_the_one_before_it_had_frozen_when_it_was_killed(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        later = await _killed_while_frozen(scene)
        await _next_daemon(scene, later)
        assert not _frozen(scene)


@pytest.mark.parametrize("what", ["another cgroup", "another boot"])
async def test_a_daemon_thaws_no_other_cgroup_of_the_same_name(tmp_path: Path, what: str) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        later = await _killed_while_frozen(scene)
        if what == "another cgroup":
            scene.replace_cgroup()
        await _next_daemon(scene, later, BOOT if what == "another cgroup" else BootId("later"))
        assert _frozen(scene), "by whom we do not know"


async def test_a_cgroup_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        later = await _killed_while_frozen(scene)
        scene.folder_of().rename(tmp_path / "gone")
        await _next_daemon(scene, later)


async def test_what_somebody_else_has_frozen_is_ended_and_stays_frozen(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        victim = scene.start(deaf=True)
        (scene.folder_of() / "cgroup.freeze").write_text("1")
        assert await _kill(scene) is CgroupOutcome.FROZEN
        assert not victim.lives
        await scene.pods.thaw()
        assert _frozen(scene)
        assert not scene.kernel.froze


async def test_what_cannot_be_noted_is_not_frozen(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_FREEZES) as scene:
        scene.start(deaf=True)
        state = tmp_path / "state" / FILE
        with closing(sqlite3.connect(state, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await _kill(scene) is CgroupOutcome.IMPOSSIBLE
        assert not scene.kernel.froze
        assert not _frozen(scene)


async def test_a_daemon_that_starts_lets_a_pod_go_on_that_the_one_before_it_had_frozen(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        living = await node.run(pod("living"))
        folder = node.node._pod(living.uid)
        node.kill()
        file = folder / "cgroup.freeze"
        file.write_text("1")
        await _note(node, folder)
        await node.start_and_register()
        await until(lambda: file.read_text() == "0", what="the thaw")


async def _note(node: Stage, folder: Path) -> None:
    """Write down that *folder* is about to be frozen, as the daemon does."""
    root = node.node.root
    boot = boot_id(root)
    async with ledger_in(node.state, boot=boot) as ledger:
        noted = FrozenCgroup(inode=folder.stat().st_ino, boot=boot)
        kept = LedgerTopic(ledger, "reclaim/frozen", FrozenCgroup)
        await kept.keep({f"/{folder.relative_to(root.cgroup)}": noted})
