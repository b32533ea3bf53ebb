"""Ends processes of a pod on a warrant: their pidfds are open while everything is asked again."""

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.book.book import DeviceLock, PodRecord
from holdfast.model.ids import DeviceName, PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import Grounds, Member, ReclaimStep, Warrant, whole_cgroup
from holdfast.reclaim.pods import CgroupOutcome, MayEnd, Pods
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only
from holdfast.runtime.problem import LogLimit
from holdfast.runtime.watched import Watched, pause
from holdfast.settings.sections import ReclaimSettings

log = structlog.get_logger(__name__)

_SAID = {
    "sent": "signal sent",
    "gone": "process exited before the signal",
    "refused": "signal refused",
}
"""What the log says of each outcome: a process that was signalled may go on for its grace."""


class Judge(Protocol):
    """Judges a pod's processes by one look at all of them, and by what others publish since.

    Its methods may be called from any thread.
    """

    @property
    def members(self) -> tuple[Member, ...]:
        """Return all processes of the pod as that look showed them."""

    @property
    def record(self) -> PodRecord | None:
        """Return what the ledger had of the pod."""

    @property
    def newest(self) -> float | None:
        """Return the latest start, in seconds since the machine booted, that no cgroup is kept for.

        None: the pod's cgroup is neither ended as one nor frozen.
        """

    def why_void(self, members: Sequence[Member]) -> str | None:
        """Return why nothing of the pod may be ended while these are its processes, or None."""

    def spared(self, members: Sequence[Member]) -> Mapping[ProcessId, str]:
        """Return those of *members*, which are all of the pod, that are spared, and why."""


class Witness(Protocol):
    """Knows whether the grounds of a warrant are still true."""

    async def ask(self) -> KubeletView | None:
        """Return what kubelet says, for `judge`; None where it had to answer and did not."""

    async def judge(self, warrant: Warrant, asked_at: float) -> Judge:
        """Look at everything again; *asked_at* is the `sent_at` of what `ask` returned."""


class _Order(Struct, frozen=True, kw_only=True):
    """A warrant that is carried out; `opened` are the processes whose pidfd is held."""

    warrant: Warrant
    step: ReclaimStep
    witness: Witness
    opened: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Permission:
    """What every guard says: who judged, and which processes may be ended.

    `whole`: these are all of the pod's, `victims` those whose pidfd is held: others came meanwhile.
    """

    judge: Judge
    victims: tuple[Member, ...]
    whole: bool


@dataclass(kw_only=True, eq=False)
class Ending:
    """Ends what a warrant allows, as a whole cgroup or pidfd by pidfd; logs and counts it.

    Nothing is ended on remembered evidence: once the pidfds are open, everything is asked again.
    It ends processes of `pods`. `count` counts a step and its outcome, words of docs/metrics.md.
    """

    pods: Pods
    clock: Clock
    settings: Watched[ReclaimSettings]
    count: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self._spared: dict[DeviceName, tuple[PodUid | None, str]] = {}
        self._limit = LogLimit(self.clock)
        self._acting = asyncio.Lock()

    async def end(self, warrant: Warrant, step: ReclaimStep, witness: Witness) -> bool:
        """Signal the processes that *warrant* means and every guard agrees on.

        A pidfd is opened on each before *witness* is asked. Return False where no signal was sent:
        no process was left to end, or a guard spared it at the last moment.
        """
        meant = [
            each
            for each in await self.pods.members(warrant.pod)
            if warrant.only is None or each.process in warrant.only
        ]
        with self.pods.pidfds.holding(each.process for each in meant) as held:
            opened = tuple(each for each in meant if each.process in held)
            order = _Order(warrant=warrant, step=step, witness=witness, opened=opened)
            return await self._carry_out(order)

    async def end_at_once(self, warrant: Warrant, witness: Witness) -> frozenset[ProcessId]:
        """Send SIGTERM, and SIGKILL to who is left; return which of those meant live after that."""
        settings = self.settings.value
        steps = (
            (ReclaimStep.TERMINATE, settings.term_grace),
            (ReclaimStep.KILL, settings.kill_grace),
        )
        left, sent = warrant.only or frozenset(), False
        for step, grace in steps:
            sent = await self.end(replace(warrant, only=left), step, witness) or sent
            left = await self._left(warrant.pod, left, grace if sent else 0.0)
            if not left:
                break
        return left

    def spare(self, lock: DeviceLock, reason: str, *, gap: str = "") -> None:
        """Log why who holds the device of *lock* is not ended: once for all devices of a pod.

        *gap* is what could not be seen. It may be another at each look.
        """
        said = lock.pod, reason
        if said not in self._spared.values():
            if not self._limit.allows(lock.pod or lock.device):
                return
            log.info(
                "holder not ended",
                device=str(lock.device),
                pod=lock.pod,
                state=lock.state.value,
                reason=reason,
                **({"gap": gap} if gap else {}),
            )
        self._spared[lock.device] = said

    def keep(self, devices: Collection[DeviceName]) -> None:
        """Forget why holders of others than *devices*, which are locked, were spared."""
        keep_only(devices, self._spared)

    async def _asked(self, order: _Order) -> float | None:
        """Ask the witness about kubelet; return `asked_at` for its `judge`.

        None: kubelet had to answer and did not. The pod's name that a person typed stands in for
        its answer.
        """
        view = await order.witness.ask()
        if view is None and order.warrant.grounds is not Grounds.FORCE:
            self.spare(order.warrant.lock, "kubelet did not answer")
            return None
        return self.clock.uptime() if view is None else view.sent_at

    async def _left(
        self, pod: PodUid, processes: frozenset[ProcessId], grace: float
    ) -> frozenset[ProcessId]:
        """Return which of *processes* live after *grace* seconds, or none as soon as none does."""
        end = self.clock.monotonic() + grace
        while True:
            left = processes & {each.process for each in await self.pods.members(pod)}
            if not left or self.clock.monotonic() >= end:
                return left
            await pause(self.clock, self.settings, lambda settings: settings.release_poll)

    async def _carry_out(self, order: _Order, *, as_one: bool = True) -> bool:
        if (asked_at := await self._asked(order)) is None:
            return False
        # Many may have waited for one answer of kubelet's. If each then looked before any is ended,
        # it could be too old for all of them, each time.
        async with self._acting:
            agreed = await self._agreed(order, asked_at)
            if agreed is None:
                return False
            # Nothing in a sandbox could handle a SIGTERM: it is ended as one, at once.
            sandbox = any(each.sandbox for each in agreed.judge.members)
            at_once = as_one and (sandbox or order.step is ReclaimStep.KILL)
            if not (at_once and agreed.whole):
                return self._signal_each(order, agreed)
            how = await self._end_whole(order, agreed.judge)
        if how is CgroupOutcome.IMPOSSIBLE:  # trying took its time: everything is asked again
            return await self._carry_out(order, as_one=False)
        return how is not CgroupOutcome.SPARED

    async def _agreed(self, order: _Order, asked_at: float) -> _Permission | None:
        """Ask every guard about those that the warrant means; None: nothing may be ended."""
        judge = await order.witness.judge(order.warrant, asked_at)
        members, only = judge.members, order.warrant.only
        void = judge.why_void(members)
        held = {each.process for each in order.opened}
        spared = judge.spared(members)
        # As they are now: one that was opened may have moved on or become another program.
        agreed = [
            each
            for each in members
            if (only is None or each.process in only) and each.process not in spared
        ]
        victims = tuple(each for each in agreed if each.process in held)
        if order.warrant.grounds is Grounds.LEAK and not len(victims) == len(members) == len(held):
            void = void or "its processes change"
        if void is not None:
            self.spare(order.warrant.lock, void, gap=order.warrant.gap)
            return None
        return _Permission(
            judge=judge,
            victims=victims,
            whole=bool(members) and len(agreed) == len(members),
        )

    async def _end_whole(self, order: _Order, judge: Judge) -> CgroupOutcome:
        record, newest = judge.record, judge.newest
        if record is None or record.cgroup is None or record.inode is None or newest is None:
            return CgroupOutcome.IMPOSSIBLE

        def as_one(now: tuple[Member, ...]) -> bool:
            return whole_cgroup(now, newest)

        async def ask_again() -> MayEnd | None:
            if (at := await self._asked(order)) is None:
                return None
            again = await order.witness.judge(order.warrant, at)
            return None if again.newest is None else _may_end_all(again)

        how = await self.pods.kill(
            order.warrant.pod,
            path=record.cgroup,
            inode=record.inode,
            may_end=_may_end_all(judge),
            as_one=as_one,
            ask_again=ask_again,
        )
        if how in {CgroupOutcome.KILLED, CgroupOutcome.FROZEN}:
            self._count(order.warrant, ReclaimStep.KILL, how.value)
            log.warning(
                "pod cgroup killed",
                cgroup=record.cgroup,
                device=str(order.warrant.lock.device),
                pod=order.warrant.pod,
                grounds=order.warrant.grounds.value,
                how=how.value,
            )
        return how

    def _signal_each(self, order: _Order, agreed: _Permission) -> bool:
        number = signal.SIGKILL if order.step is ReclaimStep.KILL else signal.SIGTERM
        outcomes = [self._signal(order, victim, number) for victim in agreed.victims]
        # All that a sandbox consists of is one step.
        for outcome in outcomes[:1] if order.warrant.grounds is Grounds.LEAK else outcomes:
            self._count(order.warrant, order.step, outcome)
        # Who forks on and ends has no pid for long enough: with SIGKILL it is frozen.
        return agreed.whole or bool(agreed.victims)

    def _signal(self, order: _Order, victim: Member, number: signal.Signals) -> str:
        outcome = self.pods.pidfds.send(victim.process, number)
        log.warning(
            _SAID.get(outcome, "signal not sent"),
            signal=number.name,
            pid=victim.process.pid,
            command=victim.command,
            device=str(order.warrant.lock.device),
            pod=order.warrant.pod,
            grounds=order.warrant.grounds.value,
            outcome=outcome,
        )
        return outcome

    def _count(self, warrant: Warrant, step: ReclaimStep, outcome: str) -> None:
        leaks = warrant.grounds is Grounds.LEAK
        self.count("sandbox" if leaks else step.value, outcome)


def _may_end_all(judge: Judge) -> MayEnd:
    """Return whether *judge* lets all of a pod be ended, if these are its processes."""

    def may_end(now: tuple[Member, ...]) -> bool:
        return judge.why_void(now) is None and bool(now) and not judge.spared(now)

    return may_end
