"""A leaking sandbox is ended only while its pod's start still waits, down to the last moment."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import WHOLE, X, allocated, name, silicon
from fakes.reclaimscene import Living, ReclaimScene, reclaim_scene
from fakes.runtimes import RuntimeFolder, spec
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.leak import HeldUp
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import Grip, Holder, Sandbox
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim
from holdfast.settings.types import Duration

_START = HeldUp(pod=X, device=name("d0"))


class _Sentries(Pods):
    """Takes every process of a pod for a gVisor sentry."""

    def members_now(self, pod: PodUid) -> tuple[Member, ...]:
        found = super().members_now(pod)
        return tuple(replace(each, sandbox=Sandbox.SENTRY) for each in found)


class _Look:
    """Sees that all of the pod keep a leaked device fd."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    async def scan(self, _devices: object, _locks: object) -> dict[DeviceName, KernelFacts]:
        leaks = frozenset({Grip.DEVICE_FD})
        holders = tuple(
            Holder(process=each.process, command=each.command, grips=leaks, pod=X)
            for each in await self._pods.members(X)
        )
        return {name("d0"): KernelFacts(holders=holders)}


class _Inventory:
    def get(self, device: DeviceName) -> DeviceName:
        return device


async def _back(ledger: Ledger) -> None:
    def decide(draft: Draft) -> None:
        allocation = allocated(silicon(d0="a"), resource=WHOLE, pod=X, active=True)(draft)
        draft.hand(draft.book.locks[name("d0")], allocation, "its pod lives")

    await ledger.apply(decide)


async def _leaking(
    scene: ReclaimScene, starts: Watched[frozenset[HeldUp]]
) -> tuple[Living, LeakedSandboxes, list[str]]:
    """Let pod X live with an idle sandbox that leaks; return that, and who ends it."""
    sentry = scene.start("exe")
    scene.reader.counted = (X,)
    scene.reader.write()
    await _back(scene.ledger)
    RuntimeFolder(scene.tree.root.run).bundle("s", spec("sandbox", "s", uid=X))
    pods = _Sentries(
        cgroups=scene.kernel,
        runtimes=RuntimeFiles(scene.tree.root),
        procfs=scene.pidfds._procfs,
        pidfds=scene.pidfds,
        lane=scene.lane,
    )
    look: Any = _Look(pods)
    inventory: Any = Watched(_Inventory())
    leaks = LeakedSandboxes(
        ledger=scene.ledger,
        inventory=inventory,
        reader=scene.reader,
        starts=starts,
        look=look,
        pods=pods,
        pidfds=scene.pidfds,
        clock=scene.clock,
        settings=Watched(Reclaim(leaked_sandbox="restart", leak_grace=Duration(0))),
    )
    did: list[str] = []
    leaks.observe = did.append
    return sentry, leaks, did


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
        assert did == [how]


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
