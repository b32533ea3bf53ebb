"""Which pods have a cgroup and what lives in it: read again when that may have changed."""

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.procfs import Procfs
from holdfast.model.book.reconcile import PodSighting
from holdfast.model.ids import PodUid
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.turns import Turns

_AT_MOST = 8
_PAUSE = 10.0
"""Seconds after which a cgroup is read again although the kernel told of no change, a few at a
time. Kubelet's own list of pods, asked for once a minute, does not depend on events either."""


class _Watch(Struct, frozen=True):
    """What is watched of a pod: the cgroup with `inode`, until `end` is called."""

    inode: int
    end: Callable[[], None]


class _Seen(Struct, frozen=True):
    """What was read of a pod's cgroup; `watched`: the kernel told of no change meanwhile."""

    sighting: PodSighting
    watched: bool


class PodSightings:
    """Reads pods' cgroups on a lane, and watches those that exist for becoming empty.

    One look at a time.
    """

    def __init__(
        self,
        *,
        cgroups: Cgroups,
        procfs: Procfs,
        paths: PathWatcher,
        lane: Lane,
        clock: Clock,
        changed: Callable[[PodUid], None],
    ) -> None:
        """Call *changed* on the loop whenever the population of a watched pod changes."""
        self._cgroups = cgroups
        self._procfs = procfs
        self._paths = paths
        self._lane = lane
        self._changed = changed
        self._watched: dict[PodUid, _Watch] = {}
        self._seen: dict[PodUid, _Seen] = {}
        self._turns: Turns[PodUid] = Turns(clock, at_most=_AT_MOST, pause=_PAUSE)

    async def sight(
        self, pods: Collection[PodUid], *, anew: Collection[PodUid] = ()
    ) -> dict[PodUid, PodSighting]:
        """Return the cgroups that exist of *pods*, with the live processes in each and below.

        Those of *anew* are read now, and all of which the kernel would not tell a change. Of the
        others it tells when the last process ends; which processes they have may be older.
        """
        announced = [pod for pod in pods if pod not in anew and self._is_announced(pod)]
        due = {*pods}.difference(announced).union(self._turns.next(announced))
        if due:
            await self._look_at(sorted(due))
        for pod in self._seen.keys() - set(pods):
            del self._seen[pod]
        self._watch()
        return {pod: self._seen[pod].sighting for pod in pods if pod in self._seen}

    def _is_announced(self, pod: PodUid) -> bool:
        """Tell whether what was seen of *pod* holds until the kernel tells of a change.

        It tells when a cgroup gets its first process or loses its last one, and not when an empty
        one is removed.
        """
        seen = self._seen.get(pod)
        if seen is None or not seen.watched or pod not in self._watched:
            return False
        return bool(seen.sighting.processes) and not seen.sighting.unlisted

    async def _look_at(self, pods: Sequence[PodUid]) -> None:
        found = await self._lane.run(lambda: self._read(pods))
        for pod in pods:
            self._seen.pop(pod, None)
        for pod, sighting in found.items():
            watch = self._watched.get(pod)
            # A watch begins after a look and ends with an event: this one saw the whole look.
            watched = watch is not None and watch.inode == sighting.inode
            self._seen[pod] = _Seen(sighting, watched)

    def _read(self, pods: Iterable[PodUid]) -> dict[PodUid, PodSighting]:
        found: dict[PodUid, PodSighting] = {}
        for uid in pods:
            cgroup = self._cgroups.pod(uid)
            if cgroup is not None:
                found[uid] = PodSighting(
                    cgroup=cgroup.path,
                    inode=cgroup.inode,
                    processes=tuple(pid for pid in cgroup.pids if self._lives(pid)),
                    unlisted=cgroup.unlisted,
                )
        return found

    def _lives(self, pid: int) -> bool:
        """Tell whether *pid* can still act: a zombie whose threads are gone holds nothing."""
        facts = self._procfs.process(pid)
        return facts is not None and facts.can_act

    def _watch(self) -> None:
        for pod in self._watched.keys() - self._seen.keys():
            self._unwatch(pod)
        for pod, seen in self._seen.items():
            known = self._watched.get(pod)
            if known is not None and known.inode == seen.sighting.inode:
                continue
            self._unwatch(pod)
            events = self._cgroups.events_path(seen.sighting.cgroup)
            if events is None:
                continue
            try:
                end = self._paths.watch(events, lambda *_, pod=pod: self._happened(pod))
            except HostError:  # it vanished, or cgroup v1 has no such file: polling serves
                continue
            self._watched[pod] = _Watch(seen.sighting.inode, end)

    def _unwatch(self, pod: PodUid) -> None:
        watch = self._watched.pop(pod, None)
        if watch is not None:
            watch.end()

    def _happened(self, pod: PodUid) -> None:
        self._unwatch(pod)  # the kernel may have ended it: it begins anew with the next look
        self._changed(pod)
