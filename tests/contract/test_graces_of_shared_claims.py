"""Pods that shared a claim are gone through one by one, and wait for their graces together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, KUBELET, WHOLE, X, Y, Z, name, silicon
from fakes.reclaimscene import ReclaimScene, reclaim_scene
from fakes.watchers import watcher_below
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState, PodRecord
from holdfast.model.book.claims import Wish, end_claim, release
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import PodSighting
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ProcessId
from holdfast.model.use.free import Freedom, KernelFacts, ReleaseFacts, judge_release
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.reclaim.watcher import Watcher
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Interval
from manual_clock import ManualClock
from waiting import beside, until

_SETTINGS = ReclaimSettings(poll=Interval(0.05), release_poll=Interval(0.05))
_CLAIM = ClaimRef("team", ClaimUid("uid-1"), "shared")


def _end_of_claim(draft: Draft, *pods: PodUid, inodes: dict[PodUid, int] | None = None) -> None:
    """Let a claim of *pods*, which had d0, be over; *inodes* are those of their cgroups."""
    devices = {WHOLE: silicon(d0="a")}
    wish = Wish(ref=_CLAIM, pods=dict.fromkeys(pods, ""), devices=devices)
    assert enter(draft, wish, "free") is None
    for pod, inode in (inodes or {}).items():
        record = PodRecord(
            uid=pod,
            boot=BOOT,
            cgroup=f"/kubepods/pod{pod}",
            inode=inode,
            counted_by=KUBELET,
            counted_boot=BOOT,
        )
        draft.note_pod(record)
    end_claim(draft, _CLAIM.uid, "kubelet unprepared it", kubelet=KUBELET)


async def _shared(scene: ReclaimScene) -> None:
    """Let pods X and Y have shared the claim, instead of X alone having had the device."""
    inodes = {X: scene.folder_of(X).stat().st_ino, Y: scene.make_pod(Y)}

    def decide(draft: Draft) -> None:
        draft.move(name("d0"), LockState.FREE, "for this test")
        _end_of_claim(draft, X, Y, inodes=inodes)

    scene.clock.pass_by(60.0)
    await scene.change(decide)
    scene.clock.pass_by(-60.0)


async def test_what_is_left_of_the_second_pod_waits_for_no_grace_of_its_own(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        await _shared(scene)
        first, second = scene.start(), scene.start(pod=Y)
        await scene.wait_long()
        assert not first.lives
        assert second.lives, "its turn has not come"
        scene.leave(first.pid)
        await scene.change(partial(release, lock=scene.lock, evidence="its processes ended"))
        assert scene.lock.pod == Y
        for _ in range(3):
            await scene.beat()
        await until(lambda: not second.lives)


@asynccontextmanager
async def _watcher(folder: Path) -> AsyncIterator[tuple[Watcher, Ledger, ManualClock]]:
    """Let the claim of X, Y and Z be over on a node that shows nobody."""
    async with watcher_below(folder, settings=_SETTINGS) as on:
        await on.ledger.apply(lambda draft: _end_of_claim(draft, X, Y, Z))
        await until(lambda: on.ledger.book.value.locks)
        yield on.watcher, on.ledger, on.clock


async def test_pods_whose_cgroup_was_never_seen_are_waited_for_once(tmp_path: Path) -> None:
    async with _watcher(tmp_path) as (watcher, ledger, clock), beside(watcher.run()):
        await until(lambda: "never seen" in str(watcher.obstacle(name("d0"))))
        before = ledger.book.value.fence
        clock.shift(_SETTINGS.unseen_grace)
        await until(lambda: not ledger.book.value.locks)
        assert ledger.book.value.fence == before + 1, "all of them are over in one step"


@pytest.mark.parametrize("populated", [True, None])
async def test_of_the_pods_of_a_claim_those_that_may_live_are_not_over_in_the_same_step(
    tmp_path: Path, populated: bool | None
) -> None:
    async with _watcher(tmp_path) as (watcher, ledger, _clock):
        book = ledger.book.value
        (lock,) = book.locks.values()
        over = PodSighting(cgroup="/kubepods/pod", inode=1, populated=False)
        sightings = {X: over, Y: replace(over, inode=2, populated=populated), Z: over}
        facts = ReleaseFacts(
            kernel=KernelFacts(holders=()),
            pod=watcher._former_pod(lock, book, sightings),
            unseen_grace=_SETTINGS.unseen_grace,
        )

        assert judge_release(facts).freedom is Freedom.FREE
        assert watcher._over_as_well(lock, facts, book, sightings) == {Z}


class _HeldBy:
    """Every device has a process of each of these pods on it."""

    def __init__(self, *pods: PodUid | None) -> None:
        self._holders = tuple(
            Holder(
                process=ProcessId(number, 1),
                command="train",
                access=frozenset({DeviceAccess.NODE}),
                pod=pod,
            )
            for number, pod in enumerate(pods, start=41)
        )
        self.look = self

    async def enabled(self, devices: Any) -> Any:
        return {each.name: each.functions for each in devices}

    async def known(self, devices: Any, *_locks: object, **_how: object) -> Any:
        return {each.name: KernelFacts(holders=self._holders) for each in devices}


@pytest.mark.parametrize(
    ("holders", "lives", "turn"),
    [
        ((Y,), None, Y),
        ((Z,), None, Y),
        ((Y, Z), None, Y),
        ((X,), None, X),
        ((X, Y), None, X),
        ((Y, None), None, X),
        ((Y,), X, X),
    ],
)
async def test_what_later_pods_of_a_claim_left_is_theirs_once_the_first_is_over(
    tmp_path: Path, holders: tuple[PodUid | None, ...], lives: PodUid | None, turn: PodUid
) -> None:
    """Nothing is ended but under the lock of its own pod, whose turn would never come."""
    async with watcher_below(tmp_path, devices={WHOLE: silicon(d0="a")}) as on:
        inodes = {X: 1, Y: 2, Z: 3}
        await on.ledger.apply(lambda draft: _end_of_claim(draft, X, Y, Z, inodes=inodes))
        held: Any = _HeldBy(*holders)
        on.watcher.use = held
        over = PodSighting(cgroup=f"/kubepods/pod{X}", inode=1, populated=lives is X)
        await on.watcher._release({X: over})
        (lock,) = on.ledger.book.value.locks.values()
        assert (lock.state, lock.pod) == (LockState.RELEASING, turn)
