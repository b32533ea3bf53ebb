"""Each guard of a reclaim, with a real process that dies when that guard is removed.

`make guards` removes them one by one, and expects these tests to fail.
"""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.books import KUBELET, WHOLE, X, Y, silicon
from fakes.reclaimscene import Living, ReclaimScene, reclaim_scene
from holdfast.errors import HostError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.model.book.book import LockState
from holdfast.model.book.claims import Wish
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, ProcessId
from holdfast.model.reclaim.ending import Grounds
from holdfast.model.use.holders import Sandbox
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Duration, Interval
from simulated.proctree import ProcTree
from waiting import wait_until

_OLD_KERNEL = ("cgroup.freeze",)
_TICKS = 0.05
"""Seconds in which the clock that tells the starts of processes goes on, in ticks of 10 ms."""
_OPENED, _ASKED = 2, 3
"""The numbers of the looks in a beat that signals: before pidfds are opened, and after."""


def _at_look(scene: ReclaimScene, number: int, do: Callable[[], None]) -> None:
    """Let *do* happen once, right after look *number* of the beat that would signal."""
    done = False
    first = 0

    def looked(count: int) -> None:
        nonlocal done, first
        if scene.lock.state is not LockState.RECLAIMING:
            first = count
        elif count - first == number and not done:
            done = True
            do()

    scene.pods.looked = looked


def _once(do: Callable[[], None]) -> Callable[[], None]:
    left = [do]
    return lambda: left.pop()() if left else None


async def test_an_orphan_is_ended(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        orphan = scene.start()
        await scene.wait_long()
        assert not orphan.lives


async def test_an_orphan_that_ignores_sigterm_is_ended_with_its_cgroup(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        orphan = scene.start(deaf=True)
        await scene.wait_long()
        assert not orphan.lives
        assert scene.kernel.killed


@pytest.mark.parametrize("files", [("cgroup.kill",), _OLD_KERNEL])
async def test_what_is_another_process_at_each_signal_is_ended_all_the_same(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    """It forks and ends while kubelet is asked, so SIGTERM never reaches it."""
    async with reclaim_scene(tmp_path, files=files) as scene:
        chain = [scene.start(deaf=True)]

        def fork_on() -> None:
            chain.append(scene.start(deaf=True))
            chain[-2].end()
            scene.leave(chain[-2].pid)

        scene.reader.asked = fork_on
        await scene.wait_long()
        assert len(chain) > 2
        assert not chain[-1].lives


async def test_where_nothing_may_be_ended_nothing_is(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.settings = ReclaimSettings(mode="observe")
        await scene.wait_long()
        assert victim.lives


async def test_a_scan_that_could_not_see_everything_proves_nobody_guilty(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.gaps = ("pid 7: Permission denied",)
        await scene.wait_long()
        assert victim.lives


async def test_what_hides_in_the_pod_itself_keeps_nobody_of_it_alive(tmp_path: Path) -> None:
    """It has more open or mapped than can be read in time, and it is the pod's, by its cgroup."""
    async with reclaim_scene(tmp_path) as scene:
        victim, other = scene.start(), scene.start()
        scene.gaps = ("pid 7 and 1 others cannot be inspected",)
        scene.unread = frozenset({victim.pid, 7})
        await scene.wait_long()
        assert victim.lives
        scene.unread = frozenset({victim.pid})
        await scene.wait_long()
        assert not victim.lives
        assert not other.lives


async def test_the_daemon_never_signals_itself(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.own_pid = victim.pid
        await scene.wait_long()
        assert victim.lives


async def test_kubelet_is_never_signalled(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start("hyperkube")
        kubelet = _process(victim)
        scene.reader.kubelet = kubelet
        scene.reader.write()
        await scene.note(counted_by=kubelet)
        await scene.wait_long()
        assert victim.lives


@pytest.mark.parametrize("command", ["containerd", "crio", "dockerd", "kubelet"])
async def test_the_container_runtime_in_the_pods_cgroup_is_never_signalled(
    tmp_path: Path, command: str
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start(command)
        orphan = scene.start(deaf=True)
        await scene.wait_long()
        assert victim.lives
        assert not orphan.lives
        assert not scene.kernel.killed


@pytest.mark.parametrize("command", ["conmon", "containerd-shim"])
async def test_a_conmon_or_shim_inside_the_pods_cgroup_spares_all_of_it(
    tmp_path: Path, command: str
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        shim, container = scene.start(command), scene.start(deaf=True)
        await scene.wait_long()
        assert shim.lives
        assert container.lives


async def test_a_forced_deletion_under_a_living_shim_lets_the_pod_save_its_work(
    tmp_path: Path,
) -> None:
    """Kubelet has long forgotten the pod, which has a grace of an hour."""
    async with reclaim_scene(tmp_path) as scene:
        saving = scene.start_under("containerd-shim")
        for _ in range(12):
            await scene.wait_long()
            scene.clock.pass_by(300.0)
        assert saving.lives


@pytest.mark.parametrize(
    "shim", ["docker-containerd-shim", "acme-shim", "crio-conmon", "bash", "systemd"]
)
async def test_a_parent_that_lives_outside_the_pod_spares_it_whatever_it_is_called(
    tmp_path: Path, shim: str
) -> None:
    """The pod's infra container has an unknown name, too."""
    async with reclaim_scene(tmp_path) as scene:
        infra, saving = scene.start("pod"), scene.start_under(shim)
        for _ in range(3):
            await scene.wait_long()
            scene.clock.pass_by(300.0)
        assert saving.lives
        assert infra.lives


async def test_a_parent_that_cannot_be_read_spares_the_pod(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        saving = scene.start_under("acme-shim")
        shutil.rmtree(scene.tree.root.proc / str(saving.process.pid))
        await scene.wait_long()
        assert saving.lives


async def test_a_parent_that_is_younger_than_its_child_is_taken_for_another_process(
    tmp_path: Path,
) -> None:
    """The pid of a parent that ended between two looks can be another's, and init's child."""
    async with reclaim_scene(tmp_path) as scene:
        saving = scene.start_under("acme-shim")
        shutil.rmtree(scene.tree.root.proc / str(saving.process.pid))
        other = scene.tree.process(saving.process.pid, comm="worker", started=1 << 40)
        (other / "ns").symlink_to(f"/proc/{saving.pid}/ns")
        scene.enter(saving.process.pid)
        await scene.wait_long()
        assert saving.lives


async def test_the_child_of_an_orphan_in_the_same_pod_is_ended(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        child = scene.start_family("launcher")
        await scene.wait_long()
        assert not child.lives


async def test_a_shim_of_any_name_inside_the_pods_cgroup_spares_all_of_it(tmp_path: Path) -> None:
    """CRI-O and Kata can have theirs there, as an orphan; what it runs has its own mounts."""
    async with reclaim_scene(tmp_path) as scene:
        container = scene.start_family("acme-conmon")
        scene.live_apart(container.pid)
        other = scene.start(deaf=True)
        await scene.wait_long()
        assert container.lives
        assert other.lives


async def test_a_machine_is_spared_under_any_name_for_only_its_runtime_knows_what_runs_in_it(
    tmp_path: Path,
) -> None:
    """The monitor of a virtual machine detaches itself from its shim."""
    async with reclaim_scene(tmp_path) as scene:
        monitor = scene.start("acme-vmm")
        fds = scene.tree.root.proc / str(monitor.pid) / "fd"
        fds.unlink()
        fds.mkdir()
        (fds / "9").symlink_to("anon_inode:kvm-vm")
        await scene.wait_long()
        assert monitor.lives


async def test_a_process_that_may_run_a_machine_for_all_that_can_be_read_is_spared(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        monitor = scene.start("acme-vmm")
        (before,) = await scene.pods.members(X)
        fds = scene.tree.root.proc / str(monitor.pid) / "fd"
        fds.unlink()
        fds.symlink_to(fds)
        (after,) = await scene.pods.members(X)
        assert (before.sandbox, after.sandbox) == (None, Sandbox.MACHINE)
        await scene.wait_long()
        assert monitor.lives


async def test_while_its_pause_runs_nothing_of_a_pod_is_ended(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        pause, victim = scene.start("pause"), scene.start()
        await scene.wait_long()
        assert pause.lives
        assert victim.lives


async def test_a_pod_made_anew_with_the_same_uid_is_not_the_one_that_ended(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.replace_cgroup()
        await scene.wait_long()
        assert victim.lives


async def test_a_pod_made_anew_with_the_same_name_has_a_uid_and_processes_of_its_own(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.make_pod(Y)
        orphan, victim = scene.start(), scene.start(pod=Y)
        await scene.wait_long()
        assert victim.lives
        assert not orphan.lives


async def test_a_cgroup_replaced_between_scan_and_signal_is_another_one(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.reader.asked = _once(scene.replace_cgroup)
        await scene.wait_long()
        assert victim.lives


async def test_a_cgroup_replaced_right_before_it_is_killed_is_another_one(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.start(deaf=True)
        late: list[Living] = []

        def replaced() -> None:
            scene.replace_cgroup()
            late.append(scene.start())

        scene.kernel.before_kill = _once(replaced)
        await scene.wait_long()
        (victim,) = late
        assert victim.lives


async def test_one_that_moved_to_another_cgroup_since_the_scan_is_not_signalled(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.make_pod(Y)
        orphan, victim = scene.start(), scene.start()

        def moved() -> None:
            scene.leave(victim.pid)
            scene.enter(victim.pid, Y)

        _at_look(scene, _OPENED, moved)
        await scene.wait_long()
        assert victim.lives
        assert not orphan.lives


async def test_a_pid_that_was_given_to_another_process_is_not_signalled(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    async with reclaim_scene(tmp_path / "scene") as scene:
        victim = scene.start(pod=None)
        now = _process(victim)
        tree.real(victim.pid)
        pidfds = Pidfds(Procfs(tree.root))
        former = replace(now, start_ticks=now.start_ticks - 1)
        try:
            with pidfds.holding([former]) as held:
                assert not held
                with pytest.raises(HostError, match="no pidfd of it is held"):
                    pidfds.send(former, signal.SIGKILL)
        finally:
            assert victim.lives
            pidfds.close()


async def test_a_pid_reused_between_scan_and_signal_is_another_process(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.start()
        victim = scene.start(pod=None)
        # What had its pid before it is what the scan saw.
        home = scene.tree.root.proc / str(victim.pid)
        real = home.with_name("later")
        home.rename(real)
        scene.tree.process(victim.pid, comm="python", started=1)
        scene.enter(victim.pid)

        def reused() -> None:
            home.rename(home.with_name("former"))
            real.rename(home)

        _at_look(scene, _OPENED, reused)
        scene.settings = ReclaimSettings(mode="terminate")
        await scene.beat()
        scene.clock.pass_by(100.0)
        await scene.beat()
        await scene.beat()
        assert victim.lives


async def test_a_lock_that_moved_meanwhile_is_not_acted_upon(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        granted = _HandBack(scene)
        scene.reader.asked = granted
        await scene.wait_long()
        assert victim.lives


async def test_a_manifest_put_back_between_scan_and_signal_saves_its_pod(tmp_path: Path) -> None:
    """The UID and the cgroup are the same as before, and kubelet has it in its checkpoint again."""
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.reader.asked = lambda: setattr(scene.reader, "counted", (X,))
        await scene.wait_long()
        assert victim.lives


async def test_a_manifest_put_back_after_kubelets_answer_saves_its_pod(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        _at_look(scene, _ASKED, scene.reader.count_again)
        await scene.wait_long()
        assert victim.lives


async def test_without_an_answer_of_kubelets_nobody_is_signalled(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.reader.answers = False
        await scene.wait_long()
        assert victim.lives


async def test_nobody_is_signalled_on_evidence_that_is_more_than_a_second_old(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.pods.looked = lambda _number: scene.clock.pass_by(1.0)
        await scene.wait_long()
        assert victim.lives


async def test_evidence_does_not_grow_younger_when_the_clock_is_set_back(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()

        def late(_number: int) -> None:
            scene.clock.pass_by(1.0)
            scene.clock.set_wall(-1.0)

        scene.pods.looked = late
        await scene.wait_long()
        assert victim.lives


async def test_what_another_kubelet_had_in_its_books_proves_nothing(tmp_path: Path) -> None:
    """Kubelet restarted while the API server is down: it lists nothing, and the pods live."""
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.reader.kubelet = ProcessId(KUBELET.pid, KUBELET.start_ticks + 1)
        scene.reader.write()
        await scene.wait_long()
        assert victim.lives


async def test_a_pod_that_kubelet_has_not_let_go_of_is_spared(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        await scene.note(let_go_at=None)
        await scene.wait_long()
        assert victim.lives


@pytest.mark.parametrize(("let_go", "orphan"), [(1000.0, 0.0), (0.0, 1000.0)])
async def test_nobody_is_ended_within_a_grace(tmp_path: Path, let_go: float, orphan: float) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.settings = ReclaimSettings(
            let_go_grace=Duration(let_go), orphan_grace=Duration(orphan)
        )
        await scene.wait_long()
        assert victim.lives


async def test_a_pod_that_was_not_over_after_all_has_its_graces_anew(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        await scene.beat()
        scene.clock.pass_by(100.0)
        scene.reclaimer.keep((), ())
        for _ in range(5):
            await scene.beat()
        assert victim.lives
        await scene.wait_long()
        assert not victim.lives


async def test_a_clock_that_is_set_forward_ends_no_grace(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        await scene.beat()
        scene.clock.set_wall(86400.0)
        for _ in range(5):
            await scene.beat()
        assert victim.lives


async def test_a_daemon_that_starts_after_the_clock_was_set_forward_waits_all_the_same(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.clock.set_wall(86400.0)
        for _ in range(5):
            await scene.beat()
        assert victim.lives


async def test_one_that_enters_a_cgroup_with_young_ones_as_it_is_ended_is_spared(
    tmp_path: Path,
) -> None:
    """What is younger than the pod's end may be a new start of it: more of it may be coming."""
    await _enters_at_the_last_moment(tmp_path, set_back=0.0)


async def test_a_clock_that_is_set_back_makes_no_process_old(tmp_path: Path) -> None:
    await _enters_at_the_last_moment(tmp_path, set_back=-86400.0)


async def _enters_at_the_last_moment(tmp_path: Path, *, set_back: float) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.start(deaf=True)
        late: list[Living] = []
        scene.kernel.before_kill = _once(lambda: late.append(scene.start()))
        await asyncio.sleep(_TICKS)
        await scene.note(let_go_at=scene.clock.uptime())
        await scene.beat()
        await asyncio.sleep(_TICKS)
        scene.start(deaf=True)
        scene.clock.set_wall(set_back)
        scene.clock.pass_by(100.0)
        for _ in range(5):
            await scene.beat()
            scene.clock.pass_by(10.0)
        assert all(each.lives for each in late)
        assert not scene.kernel.killed


async def test_a_kernel_without_cgroup_kill_freezes_what_it_ends_pid_by_pid(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path, files=_OLD_KERNEL) as scene:
        orphans = [scene.start(deaf=True) for _ in range(3)]
        await scene.wait_long()
        assert not any(each.lives for each in orphans)
        assert scene.kernel.froze == [True, False]


async def test_a_container_that_shows_once_its_pod_is_frozen_saves_it(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=_OLD_KERNEL) as scene:
        victim = scene.start(deaf=True)
        late: list[Living] = []
        scene.kernel.before_freeze = _once(lambda: late.append(scene.start_under("conmon")))
        await scene.wait_long()
        assert [each.lives for each in late] == [True]
        assert victim.lives
        assert scene.kernel.froze == [True, False]


async def test_with_cgroup_v1_an_orphan_is_ended_pid_by_pid_and_whoever_enters_is_not(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path, files=()) as scene:
        orphan = scene.start(deaf=True)
        late: list[Living] = []
        scene.kernel.before_kill = _once(lambda: late.append(scene.start()))
        await scene.wait_long()
        assert not orphan.lives
        assert [each.lives for each in late] == [True]


class _HandBack:
    """Lets the ledger grant the lock anew while kubelet is asked."""

    def __init__(self, scene: ReclaimScene) -> None:
        self._scene = scene

    def __call__(self) -> None:
        book = self._scene.ledger.book
        lock = self._scene.lock
        regranted: dict[Any, Any] = {lock.device: replace(lock, fence=lock.fence + 1)}
        book.set(replace(book.value, locks={**book.value.locks, **regranted}))


def _process(living: Living) -> ProcessId:
    fields = Path(f"/proc/{living.pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessId(living.pid, int(fields[19]))


async def test_a_container_that_shows_right_before_its_cgroup_is_killed_saves_it(
    tmp_path: Path,
) -> None:
    """What was listed waits for the lane on which the kernel is told."""
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start(deaf=True)
        late: list[Living] = []
        for seconds in (100.0, 10.0, 10.0):  # its graces, the decision, and SIGTERM
            await scene.beat()
            scene.clock.pass_by(seconds)
        looks = scene.pods.looks

        def looked(count: int) -> None:
            if count - looks == _ASKED:
                late.append(scene.start_under("conmon"))

        scene.pods.looked = looked
        await scene.beat()
        assert [each.lives for each in late] == [True]
        assert victim.lives
        assert not scene.kernel.killed


async def _judged_where_it_is_killed(scene: ReclaimScene, do: Callable[[], None]) -> Living:
    """Let *do* happen where all else agreed that a cgroup is killed; return who is in it."""
    victim = scene.start(deaf=True)
    for seconds in (100.0, 10.0, 10.0):  # its graces, the decision, and SIGTERM
        await scene.beat()
        scene.clock.pass_by(seconds)
    lists = [lambda: None] * _ASKED + [do]
    scene.kernel.before_list = lambda: lists.pop(0)() if lists else None
    await scene.beat()
    assert not lists
    return victim


async def test_a_manifest_put_back_right_before_its_cgroup_is_killed_saves_its_pod(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = await _judged_where_it_is_killed(scene, scene.reader.count_again)
        assert victim.lives
        assert not scene.kernel.killed


async def test_what_kubelet_said_may_grow_old_before_a_cgroup_is_killed(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = await _judged_where_it_is_killed(scene, lambda: scene.clock.pass_by(1.0))
        assert victim.lives
        assert not scene.kernel.killed


async def test_a_pod_that_has_a_claim_lives_whatever_the_checkpoint_says(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        claim = ClaimRef("team", ClaimUid("uid-1"), "shared")
        wish = Wish(ref=claim, pods={X: ""}, devices={WHOLE: silicon(d1="b")})
        await scene.change(lambda draft: enter(draft, wish, "free"))
        await scene.wait_long()
        assert victim.lives


async def test_a_persons_word_ends_with_the_attempt_that_it_was_given_for(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        victim = scene.start()
        scene.reclaimer.retry(X, Grounds.FORCE)
        for seconds in (0.0, 10.0, 10.0):  # the decision, SIGTERM, and nobody left for SIGKILL
            await scene.beat()
            scene.clock.pass_by(seconds)
        assert not victim.lives
        assert scene.reclaimer._allowed(X) is Grounds.FORCE
        while scene.lock.state is not LockState.QUARANTINED:
            await scene.beat()
            scene.clock.pass_by(0.5)
        assert scene.clock.monotonic() < scene.reclaimer._by_hand.get(X, (None, math.inf))[1]
        assert scene.reclaimer._allowed(X) is Grounds.OVER


async def test_the_log_says_that_a_process_was_gone_before_its_signal(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        orphan = scene.start()
        scene.settings = ReclaimSettings(evidence_age=Interval(60))

        def ends() -> None:
            os.kill(orphan.pid, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{orphan.pid}").exists(), what="the orphan's end")

        _at_look(scene, _ASKED, ends)
        with capture_logs() as words:
            await scene.wait_long()
        events = [each["event"] for each in words if each.get("pid") == orphan.pid]
        assert events == ["process exited before the signal"]


async def test_the_log_calls_a_signal_sent_and_no_process_ended(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        orphan = scene.start(deaf=True)
        with capture_logs() as words:
            await scene.beat()
            scene.clock.pass_by(100.0)
            await scene.beat()
            await scene.beat()
        assert orphan.lives
        events = [each["event"] for each in words if each.get("pid") == orphan.pid]
        assert events == ["signal sent"]


async def test_a_manifest_put_back_while_a_kernel_refuses_cgroup_kill_saves_its_pod(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path, files=()) as scene:
        victim = scene.start(deaf=True)
        scene.kernel.before_kill = _once(scene.reader.count_again)
        await scene.wait_long()
        assert victim.lives
