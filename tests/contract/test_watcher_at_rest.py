"""What the watcher leaves out while nothing changes, and what it does all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.books import BOOT, WHOLE, X, allocated, entry, inventory, seen, silicon
from fakes.inuse import device_use, look_at
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.ledger.standings import EmptyPods
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings.sections import ReclaimSettings
from manual_clock import ManualClock
from simulated.proctree import ProcTree
from waiting import until

_TIMEOUT = 40.0
"""Less than what passes until nothing new is compared all the same."""


class _Reader:
    """Kubelet's view, which does not change."""

    def __init__(self, view: KubeletView) -> None:
        self.view = Watched(view)
        self.asked: list[str] = []

    def ask(self, reason: str) -> None:
        """Nobody answers."""
        self.asked.append(reason)


class _NoReclaimer:
    """Nothing is to be ended here."""

    def start_over(self, pods: object) -> None:
        """Forget nothing."""


@dataclass
class _Node:
    """A watcher of a node with one device, which a pod may have."""

    clock: ManualClock
    ledger: Ledger
    reader: _Reader
    use: DeviceUse
    watcher: Watcher


@asynccontextmanager
async def _node(folder: Path, *entries: CheckpointEntry) -> AsyncIterator[_Node]:
    tree, clock = ProcTree(folder), ManualClock()
    (tree.root.sys / "bus").mkdir(parents=True, exist_ok=True)
    tree.myself()
    (folder / "state").mkdir()
    lanes = [Lane(name, deadline=30.0) for name in ("ledger", "pods", "scan")]
    paths, pidfds = PathWatcher(), Pidfds(Procfs(tree.root))
    ledger = await open_ledger(folder / "state", lanes[0], clock=clock, boot=BOOT, locks=())
    await ledger.apply(allocated(silicon(d0="a")))
    await until(lambda: ledger.book.value.allocations)
    reader: Any = _Reader(seen(*entries, read_at=clock.uptime() + 1.0))
    nobody: Any = _NoReclaimer()
    use = device_use(look_at(tree.root, lanes[2]), pidfds, clock, rescan=_TIMEOUT)
    watcher = Watcher(
        ledger=ledger,
        inventory=Watched(inventory({WHOLE: {}})),
        reader=reader,
        use=use,
        pods=PodSightings(
            cgroups=Cgroups(tree.root),
            paths=paths,
            lane=lanes[1],
            clock=clock,
            nudges=Nudges(),
        ),
        reclaimer=nobody,
        resetter=nobody,
        clock=clock,
        settings=Watched(ReclaimSettings()),
        pending_timeout=Watched(_TIMEOUT),
        is_retired=lambda _resource: False,
        obstacles=Watched({}),
        emptied=EmptyPods(),
        nudges=Nudges(),
    )
    yield _Node(clock, ledger, reader, use, watcher)
    pidfds.close()
    paths.close()
    await ledger.close()
    for lane in lanes:
        lane.close(patience=5.0)


@pytest.mark.parametrize("passed", [False, True])
async def test_an_allocation_that_no_pod_is_named_for_ends_in_time_although_nothing_changes(
    tmp_path: Path, passed: bool
) -> None:
    async with _node(tmp_path) as on:
        await on.watcher.catch_up()
        on.clock.shift(_TIMEOUT / 2)
        await on.watcher.catch_up()
        assert on.ledger.book.value.allocations
        on.clock.shift(_TIMEOUT / 2 if passed else _TIMEOUT / 2 - 1.0)
        await on.watcher.catch_up()
        if passed:
            await until(lambda: not on.ledger.book.value.allocations)
        assert bool(on.ledger.book.value.allocations) is not passed


async def test_that_a_holder_has_ended_makes_kubelet_worth_asking_at_once(tmp_path: Path) -> None:
    async with _node(tmp_path, entry(X, "d0")) as on:
        running = asyncio.create_task(on.watcher.run())
        await until(lambda: on.watcher.compared_at is not None)
        assert not on.reader.asked
        on.use.exits.set(1)
        await until(lambda: on.reader.asked)
        running.cancel()
