"""Opens what every part reads the node through, and says what this process lacks for it."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.host.files.inotify import PathWatcher
from holdfast.host.files.paths import mount_of, mounts
from holdfast.host.own import boot_id, privileges
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.node.filesystems import unfit
from holdfast.model.node.readiness import ReadinessCheck, check_openly
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings
from holdfast.settings.needs import NEEDS

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


def lacks(settings: Settings, root: HostRoot) -> tuple[str, ...]:
    """Return, for each need that certainly is not met, what is lost without it and the remedy.

    What cannot be told, or costs a feature in some cases only, is the doctor's to warn of.
    """
    found = privileges(root)
    return tuple(
        f"without {need.privilege} {need.lost}: {need.remedy}"
        for need in NEEDS
        if need.sure and need.asked(settings) and need.has(found) is False
    )


def missing_folders(settings: Settings, root: HostRoot) -> tuple[str, ...]:
    """Return, for each folder of the node that is not there, what is lost and the remedy.

    On a node on which kubelet never ran, its own is not there either; it is once kubelet starts.
    """
    found: list[str] = []
    socket = Path(settings.kubelet.pod_resources_socket)
    if not socket.parent.is_dir():
        found.append(
            f"without {socket.parent} holdfast cannot ask kubelet for its pods: locks of ended "
            "pods stay, and no pod is named: mount that folder of the node, or set "
            "kubelet.podResourcesSocket (kubelet creates it at its first start)"
        )
    mount = mount_of(mounts(root), settings.state_dir)
    if mount is not None and (why := unfit(mount.kind)):
        found.append(
            f"without a stateDir on the node's own disk locks are lost: {settings.state_dir} "
            f"is on {mount.point}, and {why}: mount a folder of the node there"
        )
    return tuple(found)


class Hosts:
    """What every other part reads the node through; made with a loop that runs."""

    def __init__(self, settings: Settings) -> None:
        self.root = HostRoot(**settings.host.folders())
        self.procfs = Procfs(self.root)
        self.boot = boot_id(self.root)
        self.paths = PathWatcher()
        self.pidfds = Pidfds(self.procfs)
        self.lanes = {name: Lane(name, deadline=deadline) for name, deadline in _LANES.items()}

    def close(self) -> None:
        """Close all of it."""
        self.paths.close()
        self.pidfds.close()
        for lane in self.lanes.values():
            lane.close()

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        """Return a new lane, of which every call may take *deadline* seconds."""
        if name in self.lanes:
            raise ValueError(f"cannot open lane {name}: there is one already")
        lane = self.lanes[name] = Lane(name, deadline=deadline)
        return lane

    def checks(self, now: float) -> Iterator[ReadinessCheck]:
        """Yield whether no lane's call is past its deadline at *now* (monotonic seconds)."""
        for name, lane in self.lanes.items():
            since = lane.stuck_since
            hangs = "" if since is None else f"a call has hung for {now - since:.0f} s"
            yield check_openly(f"lane {name}", hangs)
