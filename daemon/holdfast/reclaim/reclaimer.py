"""Ends what still holds a device whose pod is over, one step at a time, if every guard agrees."""

import contextlib
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import DeviceLock, LockState
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import (
    Attempt,
    Grounds,
    Member,
    ReclaimStep,
    Warrant,
    in_the_way,
    next_step,
    retry_pause,
)
from holdfast.model.text import some
from holdfast.model.use.free import ReleaseFacts
from holdfast.model.use.holders import MOST_NAMED
from holdfast.reclaim.ending import Ending
from holdfast.reclaim.evidence import Evidence
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only

_NEXT = 8
"""Pods of a claim whose turn comes next and that are looked at: each costs a look at /proc."""
_PACE, _LATEST = 10.0, 5.0
"""How many times as long as looks at all pods take each holds, and how many seconds at the most.
All locks of a pod share one, and a try that ended nobody."""


class _LastLook(Struct, frozen=True):
    """The processes of a pod as a look showed them that holds until a monotonic time.

    `tried`: they were to be ended, and were spared at the last moment.
    """

    members: tuple[Member, ...]
    until: float
    tried: bool = False


class Reclaimer(Struct, kw_only=True):
    """Drives one attempt for each pod: SIGTERM, then SIGKILL, then quarantine, then again.

    It has `ending` end what `evidence` allows to be ended, by its settings.
    """

    ledger: Ledger
    evidence: Evidence
    ending: Ending
    clock: Clock
    _attempts: dict[PodUid, Attempt] = {}
    _by_hand: dict[PodUid, tuple[Grounds, float]] = {}
    _looked: dict[PodUid, _LastLook] = {}

    def keep(self, pods: Collection[PodUid], devices: Collection[DeviceName]) -> None:
        """Forget all but *pods*, which are over, and *devices*, which are locked.

        A later end of the same UID must not skip the grace and the SIGTERM of the earlier one.
        """
        keep_only(pods, self._attempts, self._by_hand, self._looked)
        self.evidence.keep(pods)
        self.ending.keep(devices)

    def retry(self, pod: PodUid, grounds: Grounds = Grounds.OVER) -> None:
        """Begin a new attempt at the next step, without the pause that is left of the last one.

        *grounds* are those that a person gave. They count for this one attempt only, and no longer
        than an attempt takes: they were given for what is there now.
        """
        self._attempts.pop(pod, None)
        self._looked.pop(pod, None)
        self._by_hand[pod] = grounds, self.clock.monotonic() + self.patience

    def ends_after(self, lock: DeviceLock) -> tuple[float, float] | None:
        """Return after how many seconds what is left of *lock*'s pod may be ended; None: it is not.

        At the least, and at the most where it is in a sandbox whose shim lives. They begin when
        kubelet has stopped counting the pod, so they are the same whenever one asks.
        """
        pod = lock.pod
        if pod is None or not self.evidence.may_end(pod):
            return None
        settings = self.evidence.settings.value
        least = settings.let_go_grace + settings.orphan_grace
        return least, max(least, settings.sandbox_grace)

    async def step(self, lock: DeviceLock, facts: ReleaseFacts, reason: str) -> None:
        """Do what is due for an ending lock; *reason* says why its device is not free."""
        if lock.pod is None:
            return
        look = await self._look(lock.pod)
        members = look.members
        await self._look_at_next(lock, lock.pod)
        blockers = in_the_way(facts.kernel.holders or (), lock.pod, members)
        attempt = self._attempts.get(lock.pod, Attempt())
        settings = self.evidence.settings.value
        retry = settings.retry
        step = next_step(
            attempt,
            self.clock.monotonic(),
            term_grace=settings.term_grace,
            kill_grace=settings.kill_grace,
            pause=retry_pause(attempt.number, first=retry.first, last=retry.last),
        )
        if step is ReclaimStep.RETRY:
            attempt = self._attempts[lock.pod] = Attempt(number=attempt.number + 1)
        elif step is ReclaimStep.QUARANTINE:
            attempt = replace(attempt, quarantined_at=self.clock.monotonic())
            self._attempts[lock.pod] = attempt
            self._by_hand.pop(lock.pod, None)
            self.ending.count(step.value, "done")
        # One attempt serves all locks of a pod; each of them follows it with a move of its own.
        given_up = attempt.quarantined_at is not None
        if lock.state is LockState.RECLAIMING and given_up:
            evidence = f"could not be reclaimed: {reason}{_asleep(members)}"
            await self.ledger.move_if_unmoved(lock, LockState.QUARANTINED, evidence)
        elif lock.state is LockState.QUARANTINED and not given_up:
            await self.ledger.move_if_unmoved(lock, LockState.RECLAIMING, f"tried again: {reason}")
        elif step in {ReclaimStep.TERMINATE, ReclaimStep.KILL} and blockers:
            warrant = Warrant(
                grounds=self._allowed(lock.pod),
                lock=lock,
                pod=lock.pod,
                gap=facts.kernel.gap(but={each.process.pid for each in members}),
            )
            await self._end(warrant, step, attempt, look, blockers)
        elif step is ReclaimStep.KILL:  # no process is left, and yet the kernel shows it in use
            self._attempts[lock.pod] = replace(attempt, killed_at=self.clock.monotonic())

    async def _look_at_next(self, lock: DeviceLock, pod: PodUid) -> None:
        """Note since when kubelet and the runtime have let go of the pods that come after *pod*.

        Several may have shared a claim. Their graces begin with its end, not with their turn.
        """
        pods = sorted(self.ledger.book.value.pods_of(lock) | {pod})
        for each in pods[pods.index(pod) + 1 :][:_NEXT]:
            with contextlib.suppress(HostError):  # what cannot be listed shows nothing
                await self._look(each)

    async def _look(self, pod: PodUid) -> _LastLook:
        """Return the processes of *pod*: of thousands not for each lock and at each beat.

        Nothing is ended on that: who ends them looks again.
        """
        began, known = self.clock.monotonic(), self._looked.get(pod)
        if known is not None and began < known.until:
            return known
        members = await self.evidence.look(pod)
        look = self._looked[pod] = _LastLook(members, self._pause_since(began))
        return look

    def _pause_since(self, began: float) -> float:
        """Return until when nothing more is done that has taken the time since *began*."""
        now = self.clock.monotonic()
        return now + min(_LATEST, _PACE * (now - began) * max(1, len(self._looked)))

    async def _end(
        self,
        warrant: Warrant,
        step: ReclaimStep,
        attempt: Attempt,
        look: _LastLook,
        blockers: tuple[Member, ...],
    ) -> None:
        """Signal those of *blockers* that every guard agrees on."""
        lock = warrant.lock
        if look.tried:
            return
        spared = self.evidence.judging(warrant, blockers).spared(blockers)
        if len(spared) == len(blockers):
            self.ending.spare(lock, spared[blockers[0].process], gap=warrant.gap)
            return
        if lock.state is LockState.RELEASING:
            # Written down first: after a crash the history says that we had begun to act.
            names = some([f"pid {each.process} ({each.command})" for each in blockers], MOST_NAMED)
            await self.ledger.move_if_unmoved(lock, LockState.RECLAIMING, f"ending {names}")
            return
        self._looked.pop(warrant.pod, None)
        began, word = self.clock.monotonic(), self._by_hand.get(warrant.pod)
        if not await self.ending.end(warrant, step, self.evidence):
            # What takes long, as thousands do or a kubelet that does not answer, is not tried again
            # for the next lock of the pod, and at the next beat. A person's word that came
            # meanwhile is another try.
            if self._by_hand.get(warrant.pod) == word:
                until = self._pause_since(began)
                self._looked[warrant.pod] = replace(look, until=until, tried=True)
            return
        now = self.clock.monotonic()
        self._attempts[warrant.pod] = replace(
            attempt,
            terminated_at=attempt.terminated_at or now,
            killed_at=now if step is ReclaimStep.KILL else None,
        )

    @property
    def patience(self) -> float:
        """Return how many seconds an attempt takes at the most, questions to kubelet included."""
        settings, question = self.evidence.settings.value, self.evidence.question_timeout.value
        return settings.term_grace + settings.kill_grace + 2 * question

    def _allowed(self, pod: PodUid) -> Grounds:
        grounds, until = self._by_hand.get(pod, (Grounds.OVER, 0.0))
        return grounds if self.clock.monotonic() < until else Grounds.OVER


def _asleep(members: Iterable[Member]) -> str:
    """Return words for those that no signal can end for now, to complete a reason with."""
    pids = some([str(each.process) for each in members if each.uninterruptible], MOST_NAMED)
    return f"; in uninterruptible sleep, which only the kernel ends: pid {pids}" if pids else ""
