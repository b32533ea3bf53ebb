"""The processes of a pod: what each is, and the end of all of them as one."""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog
from msgspec import Struct

from holdfast.errors import HostError, LaneStuckError, LedgerError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs, SandboxRoles, containing, outside_parent
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import BootId, PodUid, ProcessId
from holdfast.model.reclaim.ending import Member, Parent, RuntimeState
from holdfast.model.use.holders import Sandbox
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, seen_through

log = structlog.get_logger(__name__)

_UNINTERRUPTIBLE = "D"
_EXITED = "Z"
_LISTED_AGAIN = 3
"""How often processes are listed that have ended by the time they are read."""
_SANDBOX_TIME = 0.3
"""Seconds in which what takes long to read tells what sandbox a pod's processes are of. It is
less than `reclaim.evidenceAge`, and the pods of a node share the lane."""
_FREEZE_TIME = 0.2
"""Seconds in which a cgroup is frozen, unless a process in it sleeps in the kernel."""
_THAW_AGAIN = 2.0
"""Seconds after which a cgroup that could not be thawed is tried again."""

MayEnd = Callable[[tuple[Member, ...]], bool]
"""Judges all of a pod's processes; it may be called from any thread."""


class CgroupOutcome(Enum):
    """What came of ending a cgroup as one."""

    KILLED = "cgroup"
    FROZEN = "frozen"
    """Its processes were signalled while none of them could fork."""

    SPARED = "spared"
    """It was judged otherwise at the last moment, or that could not be done in time."""

    IMPOSSIBLE = "impossible"
    """With cgroup v1, an old kernel, or when it is not the same cgroup any more."""


class FrozenCgroup(Struct, frozen=True, kw_only=True):
    """A cgroup that we freeze. The ledger has it, by its path, from before until it is thawed."""

    inode: int
    boot: BootId


@dataclass(kw_only=True, eq=False)
class Pods:
    """Looks at the processes of one pod on a lane, and ends them.

    It reads and writes `cgroups` on `lane`, signals through `pidfds`, and notes in `ledger`.
    """

    cgroups: Cgroups
    runtimes: RuntimeFiles
    procfs: Procfs
    pidfds: Pidfds
    lane: Lane
    ledger: Ledger

    def __post_init__(self) -> None:
        self._frozen = LedgerTopic(self.ledger, "reclaim/frozen", FrozenCgroup)
        self._freezing = asyncio.Lock()
        self._problems: dict[str, Problem] = {}

    async def members(self, pod: PodUid) -> tuple[Member, ...]:
        """Return every live process in the pod's cgroup, with who started it."""
        return await self.lane.run(lambda: self.members_now(pod))

    def members_now(self, pod: PodUid) -> tuple[Member, ...]:
        """Return the same as `members`; this blocks, and belongs on the lane.

        Raise HostError where not all of them can be read: those that are judge each other. None
        are returned of a populated cgroup only if all that were listed ended, several times.
        """
        for _ in range(_LISTED_AGAIN):
            cgroup = self.cgroups.pod(pod)
            if cgroup is None or cgroup.populated is False:
                break
            if cgroup.unlisted:
                raise HostError(cgroup.unlisted)
            if found := self._members_of(pod, cgroup):
                return found
        return ()

    def _members_of(self, pod: PodUid, cgroup: PodSighting) -> tuple[Member, ...]:
        inside = frozenset(cgroup.processes)
        shims = containing(self.procfs, inside)
        roles = SandboxRoles(self.procfs, seconds=_SANDBOX_TIME)
        parents: dict[ProcessId, Parent] = {}
        found: list[Member] = []
        for pid in sorted(inside):
            facts = self.procfs.certain(pid)
            if facts is None or not facts.can_act:
                continue
            parent = outside_parent(self.procfs, facts, inside, parents)
            if parent is None and self.procfs.has_ended(facts.process):
                continue  # it has ended, and so tells nothing of a parent
            found.append(
                Member(
                    process=facts.process,
                    command=facts.comm,
                    parent=parent,
                    contains=pid in shims,
                    started_at=self.procfs.started_at(facts.process),
                    in_pod=pod,
                    inode=cgroup.inode,
                    sandbox=_sandbox(roles, pid),
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
            return await self.lane.run(lambda: self.runtimes.state(pod))
        except LaneStuckError as error:
            return RuntimeState(problem=str(error))

    async def kill(
        self,
        pod: PodUid,
        *,
        path: str,
        inode: int,
        may_end: MayEnd,
        as_one: MayEnd,
        ask_again: Callable[[], Awaitable[MayEnd | None]],
    ) -> CgroupOutcome:
        """End the cgroup at *path*, which is still the one with *inode*, so that none forks away.

        *may_end* judges all of the pod's processes once more, right before they are ended, and
        *as_one* whether the kernel may be told to end the cgroup. Else it is frozen, listed, and
        each process in it is ended by itself, if what *ask_again* returns agrees: a slow disk, on
        which the freeze is noted first, makes older evidence worthless. It returns None where
        there is no new evidence, and then nothing is frozen. Nothing stays frozen.
        """
        try:
            outcome = await self.lane.run(lambda: self._kill(pod, path, inode, may_end, as_one))
        except LaneStuckError as error:
            return _not_now(path, error)
        except HostError as error:
            log.info("cannot use cgroup.kill", cgroup=path, reason=str(error))
        else:
            if outcome is not None:
                return outcome
        try:
            async with self._freezing:
                noted = await self._note(path, inode)
                # It ends also in a daemon that stops: perhaps no other comes.
                return await seen_through(self._kill_frozen(pod, path, noted, await ask_again()))
        except LaneStuckError as error:
            return _not_now(path, error)
        except (HostError, LedgerError) as error:
            log.info("cannot freeze and kill a cgroup", cgroup=path, reason=str(error))
            return CgroupOutcome.IMPOSSIBLE

    async def thaw(self) -> None:
        """Let all go on that we froze and could not thaw: a daemon was killed, or a call hung."""
        if not self._frozen.value:
            return
        async with self._freezing:
            for path, each in self._frozen.value.items():
                await self._thaw(path, each)

    async def run(self) -> None:
        """Do as `thaw` at once, for the daemon before this one, and again; until cancelled."""
        while True:
            changes = Changes([self.ledger.book])
            await self.thaw()
            await changes.wait(_THAW_AGAIN if self._frozen.value else math.inf)

    def _kill(
        self, pod: PodUid, path: str, inode: int, may_end: MayEnd, as_one: MayEnd
    ) -> CgroupOutcome | None:
        """Judge and end in one call: what was judged before has waited for this lane.

        Return None where it may be ended, and not as one.
        """
        listed = self.members_now(pod)
        if not may_end(listed):
            return CgroupOutcome.SPARED
        if not as_one(listed) or any(map(self._leader_has_exited, listed)):
            return None
        self.cgroups.kill(path, inode)
        return CgroupOutcome.KILLED

    def _leader_has_exited(self, member: Member) -> bool:
        """Tell whether only other threads of it live: cgroup.kill does not end them.

        It signals the leader alone, for which an exited one takes no signal (Linux 6.1 and 6.18).
        """
        facts = self.procfs.process(member.process.pid)
        return facts is not None and facts.state == _EXITED

    async def _note(self, path: str, inode: int) -> FrozenCgroup | None:
        """Note that the cgroup is to be frozen; return None where somebody else has frozen it.

        Who is killed after that leaves it to the next daemon. What is noted and not frozen is
        forgotten by `thaw`.
        """
        noted = self._frozen.value
        if path not in noted and await self.lane.run(lambda: self.cgroups.is_frozen(path)):
            return None
        new = FrozenCgroup(inode=inode, boot=self.ledger.boot)
        await self._frozen.keep({**noted, path: new})
        return new

    async def _kill_frozen(
        self, pod: PodUid, path: str, noted: FrozenCgroup | None, may_end: MayEnd | None
    ) -> CgroupOutcome:
        """End the processes of a cgroup while it is frozen: by us where *noted*, else by others."""
        try:
            if may_end is None:
                return CgroupOutcome.SPARED
            if noted is not None:
                await self.lane.run(lambda: self._freeze(path, noted.inode))
            ended = await self._kill_each(pod, may_end)
        finally:
            if noted is not None:
                await self._thaw(path, noted)
        return CgroupOutcome.FROZEN if ended else CgroupOutcome.SPARED

    async def _kill_each(self, pod: PodUid, may_end: MayEnd) -> bool:
        found = await self.members(pod)
        with self.pidfds.holding(each.process for each in found) as held:
            # Asked after the pidfds were opened: a pid that was listed before may be another's.
            members = await self.members(pod)
            if not may_end(members):
                return False
            for each in members:
                if each.process in held:
                    self.pidfds.send(each.process, signal.SIGKILL)
        return True

    def _freeze(self, path: str, inode: int) -> None:
        """Freeze it, and wait until it is: before, one that is listed can still fork."""
        self.cgroups.freeze(path, inode, frozen=True)
        if not self.cgroups.await_frozen(path, patience=_FREEZE_TIME):
            log.info("cgroup not frozen in time", cgroup=path)

    async def _thaw(self, path: str, each: FrozenCgroup) -> None:
        """Let go on what was frozen, or may still be; it stays noted until that is done.

        A freeze that took too long comes first: it is on the same lane.
        """
        try:
            await self.lane.run(lambda: self._thaw_now(path, each))
        except (HostError, LaneStuckError) as error:
            advice = "it is tried again; by hand: write 0 into its cgroup.freeze"
            new = Problem(log, "cannot unfreeze a cgroup", cgroup=path, next=advice)
            self._problems.setdefault(path, new).set(str(error))
            return
        self._problems.pop(path, None)
        others = {name: other for name, other in self._frozen.value.items() if name != path}
        try:
            await self._frozen.keep(others)
        except (LedgerError, LaneStuckError) as error:  # it is thawed once more
            log.info("cannot note that a cgroup is unfrozen", cgroup=path, reason=str(error))

    def _thaw_now(self, path: str, each: FrozenCgroup) -> None:
        is_there = each.boot == self.ledger.boot and self.cgroups.inode(path) == each.inode
        # One that could not be frozen, as in a read-only tree, could not be written to now either.
        if is_there and self.cgroups.is_frozen(path):
            self.cgroups.freeze(path, each.inode, frozen=False)


def _sandbox(roles: SandboxRoles, pid: int) -> Sandbox | None:
    try:
        return roles.of(pid)
    except HostError as error:
        log.debug("cannot tell whether it runs a virtual machine", pid=pid, reason=str(error))
        return Sandbox.MACHINE  # it may run one, which is spared


def _not_now(path: str, error: LaneStuckError) -> CgroupOutcome:
    """Leave it for another time: what was known of the pod is too old."""
    log.info("cgroup not killed", cgroup=path, reason=str(error))
    return CgroupOutcome.SPARED
