"""A leaking sandbox is ended only while its pod's start still waits, down to the last moment."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import WHOLE, X, allocated, name, silicon, unreadable
from fakes.reclaimer import by_general_mode
from fakes.reclaimscene import Living, ReclaimScene, reclaim_scene
from fakes.runtimes import RuntimeFolder, spec
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.leak import WaitingStart
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox
from holdfast.reclaim.ending import Ending
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Duration

_START = WaitingStart(pod=X, device=name("d0"))


class _Sentries(Pods):
    """Takes every process of a pod for a gVisor sentry."""

    def members_now(self, pod: PodUid) -> tuple[Member, ...]:
        found = super().members_now(pod)
        return tuple(replace(each, sandbox=Sandbox.SENTRY) for each in found)


class _Look:
    """Sees that all of the pod keep a leaked device fd; calls `looks` before each look at all."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self.looks: Callable[[], object] = lambda: None
        self.gaps: tuple[str, ...] = ()
        self.at_work: DeviceName | None = None
        """A device that the pod has open as a program does."""
        self.look = self

    async def scan(
        self, devices: Sequence[DeviceName], _locks: object, *, pids: Sequence[int] | None = None
    ) -> dict[DeviceName, KernelFacts]:
        if pids is None:
            self.looks()
        works = frozenset({DeviceAccess.NODE, DeviceAccess.DEVICE_FD})
        leaks = frozenset({DeviceAccess.DEVICE_FD})
        holders = tuple(
            Holder(
                process=each.process,
                command=each.command,
                access=leaks,
                pod=X,
                sandbox=each.sandbox,
            )
            for each in await self._pods.members(X)
        )
        return {
            device: KernelFacts(
                holders=tuple(replace(each, access=works) for each in holders)
                if device == self.at_work
                else holders,
                gaps=self.gaps,
            )
            for device in devices
        }


class _Inventory:
    def get(self, device: DeviceName) -> DeviceName:
        return device


async def _back(ledger: Ledger) -> None:
    def decide(draft: Draft) -> None:
        allocation = allocated(silicon(d0="a"), resource=WHOLE, pod=X, active=True)(draft)
        draft.hand(draft.book.locks[name("d0")], allocation, "its pod lives")

    await ledger.apply(decide)


async def _leaking(
    scene: ReclaimScene,
    starts: Watched[frozenset[WaitingStart]],
    looks: Callable[[], object] = lambda: None,
    *,
    gaps: tuple[str, ...] = (),
    at_work: DeviceName | None = None,
) -> tuple[Living, LeakedSandboxes, list[tuple[str, str]]]:
    """Let pod X live with an idle sandbox that leaks; return that, and who ends it."""
    sentry = scene.start("exe")
    scene.reader.count_again()
    await _back(scene.ledger)
    RuntimeFolder(scene.tree.root.run).bundle("s", spec("sandbox", "s", uid=X))
    pods = _Sentries(
        cgroups=scene.kernel,
        runtimes=RuntimeFiles(scene.tree.root),
        procfs=scene.pidfds._procfs,
        pidfds=scene.pidfds,
        lane=scene.lane,
        ledger=scene.ledger,
    )
    look: Any = _Look(pods)
    look.looks, look.gaps, look.at_work = looks, gaps, at_work
    inventory: Any = Watched(_Inventory())
    settings = Watched(ReclaimSettings(leaked_sandbox="restart", leak_grace=Duration(0)))
    steps: list[tuple[str, str]] = []
    leaks = LeakedSandboxes(
        ledger=scene.ledger,
        inventory=inventory,
        reader=scene.reader,
        starts=starts,
        look=look,
        ending=Ending(
            pods=pods,
            clock=scene.clock,
            settings=settings,
            count=lambda step, outcome: steps.append((step, outcome)),
        ),
        clock=scene.clock,
        settings=settings,
        may_end=by_general_mode(settings),
    )
    return sentry, leaks, steps


@pytest.mark.parametrize(
    ("files", "how"),
    [(("cgroup.kill",), "cgroup"), (("cgroup.freeze",), "frozen"), ((), "sent")],
)
async def test_a_leaking_sandbox_is_ended_and_counted(
    tmp_path: Path, files: tuple[str, ...], how: str
) -> None:
    async with reclaim_scene(tmp_path, files=files) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        await leaks._consider(_START)
        assert not sentry.lives
        assert did == [("sandbox", how)]


async def test_a_look_that_could_not_see_everybody_saves_the_sandbox(tmp_path: Path) -> None:
    """Somebody else may have the device as well: then the sandbox is not what is in the way."""
    async with reclaim_scene(tmp_path) as scene:
        starts = Watched(frozenset({_START}))
        sentry, leaks, did = await _leaking(scene, starts, gaps=("pid 9 cannot be inspected",))
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []


async def test_another_device_of_the_pod_that_is_at_work_saves_the_sandbox(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        starts = Watched(frozenset({_START}))
        sentry, leaks, did = await _leaking(scene, starts, at_work=name("d1"))
        await scene.change(allocated(silicon(d1="b"), resource=WHOLE, pod=X, active=True))
        await scene.change(settle)
        assert scene.ledger.book.value.locks[name("d1")].pod == X
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []


@pytest.mark.parametrize("files", [("cgroup.freeze",), ()])
async def test_a_start_that_goes_on_while_a_kernel_refuses_cgroup_kill_saves_its_sandbox(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    async with reclaim_scene(tmp_path, files=files) as scene:
        starts = Watched(frozenset({_START}))
        sentry, leaks, did = await _leaking(scene, starts)
        scene.kernel.before_kill = lambda: starts.set(frozenset())
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []


@pytest.mark.parametrize("files", [("cgroup.kill",), ("cgroup.freeze",), ()])
async def test_a_process_that_comes_while_all_is_asked_again_saves_the_sandbox(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    async with reclaim_scene(tmp_path, files=files) as scene:
        late: list[Living] = []
        number = iter(range(9))

        def comes() -> None:
            if next(number) == 1:  # with the pidfds open
                late.append(scene.start("exe"))

        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})), comes)
        await leaks._consider(_START)
        assert [each.lives for each in (sentry, *late)] == [True, True]
        assert did == []


async def test_all_processes_are_looked_at_only_where_nothing_else_keeps_the_sandbox(
    tmp_path: Path,
) -> None:
    """A start that waits is looked after each second, and a node can have thousands of them."""
    async with reclaim_scene(tmp_path) as scene:
        looks: list[None] = []
        starts = Watched(frozenset({_START}))
        sentry, leaks, _did = await _leaking(scene, starts, lambda: looks.append(None))
        leaks.settings.set(replace(_RESTART, leak_grace=Duration(1000)))
        for _ in range(5):
            await leaks._consider(_START)
        assert looks == []
        scene.clock.pass_by(1000.0)
        await leaks._consider(_START)
        assert len(looks) == 2, "once more just before its end"
        assert not sentry.lives


async def test_a_sandbox_of_several_processes_is_counted_once(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=()) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        other = scene.start("exe")
        await leaks._consider(_START)
        assert not sentry.lives
        assert not other.lives
        assert did == [("sandbox", "sent")]


async def test_what_is_tried_again_and_again_is_in_the_history_once(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path, files=()) as scene:
        starts = Watched(frozenset({_START}))
        number = count()

        def goes_on() -> None:
            if next(number) % 2:  # when all is asked again
                starts.set(frozenset())

        sentry, leaks, did = await _leaking(scene, starts, goes_on)
        for _ in range(3):
            starts.set(frozenset({_START}))
            await leaks._consider(_START)
            leaks._forget(set())  # between two tries of kubelet no start waits
        assert next(number) == 6
        assert sentry.lives
        assert did == []
        moves = await scene.ledger.history(name("d0"), 100)
        assert len([each for each in moves if "own leaking sandbox" in each.evidence]) == 1


_RESTART = ReclaimSettings(leaked_sandbox="restart", leak_grace=Duration(0))


@pytest.mark.parametrize(
    "settings", [replace(_RESTART, leaked_sandbox="report"), replace(_RESTART, mode="observe")]
)
async def test_a_leaking_sandbox_is_kept_where_the_operator_wants_it_only_reported(
    tmp_path: Path, settings: ReclaimSettings
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        leaks.settings.set(settings)
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []


@pytest.mark.parametrize("why", ["not counted", "not readable"])
async def test_the_sandbox_of_a_pod_that_kubelet_may_not_count_is_no_leak_of_a_living_pod(
    tmp_path: Path, why: str
) -> None:
    """Then it is over, or may be: that has graces of its own."""
    async with reclaim_scene(tmp_path) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        if why == "not counted":
            scene.reader.counted = ()
            scene.reader.write()
        else:
            scene.reader.view.set(unreadable(scene.reader.view.value))
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []


@pytest.mark.parametrize("ends", ["never", "the leak", "the start"])
async def test_a_sandbox_has_to_leak_for_its_grace_without_a_break(
    tmp_path: Path, ends: str
) -> None:
    """A container that comes and goes uses the device in between, or kubelet gave its start up."""
    async with reclaim_scene(tmp_path) as scene:
        sentry, leaks, _did = await _leaking(scene, Watched(frozenset({_START})))
        look: Any = leaks.look
        leaks.settings.set(replace(_RESTART, leak_grace=Duration(1000)))
        await leaks._consider(_START)
        scene.clock.pass_by(500.0)
        if ends == "the leak":
            look.at_work = name("d0")
            await leaks._consider(_START)
            look.at_work = None
        elif ends == "the start":
            leaks._forget(set())
        await leaks._consider(_START)
        assert sentry.lives
        scene.clock.pass_by(500.0)
        await leaks._consider(_START)
        assert sentry.lives is (ends != "never")


async def test_a_sandbox_that_leaks_again_soon_is_kept_for_a_while(tmp_path: Path) -> None:
    """Its pod would otherwise be begun anew without end."""
    async with reclaim_scene(tmp_path, files=()) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        await leaks._consider(_START)
        assert not sentry.lives
        scene.leave(sentry.pid)
        again = scene.start("exe")
        await leaks._consider(_START)
        assert again.lives
        scene.clock.pass_by(leaks.settings.value.retry.first)
        await leaks._consider(_START)
        assert not again.lives
        assert did == [("sandbox", "sent")] * 2


async def test_the_sandbox_of_a_pod_that_does_not_hold_the_device_is_no_leak_of_it(
    tmp_path: Path,
) -> None:
    """What is being released has graces of its own."""
    async with reclaim_scene(tmp_path) as scene:
        sentry, leaks, did = await _leaking(scene, Watched(frozenset({_START})))
        await scene.change(
            lambda draft: draft.end(next(iter(draft.book.allocations.values())), "it is over")
        )
        assert scene.lock.state is not LockState.HELD
        await leaks._consider(_START)
        assert sentry.lives
        assert did == []
