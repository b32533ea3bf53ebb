"""Ends all of a pod's cgroup as one, so that nothing is born in it meanwhile."""

import signal
from collections.abc import Callable
from enum import Enum

import structlog

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.proc.pidfd import Pidfds
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.reclaim.pods import Pods
from holdfast.runtime.lane import Lane

log = structlog.get_logger(__name__)

_MayEnd = Callable[[tuple[Member, ...]], bool]


class Outcome(Enum):
    """What came of ending a cgroup as one."""

    KILLED = "cgroup"
    FROZEN = "frozen"
    """Its processes were signalled while none of them could fork."""

    SPARED = "spared"
    """It was judged otherwise at the last moment, or that could not be done in time."""

    IMPOSSIBLE = "impossible"
    """With cgroup v1, or when it is another one by now."""


class CgroupEnd:
    """Writes cgroup.kill; before Linux 5.14, which lacks it, freezes and then goes pid by pid."""

    def __init__(self, *, cgroups: Cgroups, pods: Pods, pidfds: Pidfds, lane: Lane) -> None:
        """Write cgroups on *lane*, where *pods* are looked at too."""
        self._cgroups = cgroups
        self._pods = pods
        self._pidfds = pidfds
        self._lane = lane

    async def kill(
        self,
        pod: PodUid,
        *,
        path: str,
        inode: int,
        may_end: _MayEnd,
    ) -> Outcome:
        """End the cgroup at *path*, which is still the one with *inode*.

        *may_end* judges all of the pod's processes once more, right before the kernel is told to
        end them; it is called on the lane. Nothing stays frozen, whatever comes of it.
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
        if not may_end(self._pods.members_now(pod)):
            return False
        self._cgroups.kill(path, inode)
        return True

    async def _kill_each(self, pod: PodUid, may_end: _MayEnd) -> bool:
        found = await self._pods.members(pod)
        with self._pidfds.holding(each.process for each in found) as held:
            # Asked after the pidfds were opened: what was listed before may be another by now.
            members = await self._pods.members(pod)
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


def _not_now(path: str, error: LaneStuckError) -> Outcome:
    """Leave it for another time: what was known of the pod is old by now."""
    log.info("cgroup not killed", cgroup=path, reason=str(error))
    return Outcome.SPARED
