"""Ends what is left of a pod: each process by its pidfd, or the pod's cgroup as one.

Nothing is ended on remembered evidence. Once the pidfds are open, and no pid can become another
process's, everything is asked again.
"""

import signal
from collections.abc import Callable
from enum import Enum

import structlog
from msgspec import Struct

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.model.book.locks import DeviceLock
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member, Warrant, whole_cgroup
from holdfast.model.reclaim.plan import ReclaimStep
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.pods import Pods

log = structlog.get_logger(__name__)

_MayEnd = Callable[[tuple[Member, ...]], bool]
"""Judges all of a pod's processes; it may be called from any thread."""

_SAID = {
    "sent": "signal sent",
    "gone": "process exited before the signal",
    "refused": "signal refused",
}
"""What the log says of each outcome: a process that was signalled may go on for its grace."""


class Outcome(Enum):
    """What came of ending a cgroup as one."""

    KILLED = "cgroup"
    FROZEN = "frozen"
    """Its processes were signalled while none of them could fork."""

    SPARED = "spared"
    """It was judged otherwise at the last moment, or that could not be done in time."""

    IMPOSSIBLE = "impossible"
    """With cgroup v1, or when it is not the same cgroup any more."""


class CgroupEnd:
    """Ends all of a pod's cgroup as one, so that nothing is born in it meanwhile.

    It writes cgroup.kill; before Linux 5.14, which lacks it, it freezes and then goes pid by pid.
    """

    def __init__(self, *, pods: Pods, pidfds: Pidfds) -> None:
        """Look at *pods*, and write to their cgroups."""
        self._pods = pods
        self._pidfds = pidfds

    async def kill(self, pod: PodUid, *, path: str, inode: int, may_end: _MayEnd) -> Outcome:
        """End the cgroup at *path*, which is still the one with *inode*.

        *may_end* judges all of the pod's processes once more, right before the kernel is told to
        end them. Nothing stays frozen, whatever comes of it.
        """
        try:
            killed = await self._pods.lane.run(lambda: self._kill(pod, path, inode, may_end))
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
        self._pods.cgroups.kill(path, inode)
        return True

    async def _kill_each(self, pod: PodUid, may_end: _MayEnd) -> bool:
        found = await self._pods.members(pod)
        with self._pidfds.holding(each.process for each in found) as held:
            # Asked after the pidfds were opened: a pid that was listed before may be another's.
            members = await self._pods.members(pod)
            if not may_end(members):
                return False
            for each in members:
                if each.process in held:
                    self._pidfds.send(each.process, signal.SIGKILL)
        return True

    async def _freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        cgroups = self._pods.cgroups
        await self._pods.lane.run(lambda: cgroups.freeze(path, inode, frozen=frozen))

    async def _thaw(self, path: str, inode: int) -> None:
        """Let go on what was frozen, also where the freeze may still come."""
        try:
            await self._freeze(path, inode, frozen=False)
        except (HostError, LaneStuckError) as error:
            log.info("cannot unfreeze a cgroup", cgroup=path, reason=str(error))


def _not_now(path: str, error: LaneStuckError) -> Outcome:
    """Leave it for another time: what was known of the pod is too old."""
    log.info("cgroup not killed", cgroup=path, reason=str(error))
    return Outcome.SPARED


class Sent(Struct, frozen=True, kw_only=True):
    """What came of one order: the outcome of each signal, or why none was sent.

    Without either, no process was left to end, or a guard spared it at the last moment.
    """

    outcomes: tuple[tuple[ReclaimStep, str], ...] = ()
    spared: str = ""


class _Order(Struct, frozen=True, kw_only=True):
    """Which processes to end, how, and by which permission; `opened` are those whose pidfd is held.

    `asked_at`: after that moment, in seconds since the machine booted, kubelet wrote what it said.
    """

    lock: DeviceLock
    pod: PodUid
    step: ReclaimStep
    warrant: Warrant
    opened: tuple[Member, ...]
    asked_at: float


class _Agreed(Struct, frozen=True, kw_only=True):
    """All of the pod's processes as they are now, and those that every guard agrees to end."""

    members: tuple[Member, ...]
    victims: tuple[Member, ...] = ()
    spared: str = ""


class Signals:
    """Sends signals on evidence that was just asked for, and is dropped where it grows old."""

    def __init__(self, *, evidence: Evidence, pods: Pods, pidfds: Pidfds) -> None:
        """End processes of *pods* that *evidence* allows to be ended."""
        self._evidence = evidence
        self._pods = pods
        self._pidfds = pidfds
        self._whole = CgroupEnd(pods=pods, pidfds=pidfds)

    async def send(self, lock: DeviceLock, step: ReclaimStep, warrant: Warrant) -> Sent:
        """Signal the processes of the lock's pod that *warrant* means and every guard agrees on.

        A pidfd is opened on each before kubelet is asked.
        """
        pod = lock.pod
        if pod is None:
            return Sent()
        meant = [
            each
            for each in await self._pods.members(pod)
            if warrant.only is None or each.process in warrant.only
        ]
        with self._pidfds.holding(each.process for each in meant) as held:
            view = await self._evidence.ask()
            if view is None:
                return Sent(spared="kubelet did not answer")
            return await self._carry_out(
                _Order(
                    lock=lock,
                    pod=pod,
                    step=step,
                    warrant=warrant,
                    opened=tuple(each for each in meant if each.process in held),
                    asked_at=view.sent_at,
                )
            )

    async def _carry_out(self, order: _Order) -> Sent:
        agreed = await self._agreed(order)
        # Nothing in a sandbox could handle a SIGTERM: it is ended as one, at once.
        at_once = order.step is ReclaimStep.KILL or any(each.sandbox for each in agreed.members)
        all_of_it = at_once and len(agreed.victims) == len(agreed.members)
        if agreed.victims and all_of_it:
            how = await self._end_whole(order, agreed.members)
            if how in {Outcome.KILLED, Outcome.FROZEN}:
                return Sent(outcomes=((ReclaimStep.KILL, how.value),))
            if how is Outcome.SPARED:
                return Sent()
            agreed = await self._agreed(order)  # trying took its time
        number = signal.SIGKILL if order.step is ReclaimStep.KILL else signal.SIGTERM
        outcomes = []
        for victim in agreed.victims:
            outcome = self._pidfds.send(victim.process, number)
            outcomes.append((order.step, outcome))
            log.warning(
                _SAID.get(outcome, "signal not sent"),
                signal=number.name,
                pid=victim.process.pid,
                command=victim.command,
                device=str(order.lock.device),
                pod=order.pod,
                outcome=outcome,
            )
        return Sent(outcomes=tuple(outcomes), spared=agreed.spared)

    async def _agreed(self, order: _Order) -> _Agreed:
        """Ask every guard about those that are held."""
        members = await self._evidence.look(order.pod)
        if not self._evidence.stands(order.lock, order.warrant):
            return _Agreed(members=members)
        stale = self._evidence.why_stale(order.asked_at)
        if stale is not None:
            return _Agreed(members=members, spared=stale)
        judge = self._evidence.judging(order.lock, order.warrant)
        held = {each.process for each in order.opened}
        # As they are now: one that was opened may have moved on or become another program.
        victims = tuple(
            each for each in members if each.process in held and judge(each, members) is None
        )
        return _Agreed(members=members, victims=victims)

    async def _end_whole(self, order: _Order, members: tuple[Member, ...]) -> Outcome:
        record = self._evidence.record(order.pod)
        if record is None or record.cgroup is None or record.inode is None:
            return Outcome.IMPOSSIBLE
        let_go_at = record.let_go_at
        if let_go_at is None or not whole_cgroup(members, let_go_at):
            return Outcome.IMPOSSIBLE
        judge = self._evidence.judging(order.lock, order.warrant)

        def may_end(now: tuple[Member, ...]) -> bool:
            return (
                self._evidence.stands(order.lock, order.warrant)
                and self._evidence.why_stale(order.asked_at) is None
                and whole_cgroup(now, let_go_at)
                and not any(judge(each, now) for each in now)
            )

        how = await self._whole.kill(
            order.pod, path=record.cgroup, inode=record.inode, may_end=may_end
        )
        if how in {Outcome.KILLED, Outcome.FROZEN}:
            log.warning(
                "pod cgroup killed",
                cgroup=record.cgroup,
                device=str(order.lock.device),
                pod=order.pod,
                how=how.value,
            )
        return how
