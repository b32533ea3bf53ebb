"""Ends what still holds a device whose pod is over, one step at a time, if every guard agrees."""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from holdfast.errors import LaneStuckError, LedgerError
from holdfast.host.cgroups import Cgroups
from holdfast.host.pidfd import Pidfds
from holdfast.ledger.ledger import Ledger
from holdfast.model.draft import Draft
from holdfast.model.ending import EndFacts, Member, in_the_way, whole_cgroup, why_spare, why_stale
from holdfast.model.free import ReleaseFacts
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.model.locks import DeviceLock, LockState
from holdfast.model.reclaim import Attempt, ReclaimStep, ReclaimTimes, next_step
from holdfast.model.release import ByHand, Warrant
from holdfast.reclaim.cgroupend import CgroupEnd, Outcome
from holdfast.reclaim.evidence import Evidences
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.runtimes import Runtimes
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)


class KubeletBooks(Protocol):
    """Kubelet's books, as far as ending a process needs them."""

    @property
    def view(self) -> Watched[KubeletView]:
        """Return the published view."""
        ...

    async def answered_after(self, wall: float, timeout: float) -> KubeletView | None:  # noqa: ASYNC109
        """Ask, and return the view of a question that began after *wall*; None: no answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimRules:
    """What the operator allows, and how long to wait; durations in seconds."""

    terminate: bool = False
    let_go_grace: float = 30.0
    orphan_grace: float = 30.0
    sandbox_grace: float = 900.0
    question_timeout: float = 5.0
    times: ReclaimTimes = field(default_factory=ReclaimTimes)


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
        rules: ReclaimRules,
        own_pid: int,
        judge: Callable[[EndFacts], str | None] = why_spare,
    ) -> None:
        """Act by *rules*; cgroups are written on *lane*.

        *own_pid* is this daemon's as `/proc` shows it, never to be signalled. *judge* is another
        rule only where a test shows what each guard of `why_spare` is for.
        """
        self._ledger = ledger
        self._books = books
        self._pods = pods
        self._runtimes = runtimes
        self._pidfds = pidfds
        self._whole = CgroupEnd(cgroups=cgroups, pods=pods, pidfds=pidfds, lane=lane)
        self._evidences = Evidences(clock)
        self._own_pid = own_pid
        self._clock = clock
        self._rules = rules
        self._judge = judge
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
        for about in ("not free yet", "not ended"):
            self._said.pop((device, about), None)

    def start_over(self, pods: Iterable[PodUid]) -> None:
        """Drop what is remembered of *pods*, which are not over: a later end is another one.

        Else it would skip the grace and the SIGTERM that an earlier end of the same UID had.
        """
        for pod in pods:
            self._attempts.pop(pod, None)
            self._orders.pop(pod, None)
            self._runtimes.forget(pod)
            self._evidences.forget(pod)

    def retry(self, pod: PodUid, order: ByHand = ByHand.NOTHING) -> None:
        """Begin a new attempt at the next step, without the pause that is left of the last one.

        *order* is the word on which it may act: good for this one attempt, and no longer than one
        takes. A word that was given for what is there now says nothing of what comes later.
        """
        self._attempts.pop(pod, None)
        self._orders[pod] = order, self._clock.monotonic() + self.patience

    async def step(self, lock: DeviceLock, facts: ReleaseFacts, reason: str) -> None:
        """Do what is due for an ending lock; *reason* says why its device is not free."""
        self._say(lock, "not free yet", reason)
        if lock.pod is None:
            return
        members = await self._pods.members(lock.pod)
        await self._runtimes.look(lock.pod, members)
        self._evidences.standing_since(self._ledger.book.value.pods.get(lock.pod))
        blockers = in_the_way(facts.kernel.holders or (), lock.pod, members)
        attempt = self._attempts.get(lock.pod, Attempt())
        step = next_step(attempt, self._rules.times, self._clock.monotonic())
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
            await self._move(lock, LockState.QUARANTINED, evidence)
        elif lock.state is LockState.QUARANTINED and not given_up:
            await self._move(lock, LockState.RECLAIMING, f"tried again: {reason}")
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
        spared = [self._why_spare(lock, each, blockers, warrant) for each in blockers]
        if all(spared):
            self._say(lock, "not ended", spared[0] or "")
            return
        if lock.state is LockState.RELEASING:
            # Written down first: after a crash the history says that we had begun to act.
            names = ", ".join(f"pid {each.process} ({each.command})" for each in blockers)
            await self._move(lock, LockState.RECLAIMING, f"ending {names}")
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
        times = self._rules.times
        return times.term_grace + times.kill_grace + 2 * self._rules.question_timeout

    def _order(self, pod: PodUid) -> ByHand:
        order, until = self._orders.get(pod, (ByHand.NOTHING, 0.0))
        return order if self._clock.monotonic() < until else ByHand.NOTHING

    async def signal(self, lock: DeviceLock, step: ReclaimStep, warrant: Warrant) -> bool:
        """Open a pidfd on each process of the lock's pod that *warrant* means, and ask again.

        Those that every guard agrees on are signalled; tell whether any was.
        """
        pod = lock.pod
        if pod is None:
            return False
        candidates = await self._pods.members(pod)
        opened = [
            each
            for each in candidates
            if (warrant.only is None or each.process in warrant.only)
            and self._pidfds.hold(each.process)
        ]
        try:
            return await self._signal_held(lock, pod, opened, step, warrant)
        finally:
            for each in opened:
                self._pidfds.release(each.process)

    async def _signal_held(
        self,
        lock: DeviceLock,
        pod: PodUid,
        opened: Sequence[Member],
        step: ReclaimStep,
        warrant: Warrant,
    ) -> bool:
        began = self._clock.wall()
        view = await self._books.answered_after(began, self._rules.question_timeout)
        if view is None:
            self._say(lock, "not ended", "kubelet did not answer")
            return False
        answered = self._clock.monotonic()
        members = await self._pods.members(pod)
        await self._runtimes.look(pod, members)
        counted = self._is_counted(pod) and warrant.by_hand is not ByHand.FORCE
        if self._ledger.book.value.locks.get(lock.device) != lock or counted:
            return False
        stale = why_stale(
            wrote=view.written_at,
            now=self._clock.wall(),
            waited=self._clock.monotonic() - answered,
        )
        if stale is not None:
            self._say(lock, "not ended", stale)
            return False
        held = {each.process for each in opened}
        # As they are now: one that was opened may have moved on or become another program.
        victims = [
            each
            for each in members
            if each.process in held and self._why_spare(lock, each, members, warrant) is None
        ]
        if not victims:
            return False
        # A sandbox has nobody in it that could mind a SIGTERM: it is ended as one, at once.
        at_once = step is ReclaimStep.KILL or any(each.sandbox is not None for each in members)
        all_of_it = at_once and len(victims) == len(members)
        if all_of_it:
            how = await self._end_whole(lock, pod, members, warrant)
            if how is not Outcome.IMPOSSIBLE:
                return how is not Outcome.SPARED
        number = signal.SIGKILL if step is ReclaimStep.KILL else signal.SIGTERM
        for victim in victims:
            outcome = self._pidfds.send(victim.process, number)
            self.observe(step, outcome)
            log.warning(
                "process ended",
                signal=number.name,
                pid=victim.process.pid,
                command=victim.command,
                device=str(lock.device),
                pod=pod,
                outcome=outcome,
            )
        return True

    async def _end_whole(
        self, lock: DeviceLock, pod: PodUid, members: tuple[Member, ...], warrant: Warrant
    ) -> Outcome:
        record = self._ledger.book.value.pods.get(pod)
        since = self._evidences.standing_since(record)
        if record is None or record.cgroup is None or record.inode is None:
            return Outcome.IMPOSSIBLE
        if record.let_go_at is None or since is None:
            return Outcome.IMPOSSIBLE
        # By the clock as it is set now, by which the starts of processes are known too.
        let_go_at = min(record.let_go_at, self._clock.wall() - (self._clock.monotonic() - since))
        if not whole_cgroup(members, let_go_at):
            return Outcome.IMPOSSIBLE

        def may_end(now: tuple[Member, ...]) -> bool:
            judged = (self._why_spare(lock, each, now, warrant) for each in now)
            return (
                self._ledger.book.value.locks.get(lock.device) == lock
                and not self._is_counted(pod)
                and whole_cgroup(now, let_go_at)
                and not any(judged)
            )

        how = await self._whole.kill(pod, path=record.cgroup, inode=record.inode, may_end=may_end)
        if how not in {Outcome.KILLED, Outcome.FROZEN}:
            return how
        self.observe(ReclaimStep.KILL, how.value)
        log.warning(
            "pod's cgroup killed",
            cgroup=record.cgroup,
            device=str(lock.device),
            pod=pod,
            how=how.value,
        )
        return how

    def _is_counted(self, pod: PodUid) -> bool:
        """Tell whether kubelet has *pod* in its books again, or these cannot be read by now."""
        view = self._books.view.value
        return not view.readable or view.counts(pod)

    def _why_spare(
        self, lock: DeviceLock, each: Member, members: Sequence[Member], warrant: Warrant
    ) -> str | None:
        if lock.pod is None:
            return "the device's pod was never identified"
        record = self._ledger.book.value.pods.get(lock.pod)
        let_go = self._runtimes.seen(lock.pod)
        return self._judge(
            EndFacts(
                terminate=self._rules.terminate,
                scan_complete=warrant.complete,
                process=each.process,
                command=each.command,
                in_pod=each.in_pod,
                inode=each.inode,
                granted_to=lock.pod,
                pod=record,
                let_go_at=self._evidences.standing_since(record),
                kubelet=self._books.view.value.kubelet,
                members=tuple(members),
                runtime_gone_at=let_go.gone_at,
                sandbox=each.sandbox,
                runtime=let_go.state,
                only_pause_at=let_go.only_pause_at,
                now=self._clock.monotonic(),
                own_pid=self._own_pid,
                let_go_grace=self._rules.let_go_grace,
                orphan_grace=self._rules.orphan_grace,
                sandbox_grace=self._rules.sandbox_grace,
                by_hand=warrant.by_hand,
            )
        )

    def _say(self, lock: DeviceLock, what: str, reason: str) -> None:
        """Log why a device is not free, or its holder not ended, once for each reason."""
        if self._said.get((lock.device, what)) != reason:
            self._said[lock.device, what] = reason
            log.info(what, device=str(lock.device), state=lock.state.value, reason=reason)

    async def _move(self, lock: DeviceLock, state: LockState, evidence: str) -> None:
        def decide(draft: Draft) -> None:
            now = draft.book.locks.get(lock.device)
            if now is not None and now.fence == lock.fence:
                draft.move(lock.device, state, evidence)

        try:
            await self._ledger.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            log.warning("cannot record a move", device=str(lock.device), reason=str(error))


def _asleep(members: Sequence[Member]) -> str:
    """Return words for those that no signal can end for now, to complete a reason with."""
    pids = ", ".join(str(each.process) for each in members if each.uninterruptible)
    return f"; in uninterruptible sleep, which only the kernel ends: pid {pids}" if pids else ""
