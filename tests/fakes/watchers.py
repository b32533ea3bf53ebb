"""The watcher as the daemon builds it, and one over a node of plain files that shows nobody."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.books import WHOLE, Silicon, inventory, seen
from fakes.inuse import device_use, look_at
from fakes.ledgers import ledger_in
from holdfast.errors import LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import EmptyPods
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings.sections import ReclaimSettings
from manual_clock import ManualClock
from simulated.proctree import ProcTree


def watcher_of(*, pending_timeout: float = 60.0, **parts: Any) -> Watcher:
    """Return a watcher of *parts* for which no resource is retired and nothing is obstructed."""
    return Watcher(
        pending_timeout=Watched(pending_timeout),
        is_retired=lambda _resource: False,
        obstacles=Watched({}),
        emptied=EmptyPods(),
        **parts,
    )


class KnownKubelet:
    """A kubelet of which a test says what is known; it answers with that, and notes who asks why."""

    def __init__(self, view: KubeletView | None = None) -> None:
        self.view: Watched[KubeletView] = Watched(view or seen())
        self.asked: list[str] = []
        self.stuck = False
        """The disk with its checkpoint gives no answer."""

    def ask(self, reason: str) -> None:
        self.asked.append(reason)

    async def refresh(self) -> KubeletView:
        if self.stuck:
            raise LaneStuckError("no answer within 5 s")
        return self.view.value

    async def answered_after(self, _moment: float, _timeout: float) -> KubeletView | None:
        return self.view.value


class NothingToDo:
    """Ends and resets nothing, and finds every device in order."""

    def keep(self, pods: Any, devices: object) -> None: ...

    def ends_after(self, lock: object) -> None: ...

    async def step(self, lock: Any, *facts: object) -> None: ...

    async def detains(self, lock: Any) -> str:
        return ""

    def clears(self, *facts: object) -> str | None:
        return ""


@dataclass
class WatchedFolder:
    """A watcher of a node, whose hardware is unplugged unless a test says what there is."""

    clock: ManualClock
    ledger: Ledger
    reader: KnownKubelet
    use: DeviceUse
    watcher: Watcher
    work: Any
    """What ends and resets."""


@asynccontextmanager
async def watcher_below(
    folder: Path,
    *,
    view: Callable[[ManualClock], KubeletView] = lambda _clock: seen(),
    work: Callable[[Ledger], Any] = lambda _ledger: NothingToDo(),
    settings: ReclaimSettings | None = None,
    timeout: float = 60.0,
    devices: Mapping[ResourceName, Silicon] | None = None,
) -> AsyncIterator[WatchedFolder]:
    """Yield the watcher of a node below *folder*; what ends and resets is *work* on its ledger.

    *timeout* is when an Allocation that no pod is named for ends, and when use that nobody
    explains is looked for again; *devices* are on the node.
    """
    tree, clock = ProcTree(folder), ManualClock()
    (tree.root.sys / "bus").mkdir(parents=True, exist_ok=True)
    tree.myself()
    paths, pidfds, reader = PathWatcher(), Pidfds(Procfs(tree.root)), KnownKubelet(view(clock))
    with closing(Lane("pods", deadline=30.0)) as pods, closing(Lane("scan", deadline=30.0)) as scan:
        async with ledger_in(folder / "state", clock) as ledger:
            use = device_use(look_at(tree.root, scan), pidfds, clock, rescan=timeout)
            done = work(ledger)
            watcher = watcher_of(
                ledger=ledger,
                inventory=Watched(inventory(devices or {WHOLE: {}})),
                reader=reader,
                use=use,
                pods=PodSightings(
                    cgroups=Cgroups(tree.root),
                    paths=paths,
                    lane=pods,
                    clock=clock,
                    nudges=Nudges(),
                ),
                reclaimer=done,
                resetter=done,
                clock=clock,
                settings=Watched(settings or ReclaimSettings()),
                pending_timeout=timeout,
                nudges=Nudges(),
            )
            yield WatchedFolder(clock, ledger, reader, use, watcher, done)
    pidfds.close()
    paths.close()
