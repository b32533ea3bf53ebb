"""The cgroups of pods that have devices: the processes in them, and a call when one empties."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.proc.parents import containing, outside_parent, sandbox_of
from holdfast.host.proc.procfs import Procfs
from holdfast.model.book.reconcile import PodSighting
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.runtime_state import RuntimeState
from holdfast.model.use.sandbox import Sandbox
from holdfast.runtime.lane import Lane

_UNINTERRUPTIBLE = "D"


class Pods:
    """Looks at pods' cgroups on a lane, and watches those that exist for becoming empty.

    Whoever writes to `cgroups` does it on `lane` too.
    """

    def __init__(
        self,
        *,
        cgroups: Cgroups,
        runtimes: RuntimeFiles,
        procfs: Procfs,
        paths: PathWatcher,
        lane: Lane,
        emptied: Callable[[PodUid], None],
    ) -> None:
        """Call *emptied* on the loop whenever the population of a watched pod changes."""
        self.cgroups = cgroups
        self.lane = lane
        self._runtimes = runtimes
        self._procfs = procfs
        self._paths = paths
        self._emptied = emptied
        self._watched: dict[PodUid, int] = {}

    async def sight(self, pods: Iterable[PodUid]) -> dict[PodUid, PodSighting]:
        """Return the cgroups that exist, with the live processes in each and below."""
        wanted = tuple(pods)
        found = await self.lane.run(lambda: self._sight(wanted))
        self._watch(found)
        return found

    async def members(self, pod: PodUid) -> tuple[Member, ...]:
        """Return every live process in the pod's cgroup, with who started it."""
        return await self.lane.run(lambda: self.members_now(pod))

    async def runtime_state(self, pod: PodUid, members: Sequence[Member]) -> RuntimeState | None:
        """Return what the runtime's files say of *pod*; None where none of *members* is a sandbox.

        Without a sandbox the processes themselves show what runs.
        """
        if not any(each.sandbox is not None for each in members):
            return None
        try:
            return await self.lane.run(lambda: self._runtimes.state(pod))
        except LaneStuckError as error:
            return RuntimeState(problem=str(error))

    def members_now(self, pod: PodUid) -> tuple[Member, ...]:
        """Return the same as `members`; this blocks, and belongs on the lane.

        Raise HostError where not all of them can be listed: those that are judge each other.
        """
        cgroup = self.cgroups.pod(pod)
        if cgroup is not None and cgroup.unlisted:
            raise HostError(cgroup.unlisted)
        inside = frozenset(cgroup.pids if cgroup is not None else ())
        shims = containing(self._procfs, inside)
        found: list[Member] = []
        for pid in sorted(inside):
            facts = self._procfs.process(pid)
            if facts is None or not self._lives(pid):
                continue
            found.append(
                Member(
                    process=facts.process,
                    command=facts.comm,
                    parent=outside_parent(self._procfs, facts, inside),
                    contains=pid in shims,
                    started_at=self._procfs.started_at(facts.process),
                    in_pod=pod,
                    inode=cgroup.inode if cgroup is not None else None,
                    sandbox=self._sandbox(pid),
                    uninterruptible=facts.state == _UNINTERRUPTIBLE,
                )
            )
        return tuple(found)

    def _sandbox(self, pid: int) -> Sandbox | None:
        try:
            return sandbox_of(self._procfs, pid)
        except HostError:  # it may run a machine, which is spared
            return Sandbox.MACHINE

    def _sight(self, pods: tuple[PodUid, ...]) -> dict[PodUid, PodSighting]:
        found: dict[PodUid, PodSighting] = {}
        for uid in pods:
            cgroup = self.cgroups.pod(uid)
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
        return facts is not None and (facts.state not in {"Z", "X"} or facts.threads > 1)

    def _watch(self, found: Mapping[PodUid, PodSighting]) -> None:
        for uid, sighting in found.items():
            if self._watched.get(uid) == sighting.inode:
                continue
            events = self.cgroups.events_path(sighting.cgroup)
            if events is None:
                continue
            try:
                self._paths.watch(events, lambda *_, uid=uid: self._emptied(uid))
            except HostError:  # it vanished, or cgroup v1 has no such file: polling serves
                continue
            self._watched[uid] = sighting.inode
        for uid in self._watched.keys() - found.keys():
            del self._watched[uid]
