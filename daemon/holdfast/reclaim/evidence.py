"""May what is left of a pod be ended? Gathers the evidence, remembers it, and asks the rule."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import PodRecord
from holdfast.model.book.claims import has_claim
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import (
    EndFacts,
    Grounds,
    Member,
    RuntimeEvidence,
    Warrant,
    runtime_seen,
    telling_of,
    why_spare,
    why_stale,
)
from holdfast.reclaim.pods import Pods
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings

_ANYBODY = ProcessId(0, 0)
"""Stands for a process of which nothing is known that spares it."""


class Evidence(Struct, frozen=True, kw_only=True):
    """Knows since when kubelet and the runtime have let go of each pod, by the monotonic clock.

    It is kept in memory only. After a restart each grace period starts again, because the daemon
    did not see what happened while it was down.

    `may_end` tells whether what a pod leaves behind is ended at all, once every guard agrees. An
    answer of kubelet's is waited for `question_timeout` seconds. `own_pid` is this daemon's as
    `/proc` shows it, never to be signalled.
    """

    ledger: Ledger
    reader: KubeletReader
    pods: Pods
    clock: Clock
    settings: Watched[ReclaimSettings]
    may_end: Callable[[PodUid], bool]
    question_timeout: Watched[float]
    own_pid: int
    _let_go: dict[PodUid, tuple[tuple[ProcessId | None, float | None], float]] = {}
    """What the ledger says of how kubelet let go of each pod, and when that was first seen."""
    _runtime: dict[PodUid, RuntimeEvidence] = {}

    async def look(self, pod: PodUid) -> tuple[Member, ...]:
        """Return the processes of *pod*; note whether kubelet and the runtime have let go of it."""
        members = await self.pods.members(pod)
        state = await self.pods.runtime_state(pod, members)
        # Read only now: the pod may have been forgotten while the files were read.
        before = self._runtime.get(pod, RuntimeEvidence())
        self._runtime[pod] = runtime_seen(before, members, state, self.clock.monotonic())
        self._let_go_since(self.ledger.book.value.pods.get(pod))
        return members

    def keep(self, pods: Collection[PodUid]) -> None:
        """Forget all but *pods*: when another ends again, its grace periods start again."""
        keep_only(pods, self._runtime, self._let_go)

    async def ask(self) -> KubeletView | None:
        """Ask kubelet now; return the view that its answer gave, None where it gave none."""
        return await self.reader.answered_after(self.clock.uptime(), self.question_timeout.value)

    async def judge(self, warrant: Warrant, asked_at: float) -> "PodJudge":
        """Look at the warrant's pod again; *asked_at*: after it, kubelet gave its answer."""
        judge = self.judging(warrant, (), asked_at)
        if judge.why_void(()) is not None:  # the answer may be too old now: it is worth no look
            return judge
        return self.judging(warrant, await self.look(warrant.pod), asked_at)

    def judging(
        self, warrant: Warrant, members: tuple[Member, ...], asked_at: float = -math.inf
    ) -> "PodJudge":
        """Return a judge of *members* by what is known now; what is the loop's is read here.

        Without *asked_at*, kubelet has not been asked, and the judge calls every warrant void.
        """
        record = self.ledger.book.value.pods.get(warrant.pod)
        return PodJudge(
            evidence=self,
            warrant=warrant,
            members=members,
            asked_at=asked_at,
            record=record,
            let_go_at=self._let_go_since(record),
            runtime=self._runtime.get(warrant.pod, RuntimeEvidence()),
            kubelet=self.reader.view.value.kubelet,
        )

    def facts(self, judge: "PodJudge", each: Member, telling: Sequence[Member]) -> EndFacts:
        """Return all that decides whether *each* may be ended; from any thread."""
        settings = self.settings.value  # those of this moment: `observe` ends nothing more
        pod = judge.warrant.pod
        return EndFacts(
            terminate=self.may_end(pod),
            scan_complete=not judge.warrant.gap,
            member=each,
            granted_to=pod,
            pod=judge.record,
            let_go_at=judge.let_go_at,
            kubelet=judge.kubelet,
            members=tuple(telling),
            runtime=judge.runtime,
            now=self.clock.monotonic(),
            own_pid=self.own_pid,
            let_go_grace=settings.let_go_grace,
            orphan_grace=settings.orphan_grace,
            sandbox_grace=settings.sandbox_grace,
            grounds=judge.warrant.grounds,
        )

    def _let_go_since(self, record: PodRecord | None) -> float | None:
        """Return since when (monotonic seconds) kubelet has let go of the pod; None: it has not.

        The first call for a piece of evidence is what starts its time, again once kubelet counted
        the pod meanwhile: the same answer of kubelet's may then be the evidence once more.
        """
        if record is None:
            return None
        said = (record.counted_by, record.let_go_at)
        known = self._let_go.get(record.uid)
        if known is None or known[0] != said:
            known = self._let_go[record.uid] = (said, self.clock.monotonic())
        return None if record.let_go_at is None else known[1]


class PodJudge(Struct, frozen=True, kw_only=True):
    """Judges the processes of a pod by what was known of its end at one moment.

    `asked_at` is in seconds since the machine booted, `let_go_at` in monotonic ones.
    """

    evidence: Evidence
    warrant: Warrant
    members: tuple[Member, ...]
    asked_at: float
    record: PodRecord | None
    let_go_at: float | None
    runtime: RuntimeEvidence
    kubelet: ProcessId | None

    @property
    def newest(self) -> float | None:
        """Return when kubelet let go of the pod, by what it wrote: later starts may be new."""
        return None if self.record is None else self.record.let_go_at

    def why_void(self, _members: Sequence[Member]) -> str | None:
        """Return why the warrant does not hold any more, or None; from any thread.

        Its lock must not have moved, its pod must not be counted again, and kubelet's answer not be
        too old. While kubelet's checkpoint cannot be read, the pod may be counted.
        """
        warrant, evidence = self.warrant, self.evidence
        book, view = evidence.ledger.book.value, evidence.reader.view.value
        if book.locks.get(warrant.lock.device) != warrant.lock:
            return "the lock of its device has changed"
        counted = not view.readable or view.counts(warrant.pod) or has_claim(book, warrant.pod)
        if counted and warrant.grounds is not Grounds.FORCE:
            return "its pod may be counted again"
        limit = evidence.settings.value.evidence_age
        return why_stale(asked=self.asked_at, now=evidence.clock.uptime(), limit=limit)

    def spared(self, members: Sequence[Member]) -> Mapping[ProcessId, str]:
        """Return which of *members* must not be ended, and why; from any thread."""
        telling = telling_of(members)
        # Of thousands not each is judged where what spares them all is nothing of their own.
        inode = None if self.record is None else self.record.inode
        anybody = Member(process=_ANYBODY, command="", in_pod=self.warrant.pod, inode=inode)
        if (why := self.why_spare(anybody, telling)) is not None:
            return {each.process: why for each in members}
        judged = {each.process: self.why_spare(each, telling) for each in members}
        return {process: why for process, why in judged.items() if why is not None}

    def why_spare(self, each: Member, telling: Sequence[Member]) -> str | None:
        """Return why *each* must not be ended, or None; *telling* are those of `telling_of`."""
        return why_spare(self.evidence.facts(self, each, telling))


class UncountedPods:
    """Remembers since when kubelet's checkpoint has been without each pod, by the monotonic clock.

    It is kept in memory only, as the rest of the evidence is.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure by *clock*."""
        self._clock = clock
        self._since: dict[PodUid, float] = {}

    def seconds(self, pod: PodUid, *, counted: bool | None) -> float:
        """Return for how long *pod* has not been counted; *counted* is what it says now.

        A checkpoint that cannot be read (None) neither begins nor ends that time.
        """
        now = self._clock.monotonic()
        if counted:
            self._since.pop(pod, None)
        elif counted is False:
            self._since.setdefault(pod, now)
        return now - self._since.get(pod, now)

    def keep(self, pods: Collection[PodUid]) -> None:
        """Drop what is remembered of others than *pods*."""
        keep_only(pods, self._since)
