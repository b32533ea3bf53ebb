"""Ends what still holds a device whose pod is over, one step at a time, if every guard agrees."""

import contextlib
import signal
from collections.abc import Callable, Iterable, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import ByHand, Member, Warrant, in_the_way, whole_cgroup
from holdfast.model.reclaim.plan import Attempt, ReclaimStep, next_step, retry_pause
from holdfast.model.use.free import ReleaseFacts
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.pods import Outcome, Pods
from holdfast.runtime.clock import Clock

log = structlog.get_logger(__name__)

_NEXT = 8
"""Pods of a claim whose turn comes next and that are looked at: each costs a look at /proc."""
_SAID = {
    "sent": "signal sent",
    "gone": "process exited before the signal",
    "refused": "signal refused",
}
"""What the log says of each outcome: a process that was signalled may go on for its grace."""


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


class Reclaimer:
    """Drives one attempt for each pod: SIGTERM, then SIGKILL, then quarantine, then again.

    Nothing is ended on remembered evidence: once the pidfds are open, everything is asked again.
    """

    def __init__(
        self, *, ledger: Ledger, evidence: Evidence, pods: Pods, pidfds: Pidfds, clock: Clock
    ) -> None:
        """End processes of *pods* that *evidence* allows to be ended, by its settings."""
        self._ledger = ledger
        self._evidence = evidence
        self._pods = pods
        self._pidfds = pidfds
        self._clock = clock
        self._attempts: dict[PodUid, Attempt] = {}
        self._by_hand: dict[PodUid, tuple[ByHand, float]] = {}
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
        """Forget *pods*, which are not over.

        A later end of the same UID must not skip the grace and the SIGTERM of the earlier one.
        """
        for pod in pods:
            self._attempts.pop(pod, None)
            self._by_hand.pop(pod, None)
            self._evidence.forget(pod)

    def retry(self, pod: PodUid, order: ByHand = ByHand.NOTHING) -> None:
        """Begin a new attempt at the next step, without the pause that is left of the last one.

        *order* is what a person allowed. It counts for this one attempt only, and no longer than an
        attempt takes: it was given for what is there now.
        """
        self._attempts.pop(pod, None)
        self._by_hand[pod] = order, self._clock.monotonic() + self.patience

    async def step(self, lock: DeviceLock, facts: ReleaseFacts, reason: str) -> None:
        """Do what is due for an ending lock; *reason* says why its device is not free."""
        self._say(lock, "device not free yet", reason)
        if lock.pod is None:
            return
        members = await self._evidence.look(lock.pod)
        await self._look_at_next(lock, lock.pod)
        blockers = in_the_way(facts.kernel.holders or (), lock.pod, members)
        attempt = self._attempts.get(lock.pod, Attempt())
        settings = self._evidence.settings.value
        retry = settings.retry
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
            self._by_hand.pop(lock.pod, None)
            self.observe(step, "done")
        # One attempt serves all locks of a pod; each of them follows it with a move of its own.
        given_up = attempt.quarantined_at is not None
        if lock.state is LockState.RECLAIMING and given_up:
            evidence = f"could not be reclaimed: {reason}{_asleep(members)}"
            await self._ledger.move_if_unmoved(lock, LockState.QUARANTINED, evidence)
        elif lock.state is LockState.QUARANTINED and not given_up:
            await self._ledger.move_if_unmoved(lock, LockState.RECLAIMING, f"tried again: {reason}")
        elif step in {ReclaimStep.TERMINATE, ReclaimStep.KILL} and blockers:
            warrant = Warrant(complete=not facts.kernel.gaps, by_hand=self._allowed(lock.pod))
            await self._end(lock, blockers, step, attempt, warrant)
        elif step is ReclaimStep.KILL:  # no process is left, and yet the kernel shows it in use
            self._attempts[lock.pod] = replace(attempt, killed_at=self._clock.monotonic())

    async def _look_at_next(self, lock: DeviceLock, pod: PodUid) -> None:
        """Note since when kubelet and the runtime have let go of the pods that come after *pod*.

        Several may have shared a claim. Their graces begin with its end, not with their turn.
        """
        pods = sorted(self._ledger.book.value.pods_of(lock) | {pod})
        for each in pods[pods.index(pod) + 1 :][:_NEXT]:
            with contextlib.suppress(HostError):  # what cannot be listed shows nothing
                await self._evidence.look(each)

    async def _end(
        self,
        lock: DeviceLock,
        blockers: Sequence[Member],
        step: ReclaimStep,
        attempt: Attempt,
        warrant: Warrant,
    ) -> None:
        """Signal those of *blockers* that every guard agrees on."""
        judge = self._evidence.judging(lock, warrant)
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
        settings = self._evidence.settings.value
        return settings.term_grace + settings.kill_grace + 2 * self._evidence.question_timeout

    def _allowed(self, pod: PodUid) -> ByHand:
        order, until = self._by_hand.get(pod, (ByHand.NOTHING, 0.0))
        return order if self._clock.monotonic() < until else ByHand.NOTHING

    async def signal(self, lock: DeviceLock, step: ReclaimStep, warrant: Warrant) -> bool:
        """Signal the processes of the lock's pod that *warrant* means and every guard agrees on.

        A pidfd is opened on each before kubelet is asked. Return False where no signal was sent: no
        process was left to end, or a guard spared it at the last moment.
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
            view = await self._evidence.ask()
            if view is None:
                self._say(lock, "holder not ended", "kubelet did not answer")
                return False
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

    async def _carry_out(self, order: _Order) -> bool:
        agreed = await self._agreed(order)
        # Nothing in a sandbox could handle a SIGTERM: it is ended as one, at once.
        at_once = order.step is ReclaimStep.KILL or any(each.sandbox for each in agreed.members)
        all_of_it = at_once and len(agreed.victims) == len(agreed.members)
        if agreed.victims and all_of_it:
            how = await self._end_whole(order, agreed.members)
            if how is not Outcome.IMPOSSIBLE:
                return how is not Outcome.SPARED
            agreed = await self._agreed(order)  # trying took its time
        number = signal.SIGKILL if order.step is ReclaimStep.KILL else signal.SIGTERM
        for victim in agreed.victims:
            outcome = self._pidfds.send(victim.process, number)
            self.observe(order.step, outcome)
            log.warning(
                _SAID.get(outcome, "signal not sent"),
                signal=number.name,
                pid=victim.process.pid,
                command=victim.command,
                device=str(order.lock.device),
                pod=order.pod,
                outcome=outcome,
            )
        return bool(agreed.victims)

    async def _agreed(self, order: _Order) -> _Agreed:
        """Ask every guard about those that are held."""
        members = await self._evidence.look(order.pod)
        if not self._evidence.stands(order.lock, order.warrant):
            return _Agreed(members=members)
        stale = self._evidence.why_stale(order.asked_at)
        if stale is not None:
            self._say(order.lock, "holder not ended", stale)
            return _Agreed(members=members)
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

        how = await self._pods.kill(
            order.pod, path=record.cgroup, inode=record.inode, may_end=may_end
        )
        if how in {Outcome.KILLED, Outcome.FROZEN}:
            self.observe(ReclaimStep.KILL, how.value)
            log.warning(
                "pod cgroup killed",
                cgroup=record.cgroup,
                device=str(order.lock.device),
                pod=order.pod,
                how=how.value,
            )
        return how

    def _say(self, lock: DeviceLock, what: str, reason: str) -> None:
        """Log why a device is not free, or its holder not ended, once for each reason."""
        if self._said.get((lock.device, what)) != reason:
            self._said[lock.device, what] = reason
            log.info(what, device=str(lock.device), state=lock.state.value, reason=reason)


def _asleep(members: Sequence[Member]) -> str:
    """Return words for those that no signal can end for now, to complete a reason with."""
    pids = ", ".join(str(each.process) for each in members if each.uninterruptible)
    return f"; in uninterruptible sleep, which only the kernel ends: pid {pids}" if pids else ""
