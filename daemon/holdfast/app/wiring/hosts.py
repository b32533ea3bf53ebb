"""Opens what every part reads the node through: its folders, its events and the lanes."""

from msgspec import Struct

from holdfast.host.files.inotify import PathWatcher
from holdfast.host.own.process import boot_id
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings

_LANES = {
    "ledger": 30.0,
    "scan": 30.0,
    "discovery": 30.0,
    "cdi": 5.0,
    "pods": 10.0,
    "kubelet": 5.0,
    "configuration": 30.0,
}
"""Each lane with its deadline in seconds; a call that takes longer is a fact for /readyz."""


class Hosts(Struct, frozen=True, kw_only=True):
    """What every other part reads the node through."""

    root: HostRoot
    procfs: Procfs
    boot: BootId
    paths: PathWatcher
    pidfds: Pidfds
    lanes: dict[str, Lane]

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        """Return a new lane, of which every call may take *deadline* seconds."""
        if name in self.lanes:
            raise ValueError(f"cannot open lane {name}: there is one already")
        lane = self.lanes[name] = Lane(name, deadline=deadline)
        return lane


def build_host(settings: Settings) -> Hosts:
    """Open what the node is read through; the loop must run."""
    root = HostRoot(**settings.host.folders())
    procfs = Procfs(root)
    return Hosts(
        root=root,
        procfs=procfs,
        boot=boot_id(root),
        paths=PathWatcher(),
        pidfds=Pidfds(procfs),
        lanes={name: Lane(name, deadline=deadline) for name, deadline in _LANES.items()},
    )
