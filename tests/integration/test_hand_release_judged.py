"""What a person's word to release a device is judged by, with real processes of its pod."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.books import WHOLE, X, device_of, name
from fakes.reclaimer import by_general_mode
from fakes.reclaimscene import ReclaimScene, reclaim_scene
from holdfast.errors import RequestRefusedError
from holdfast.model.book.book import LockState
from holdfast.model.book.byhand import Target
from holdfast.model.book.marks import Asker
from holdfast.model.devices import Device, Inventory
from holdfast.model.reclaim.ending import Grounds, Warrant
from holdfast.model.use.free import KernelFacts
from holdfast.reclaim.ending import Ending
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.handrelease import HandRelease
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Duration, Interval
from waiting import until

_DEVICE = device_of(name("d0"), "a")
_TARGET = Target(device=_DEVICE.name, keys=_DEVICE.keys)


class _NobodyUses:
    """Answers that nobody has any device; `meanwhile` begins while that is looked for."""

    def __init__(self, meanwhile: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._meanwhile = meanwhile
        self.begun: asyncio.Task[None] | None = None

    async def scan(self, devices: list[Device], _locks: object) -> dict[object, KernelFacts]:
        if self._meanwhile is not None:
            self.begun = asyncio.create_task(self._meanwhile())
            await asyncio.sleep(0)  # it is in the ledger's line now, before whoever asks next
        return {each.name: KernelFacts(holders=()) for each in devices}


def _parts(scene: ReclaimScene) -> tuple[Evidence, Ending, list[tuple[str, str]]]:
    """Return what judges, what ends, and which steps it has done."""
    settings = Watched(scene.settings)
    reader: Any = scene.reader
    steps: list[tuple[str, str]] = []
    evidence = Evidence(
        ledger=scene.ledger,
        reader=reader,
        pods=scene.pods,
        clock=scene.clock,
        settings=settings,
        may_end=by_general_mode(settings),
        question_timeout=Watched(5.0),
        own_pid=scene.own_pid,
    )
    ending = Ending(
        pods=scene.pods,
        clock=scene.clock,
        settings=settings,
        count=lambda step, outcome: steps.append((step, outcome)),
    )
    return evidence, ending, steps


async def _asked(
    scene: ReclaimScene,
    *,
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> str:
    """Ask for the release of d0 as it is shown now; return why that is refused, empty: it is not."""
    use: Any = _NobodyUses(meanwhile)
    by_hand = HandRelease(
        ledger=scene.ledger,
        inventory=Watched(Inventory(resources=(WHOLE,), devices=(_DEVICE,))),
        use=use,
        reclaimer=scene.reclaimer,
    )
    try:
        await by_hand.release(_TARGET, Asker(uid=0, pid=7), shown=scene.lock.fence)
    except RequestRefusedError as error:
        return str(error)
    finally:
        if use.begun is not None:
            await use.begun
    return ""


async def test_what_is_left_of_a_pod_that_is_over_is_released_on_a_persons_word(
    tmp_path: Path,
) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.start()
        assert await _asked(scene) == ""


async def test_a_pod_that_still_runs_is_released_only_by_its_name(tmp_path: Path) -> None:
    """Kubelet has forgotten it, as after a forced deletion, and its shim lives."""
    async with reclaim_scene(tmp_path) as scene:
        saving = scene.start_under("containerd-shim")
        refused = await _asked(scene)
        assert "is still running" in refused
        await scene.wait_long()
        assert saving.lives


async def test_a_lock_that_moves_while_its_release_is_judged_is_not_released(
    tmp_path: Path,
) -> None:
    """What moves it is in the ledger's line before the person's word."""
    async with reclaim_scene(tmp_path) as scene:
        scene.start()

        async def move() -> None:
            await scene.change(
                lambda draft: draft.move(name("d0"), LockState.RECLAIMING, "ending it")
            )

        refused = await _asked(scene, meanwhile=move)
        assert "its lock has just changed" in refused
        assert scene.lock.state is LockState.RECLAIMING


async def test_who_is_ended_on_a_persons_word_has_the_grace_of_sigterm(tmp_path: Path) -> None:
    async with reclaim_scene(tmp_path) as scene:
        scene.settings = ReclaimSettings(term_grace=Duration(500), release_poll=Interval(3600))
        saving = scene.start(deaf=True)
        (member,) = await scene.pods.members(X)
        evidence, ending, did = _parts(scene)
        warrant = Warrant(
            grounds=Grounds.FORCE,
            lock=scene.lock,
            pod=X,
            gap="",
            only=frozenset({member.process}),
        )
        ended = asyncio.create_task(ending.end_at_once(warrant, evidence))
        await until(lambda: did == [("terminate", "sent")], what="SIGTERM")
        # A pause that is shortened is over at once.
        ending.settings.set(replace(scene.settings, release_poll=Interval(0.01)))
        looks = scene.pods.looks
        await until(lambda: ended.done() or scene.pods.looks > looks + 20)
        assert saving.lives
        scene.clock.pass_by(1000.0)
        assert await ended == frozenset()
        assert not saving.lives
