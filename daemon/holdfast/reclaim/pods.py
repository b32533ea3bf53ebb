"""The processes of a pod: what each is, and the end of all of them as one."""

import signal
from collections.abc import Callable, Sequence
from enum import Enum

import structlog

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs, containing, outside_parent, sandbox_of
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.runtime_state import RuntimeState
from holdfast.model.use.holders import Sandbox
from holdfast.runtime.lane import Lane

log = structlog.get_logger(__name__)

_UNINTERRUPTIBLE = "D"

_MayEnd = Callable[[tuple[Member, ...]], bool]
"""Judges all of a pod's processes; it may be called from any thread."""


class Outcome(Enum):
    """What came of ending a cgroup as one."""

    KILLED = "cgroup"
    FROZEN = "frozen"
    """Its processes were signalled while none of them could fork."""

    SPARED = "spared"
    """It was judged otherwise at the last moment, or that could not be done in time."""

    IMPOSSIBLE = "impossible"
    """With cgroup v1, or when it is not the same cgroup any more."""


class Pods:
    """Looks at the processes of one pod on a lane, and ends them."""

    def __init__(
        self,
        *,
        cgroups: Cgroups,
        runtimes: RuntimeFiles,
        procfs: Procfs,
        pidfds: Pidfds,
        lane: Lane,
    ) -> None:
        """Read and write *cgroups* on *lane*, and signal through *pidfds*."""
        self._cgroups = cgroups
        self._lane = lane
        self._runtimes = runtimes
        self._procfs = procfs
        self._pidfds = pidfds

    async def members(self, pod: PodUid) -> tuple[Member, ...]:
        """Return every live process in the pod's cgroup, with who started it."""
        return await self._lane.run(lambda: self.members_now(pod))

    def members_now(self, pod: PodUid) -> tuple[Member, ...]:
        """Return the same as `members`; this blocks, and belongs on the lane.

        Raise HostError where not all of them can be listed: those that are judge each other.
        """
        cgroup = self._cgroups.pod(pod)
        if cgroup is not None and cgroup.unlisted:
            raise HostError(cgroup.unlisted)
        inside = frozenset(cgroup.pids if cgroup is not None else ())
        shims = containing(self._procfs, inside)
        found: list[Member] = []
        for pid in sorted(inside):
            facts = self._procfs.process(pid)
            if facts is None or not facts.can_act:
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

    async def runtime_state(self, pod: PodUid, members: Sequence[Member]) -> RuntimeState | None:
        """Return what the runtime's files say of *pod*; None where none of *members* is a sandbox.

        Without a sandbox the processes themselves show what runs.
        """
        if not any(each.sandbox is not None for each in members):
            return None
        try:
            return await self._lane.run(lambda: self._runtimes.state(pod))
        except LaneStuckError as error:
            return RuntimeState(problem=str(error))

    async def kill(self, pod: PodUid, *, path: str, inode: int, may_end: _MayEnd) -> Outcome:
        """End the cgroup at *path*, which is still the one with *inode*.

        *may_end* judges all of the pod's processes once more, right before the kernel is told to
        end them. Nothing stays frozen, whatever comes of it.
        """
        try:
            killed = await self._lane.run(lambda: self._kill(pod, path, inode, may_end))
        except LaneStuckError as error:
            return _not_now(path, error)
        except HostError as error:
            log.info("cannot use cgroup.kill", cgroup=path, reason=str(error))
        else:
            return Outcome.KILLED if killed else Outcome.SPARED
        try:
            await self._freeze(path, inode, frozen=True)
            ended = await self._kill_each(pod, may_end)
        except LaneStuckError as error:
            return _not_now(path, error)
        except HostError as error:
            log.info("cannot freeze and kill a cgroup", cgroup=path, reason=str(error))
            return Outcome.IMPOSSIBLE
        else:
            return Outcome.FROZEN if ended else Outcome.SPARED
        finally:
            await self._thaw(path, inode)

    def _kill(self, pod: PodUid, path: str, inode: int, may_end: _MayEnd) -> bool:
        """Judge and end in one call: what was judged before has waited for this lane."""
        if not may_end(self.members_now(pod)):
            return False
        self._cgroups.kill(path, inode)
        return True

    async def _kill_each(self, pod: PodUid, may_end: _MayEnd) -> bool:
        found = await self.members(pod)
        with self._pidfds.holding(each.process for each in found) as held:
            # Asked after the pidfds were opened: a pid that was listed before may be another's.
            members = await self.members(pod)
            if not may_end(members):
                return False
            for each in members:
                if each.process in held:
                    self._pidfds.send(each.process, signal.SIGKILL)
        return True

    async def _freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        await self._lane.run(lambda: self._cgroups.freeze(path, inode, frozen=frozen))

    async def _thaw(self, path: str, inode: int) -> None:
        """Let go on what was frozen, also where the freeze may still come."""
        try:
            await self._freeze(path, inode, frozen=False)
        except (HostError, LaneStuckError) as error:
            log.info("cannot unfreeze a cgroup", cgroup=path, reason=str(error))

    def _sandbox(self, pid: int) -> Sandbox | None:
        try:
            return sandbox_of(self._procfs, pid)
        except HostError:  # it may run a machine, which is spared
            return Sandbox.MACHINE


def _not_now(path: str, error: LaneStuckError) -> Outcome:
    """Leave it for another time: what was known of the pod is too old."""
    log.info("cgroup not killed", cgroup=path, reason=str(error))
    return Outcome.SPARED
