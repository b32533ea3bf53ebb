"""The pods that have devices: what is in their cgroups, signs that one is over, and its end."""

import math
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs, containing, outside_parent, sandbox_of
from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState
from holdfast.model.book.reconcile import PodSighting
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.runtime_state import RuntimeState
from holdfast.model.use.holders import Sandbox
from holdfast.runtime.clock import Clock
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


class Sign(Enum):
    """What makes kubelet worth asking about a pod."""

    STARTED = "started"
    """Processes were seen in its cgroup: a short program may have left others behind."""
    HOLDER_EXITED = "holder exited"
    """A process that had a device open has ended; its pod may well live on."""
    EMPTY = "empty"
    """Its cgroup had processes and has none any more."""
    GONE = "gone"
    """Its cgroup was there and is not any more."""


_UNTIL_IT_AGREES = (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 60.0)
_ASK_AFTER = {
    Sign.STARTED: (5.0, 10.0, 20.0),
    Sign.HOLDER_EXITED: (0.0, 1.0, 3.0, 6.0, 10.0),
    Sign.EMPTY: _UNTIL_IT_AGREES,
    Sign.GONE: _UNTIL_IT_AGREES,
}
"""When to ask, in seconds after the sign.

Kubelet drops a pod some time after its last process, and each question costs it a write of its
checkpoint. After the last of these moments the regular questions serve: the cgroup of a pod that
waits for a volume is empty for as long as that takes.
"""


@dataclass(slots=True, kw_only=True)
class _Seen:
    sign: Sign
    since: float
    asked: int = 0

    @property
    def due(self) -> float:
        """Return when to ask next, in monotonic seconds."""
        ages = _ASK_AFTER[self.sign]
        return self.since + ages[self.asked] if self.asked < len(ages) else math.inf


class Endings:
    """Remembers which sign of an end each pod that has something shows, and since when."""

    def __init__(self, clock: Clock) -> None:
        """Count ages by *clock*."""
        self._clock = clock
        self._seen: dict[PodUid, _Seen] = {}
        self._exit: _Seen | None = None

    def holder_exited(self) -> None:
        """Note that a process which had a device open has ended, of whatever pod."""
        self._exit = _Seen(sign=Sign.HOLDER_EXITED, since=self._clock.monotonic())

    def is_question_due(self, book: Book, sightings: Mapping[PodUid, PodSighting]) -> bool:
        """Tell whether to ask kubelet now about pods that seem to be over, and take it as asked.

        They are asked about until kubelet does not count them any more.
        """
        held = {lock.pod for lock in book.locks.values() if lock.state is LockState.HELD}
        held |= {each.pod for each in book.allocations.values()}
        had_cgroup = {uid for uid, record in book.pods.items() if record.cgroup is not None}
        self.follow([pod for pod in held if pod is not None], sightings, had_cgroup=had_cgroup)
        return self.due()

    def follow(
        self,
        pods: Collection[PodUid],
        sightings: Mapping[PodUid, PodSighting],
        *,
        had_cgroup: Collection[PodUid],
    ) -> None:
        """Compare *sightings* with those before; *pods* are all that kubelet still has to drop."""
        if not pods:
            self._exit = None
        now = self._clock.monotonic()
        before, self._seen = self._seen, {}
        for pod in pods:
            known = before.get(pod)
            sign = _sign(sightings.get(pod), known, had_cgroup=pod in had_cgroup)
            if sign is not None:
                same = known if known is not None and known.sign is sign else None
                self._seen[pod] = same or _Seen(sign=sign, since=now)

    def due(self) -> bool:
        """Tell whether kubelet is to be asked now, and take it as asked."""
        now = self._clock.monotonic()
        due = [each for each in self._all() if each.due <= now]
        for each in due:
            while each.due <= now:
                each.asked += 1
        return bool(due)

    def pause(self) -> float:
        """Return the seconds until the next question is due; infinite: none will be."""
        next_due = min((each.due for each in self._all()), default=math.inf)
        return max(0.0, next_due - self._clock.monotonic())

    def _all(self) -> list[_Seen]:
        return [*self._seen.values(), *([self._exit] if self._exit is not None else [])]


def _sign(sighting: PodSighting | None, known: _Seen | None, *, had_cgroup: bool) -> Sign | None:
    """Return what a look at a pod's cgroup says; None for a pod that has not begun."""
    if sighting is None:
        return Sign.GONE if had_cgroup else None
    if sighting.processes or sighting.unlisted:
        return Sign.STARTED
    return Sign.EMPTY if known is not None and known.sign is not Sign.GONE else None
