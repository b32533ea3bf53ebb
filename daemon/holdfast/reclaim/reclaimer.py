"""Ends what still holds a device whose pod is over, one step at a time, if every guard agrees."""

from collections.abc import Callable, Iterable, Sequence

import structlog
from msgspec.structs import replace

from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.proc.pidfd import Pidfds
from holdfast.kubelet.books import KubeletBooks
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import EndFacts, Member, in_the_way, why_spare
from holdfast.model.reclaim.plan import Attempt, ReclaimStep, next_step, retry_pause
from holdfast.model.reclaim.release import ByHand, Warrant
from holdfast.model.use.free import ReleaseFacts
from holdfast.reclaim.cgroupend import CgroupEnd
from holdfast.reclaim.guards import Guards
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.runtimes import Runtimes
from holdfast.reclaim.signals import Signals
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.settings.sections import Reclaim

log = structlog.get_logger(__name__)


class Reclaimer:
    """Drives one attempt for each pod: SIGTERM, then SIGKILL, then quarantine, then again.

    Nothing is ended on remembered evidence: after the pidfd is open, everything is asked anew.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        books: KubeletBooks,
        pods: Pods,
        runtimes: Runtimes,
        cgroups: Cgroups,
        pidfds: Pidfds,
        lane: Lane,
        clock: Clock,
        settings: Reclaim,
        question_timeout: float,
        own_pid: int,
        judge: Callable[[EndFacts], str | None] = why_spare,
    ) -> None:
        """Act by *settings*; cgroups are written on *lane*.

        *own_pid* is this daemon's as `/proc` shows it, never to be signalled. *judge* is another
        rule only where a test shows what each guard of `why_spare` is for.
        """
        self._ledger = ledger
        self._pods = pods
        self._runtimes = runtimes
        self._clock = clock
        self._settings = settings
        self._question_timeout = question_timeout
        self._guards = Guards(
            ledger=ledger,
            books=books,
            runtimes=runtimes,
            clock=clock,
            settings=settings,
            own_pid=own_pid,
            judge=judge,
        )
        self._signals = Signals(
            ledger=ledger,
            books=books,
            guards=self._guards,
            pods=pods,
            runtimes=runtimes,
            whole=CgroupEnd(cgroups=cgroups, pods=pods, pidfds=pidfds, lane=lane),
            pidfds=pidfds,
            clock=clock,
            question_timeout=question_timeout,
            spared=lambda lock, reason: self._say(lock, "holder not ended", reason),
            observe=self._observed,
        )
        self._attempts: dict[PodUid, Attempt] = {}
        self._orders: dict[PodUid, tuple[ByHand, float]] = {}
        self._said: dict[tuple[DeviceName, str], str] = {}
        self.observe: Callable[[ReclaimStep, str], None] = lambda _step, _outcome: None

    def forget(self, lock: DeviceLock) -> None:
        """Drop what is remembered of a lock whose device is free now."""
        device = lock.device
        others = (each.pod for each in self._ledger.book.value.locks.values() if each != lock)
        if lock.pod is not None and lock.pod not in others:
            self.start_over([lock.pod])
        for about in ("device not free yet", "holder not ended"):
            self._said.pop((device, about), None)

    def start_over(self, pods: Iterable[PodUid]) -> None:
        """Drop what is remembered of *pods*, which are not over: a later end is another one.

        Else it would skip the grace and the SIGTERM that an earlier end of the same UID had.
        """
        for pod in pods:
            self._attempts.pop(pod, None)
            self._orders.pop(pod, None)
            self._guards.forget(pod)

    def retry(self, pod: PodUid, order: ByHand = ByHand.NOTHING) -> None:
        """Begin a new attempt at the next step, without the pause that is left of the last one.

        *order* is the word on which it may act: good for this one attempt, and no longer than one
        takes. A word that was given for what is there now says nothing of what comes later.
        """
        self._attempts.pop(pod, None)
        self._orders[pod] = order, self._clock.monotonic() + self.patience

    async def step(self, lock: DeviceLock, facts: ReleaseFacts, reason: str) -> None:
        """Do what is due for an ending lock; *reason* says why its device is not free."""
        self._say(lock, "device not free yet", reason)
        if lock.pod is None:
            return
        members = await self._pods.members(lock.pod)
        await self._runtimes.look(lock.pod, members)
        self._guards.let_go_at(lock.pod)  # from now on, if it has
        blockers = in_the_way(facts.kernel.holders or (), lock.pod, members)
        attempt = self._attempts.get(lock.pod, Attempt())
        settings, retry = self._settings, self._settings.retry
        step = next_step(
            attempt,
            self._clock.monotonic(),
            term_grace=settings.term_grace,
            kill_grace=settings.kill_grace,
            pause=retry_pause(attempt.number, first=retry.first, last=retry.last),
        )
        if step is ReclaimStep.RETRY:
            attempt = self._attempts[lock.pod] = Attempt(number=attempt.number + 1)
        elif step is ReclaimStep.QUARANTINE:
            attempt = replace(attempt, quarantined_at=self._clock.monotonic())
            self._attempts[lock.pod] = attempt
            self._orders.pop(lock.pod, None)
            self.observe(step, "done")
        # One attempt serves all locks of a pod; each of them follows it with a move of its own.
        given_up = attempt.quarantined_at is not None
        if lock.state is LockState.RECLAIMING and given_up:
            evidence = f"could not be reclaimed: {reason}{_asleep(members)}"
            await self._ledger.move_if_unmoved(lock, LockState.QUARANTINED, evidence)
        elif lock.state is LockState.QUARANTINED and not given_up:
            await self._ledger.move_if_unmoved(lock, LockState.RECLAIMING, f"tried again: {reason}")
        elif step in {ReclaimStep.TERMINATE, ReclaimStep.KILL} and blockers:
            warrant = Warrant(complete=not facts.kernel.gaps, by_hand=self._order(lock.pod))
            await self._end(lock, blockers, step, attempt, warrant)
        elif step is ReclaimStep.KILL:  # nobody is left to end, and yet the kernel says in use
            self._attempts[lock.pod] = replace(attempt, killed_at=self._clock.monotonic())

    async def _end(
        self,
        lock: DeviceLock,
        blockers: Sequence[Member],
        step: ReclaimStep,
        attempt: Attempt,
        warrant: Warrant,
    ) -> None:
        """Signal those of *blockers* that every guard agrees on."""
        judge = self._guards.judging(lock, warrant)
        spared = [judge(each, blockers) for each in blockers]
        if all(spared):
            self._say(lock, "holder not ended", spared[0] or "")
            return
        if lock.state is LockState.RELEASING:
            # Written down first: after a crash the history says that we had begun to act.
            names = ", ".join(f"pid {each.process} ({each.command})" for each in blockers)
            await self._ledger.move_if_unmoved(lock, LockState.RECLAIMING, f"ending {names}")
            return
        sent = await self.signal(lock, step, warrant)
        if not sent:
            return
        now = self._clock.monotonic()
        done = replace(
            attempt,
            terminated_at=attempt.terminated_at or now,
            killed_at=now if step is ReclaimStep.KILL else None,
        )
        if lock.pod is not None:
            self._attempts[lock.pod] = done

    @property
    def patience(self) -> float:
        """Return how many seconds an attempt takes at the most, questions to kubelet included."""
        settings = self._settings
        return settings.term_grace + settings.kill_grace + 2 * self._question_timeout

    def _order(self, pod: PodUid) -> ByHand:
        order, until = self._orders.get(pod, (ByHand.NOTHING, 0.0))
        return order if self._clock.monotonic() < until else ByHand.NOTHING

    async def signal(self, lock: DeviceLock, step: ReclaimStep, warrant: Warrant) -> bool:
        """Signal whom *warrant* means and every guard agrees on; tell whether anybody was."""
        return await self._signals.send(lock, step, warrant)

    def _observed(self, step: ReclaimStep, outcome: str) -> None:
        self.observe(step, outcome)

    def _say(self, lock: DeviceLock, what: str, reason: str) -> None:
        """Log why a device is not free, or its holder not ended, once for each reason."""
        if self._said.get((lock.device, what)) != reason:
            self._said[lock.device, what] = reason
            log.info(what, device=str(lock.device), state=lock.state.value, reason=reason)


def _asleep(members: Sequence[Member]) -> str:
    """Return words for those that no signal can end for now, to complete a reason with."""
    pids = ", ".join(str(each.process) for each in members if each.uninterruptible)
    return f"; in uninterruptible sleep, which only the kernel ends: pid {pids}" if pids else ""
