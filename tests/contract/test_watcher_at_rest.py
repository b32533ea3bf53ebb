"""What the watcher leaves out while nothing changes, and what it does all the same."""

from pathlib import Path
from typing import Any

import pytest

from fakes.books import BOOT, WHOLE, allocated, inventory, seen, silicon
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.use.look import Look
from holdfast.ledger.ledger import open_ledger
from holdfast.model.kubelet import KubeletView
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim
from manual_clock import ManualClock
from simulated.proctree import ProcTree
from waiting import until

_TIMEOUT = 40.0
"""Less than what passes until nothing new is compared all the same."""


class _Reader:
    """Kubelet's view, which does not change."""

    def __init__(self, view: KubeletView) -> None:
        self.view = Watched(view)

    def ask(self, reason: str) -> None:
        """Nobody answers."""


class _NoReclaimer:
    """Nothing is to be ended here."""

    def start_over(self, pods: object) -> None:
        """Forget nothing."""


@pytest.mark.parametrize("passed", [False, True])
async def test_an_allocation_that_no_pod_is_named_for_ends_in_time_although_nothing_changes(
    tmp_path: Path, passed: bool
) -> None:
    tree, clock = ProcTree(tmp_path), ManualClock()
    (tree.root.sys / "bus").mkdir(parents=True, exist_ok=True)
    tree.myself()
    (tmp_path / "state").mkdir()
    lanes = [Lane(name, deadline=30.0) for name in ("ledger", "pods", "scan")]
    procfs, paths = Procfs(tree.root), PathWatcher()
    pidfds = Pidfds(procfs)
    ledger = await open_ledger(tmp_path / "state", lanes[0], clock=clock, boot=BOOT)
    await ledger.apply(allocated(silicon(d0="a")))
    await until(lambda: ledger.book.value.allocations)
    reader: Any = _Reader(seen(read_at=clock.uptime() + 1.0))
    nobody: Any = _NoReclaimer()
    watcher = Watcher(
        ledger=ledger,
        inventory=Watched(inventory({WHOLE: {}})),
        reader=reader,
        kernel=KernelWatch(
            look=Look(tree.root, lanes[2]),
            pidfds=pidfds,
            clock=clock,
            exited=lambda _process: None,
            rescan=Watched(_TIMEOUT),
            exclusive_open=Watched(False),
        ),
        pods=PodSightings(
            cgroups=Cgroups(tree.root),
            procfs=procfs,
            paths=paths,
            lane=lanes[1],
            clock=clock,
            changed=lambda _pod: None,
        ),
        reclaimer=nobody,
        resetter=nobody,
        clock=clock,
        settings=Watched(Reclaim()),
        pending_timeout=Watched(_TIMEOUT),
    )
    await watcher.catch_up()
    clock.shift(_TIMEOUT / 2)
    await watcher.catch_up()
    assert ledger.book.value.allocations
    clock.shift(_TIMEOUT / 2 if passed else _TIMEOUT / 2 - 1.0)
    await watcher.catch_up()
    if passed:
        await until(lambda: not ledger.book.value.allocations)
    assert bool(ledger.book.value.allocations) is not passed
    pidfds.close()
    paths.close()
    await ledger.close()
    for lane in lanes:
        lane.close(patience=5.0)
