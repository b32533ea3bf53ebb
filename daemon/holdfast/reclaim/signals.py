"""Ends processes of a pod that is over: everything is asked anew once nobody can take a pid."""

import signal
from collections.abc import Callable

import structlog
from msgspec import Struct

from holdfast.host.proc.pidfd import Pidfds
from holdfast.kubelet.books import KubeletBooks
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.locks import DeviceLock
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member, whole_cgroup, why_stale
from holdfast.model.reclaim.plan import ReclaimStep
from holdfast.model.reclaim.release import Warrant
from holdfast.reclaim.cgroupend import CgroupEnd, Outcome
from holdfast.reclaim.guards import Guards
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.runtimes import Runtimes
from holdfast.runtime.clock import Clock

log = structlog.get_logger(__name__)

_SAID = {
    "sent": "signal sent",
    "gone": "process exited before the signal",
    "refused": "signal refused",
}
"""What the log says of each outcome: a process that was signalled may go on for its grace."""


class _Errand(Struct, frozen=True, kw_only=True):
    """Whom to end, how, and on whose word; `opened` are those whose pidfd is held.

    `asked_at`: after that moment, in seconds since the machine booted, kubelet wrote what it said.
    """

    lock: DeviceLock
    pod: PodUid
    step: ReclaimStep
    warrant: Warrant
    opened: tuple[Member, ...]
    asked_at: float


class Signals:
    """Nothing is ended on remembered evidence, nor on evidence that grew old under way."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        books: KubeletBooks,
        guards: Guards,
        pods: Pods,
        runtimes: Runtimes,
        whole: CgroupEnd,
        pidfds: Pidfds,
        clock: Clock,
        question_timeout: float,
        spared: Callable[[DeviceLock, str], None],
        observe: Callable[[ReclaimStep, str], None],
    ) -> None:
        """Call *spared* with the reason where nobody is ended, and *observe* for what was done."""
        self._ledger = ledger
        self._books = books
        self._guards = guards
        self._pods = pods
        self._runtimes = runtimes
        self._whole = whole
        self._pidfds = pidfds
        self._clock = clock
        self._question_timeout = question_timeout
        self._spared = spared
        self._observe = observe

    async def send(self, lock: DeviceLock, step: ReclaimStep, warrant: Warrant) -> bool:
        """Open a pidfd on each process of the lock's pod that *warrant* means, and ask again.

        Those that every guard agrees on are signalled; tell whether any was.
        """
        pod = lock.pod
        if pod is None:
            return False
        meant = [
            each
            for each in await self._pods.members(pod)
            if warrant.only is None or each.process in warrant.only
        ]
        with self._pidfds.holding(each.process for each in meant) as held:
            view = await self._books.answered_after(self._clock.uptime(), self._question_timeout)
            if view is None:
                self._spared(lock, "kubelet did not answer")
                return False
            return await self._carry_out(
                _Errand(
                    lock=lock,
                    pod=pod,
                    step=step,
                    warrant=warrant,
                    opened=tuple(each for each in meant if each.process in held),
                    asked_at=view.sent_at,
                )
            )

    async def _carry_out(self, errand: _Errand) -> bool:
        victims, members = await self._agreed(errand)
        # A sandbox has nobody in it that could mind a SIGTERM: it is ended as one, at once.
        at_once = errand.step is ReclaimStep.KILL or any(each.sandbox for each in members)
        all_of_it = at_once and len(victims) == len(members)
        if victims and all_of_it:
            how = await self._end_whole(errand, members)
            if how is not Outcome.IMPOSSIBLE:
                return how is not Outcome.SPARED
            victims, _ = await self._agreed(errand)  # trying took its time
        number = signal.SIGKILL if errand.step is ReclaimStep.KILL else signal.SIGTERM
        for victim in victims:
            outcome = self._pidfds.send(victim.process, number)
            self._observe(errand.step, outcome)
            log.warning(
                _SAID.get(outcome, "signal not sent"),
                signal=number.name,
                pid=victim.process.pid,
                command=victim.command,
                device=str(errand.lock.device),
                pod=errand.pod,
                outcome=outcome,
            )
        return bool(victims)

    async def _agreed(self, errand: _Errand) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """Return whom every guard agrees on, of those held, and all of the pod, as it is now."""
        members = await self._pods.members(errand.pod)
        await self._runtimes.look(errand.pod, members)
        if not self._guards.stands(errand.lock, errand.warrant):
            return (), members
        stale = self._stale(errand)
        if stale is not None:
            self._spared(errand.lock, stale)
            return (), members
        judge = self._guards.judging(errand.lock, errand.warrant)
        held = {each.process for each in errand.opened}
        # As they are now: one that was opened may have moved on or become another program.
        victims = tuple(
            each for each in members if each.process in held and judge(each, members) is None
        )
        return victims, members

    async def _end_whole(self, errand: _Errand, members: tuple[Member, ...]) -> Outcome:
        record = self._ledger.book.value.pods.get(errand.pod)
        let_go_at = self._guards.let_go_at(errand.pod)
        if record is None or record.cgroup is None or record.inode is None or let_go_at is None:
            return Outcome.IMPOSSIBLE
        if not whole_cgroup(members, let_go_at):
            return Outcome.IMPOSSIBLE
        judge = self._guards.judging(errand.lock, errand.warrant)

        def may_end(now: tuple[Member, ...]) -> bool:
            return (
                self._guards.stands(errand.lock, errand.warrant)
                and self._stale(errand) is None
                and whole_cgroup(now, let_go_at)
                and not any(judge(each, now) for each in now)
            )

        how = await self._whole.kill(
            errand.pod, path=record.cgroup, inode=record.inode, may_end=may_end
        )
        if how in {Outcome.KILLED, Outcome.FROZEN}:
            self._observe(ReclaimStep.KILL, how.value)
            log.warning(
                "pod cgroup killed",
                cgroup=record.cgroup,
                device=str(errand.lock.device),
                pod=errand.pod,
                how=how.value,
            )
        return how

    def _stale(self, errand: _Errand) -> str | None:
        """Return why kubelet's word is too old by now; from any thread."""
        return why_stale(
            asked=errand.asked_at,
            now=self._clock.uptime(),
            limit=self._guards.settings.evidence_age,
        )
