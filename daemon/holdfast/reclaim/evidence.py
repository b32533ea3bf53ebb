"""May what is left of a pod be ended? Gathers the evidence, remembers it, and asks the rule."""

from collections.abc import Callable, Collection, Sequence

from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import PodRecord
from holdfast.model.book.claims import has_claim
from holdfast.model.book.locks import DeviceLock
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import (
    ByHand,
    EndFacts,
    Member,
    RuntimeSeen,
    Warrant,
    runtime_seen,
    why_spare,
    why_stale,
)
from holdfast.reclaim.pods import Pods
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim

Judge = Callable[[Member, Sequence[Member]], str | None]
"""Returns why one of a pod's processes, of which all are given, must be spared; None: it may end"""


class Evidence:
    """Knows since when kubelet and the runtime have let go of each pod, by the monotonic clock.

    It is kept in memory only. After a restart each grace period starts again, because the daemon
    did not see what happened while it was down.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        reader: KubeletReader,
        pods: Pods,
        clock: Clock,
        settings: Watched[Reclaim],
        mode_of: Callable[[PodUid], str] | None = None,
        question_timeout: Watched[float],
        own_pid: int,
        judge: Callable[[EndFacts], str | None] = why_spare,
    ) -> None:
        """Judge by *settings*; wait *question_timeout* seconds for an answer of kubelet's.

        *mode_of* says for a pod what `reclaim.mode` is where its devices have one of their own; it
        is called from any thread.

        *own_pid* is this daemon's as `/proc` shows it, never to be signalled. *judge* is another
        rule only where a test shows what each guard of `why_spare` is for.
        """
        self._ledger = ledger
        self._reader = reader
        self._pods = pods
        self._clock = clock
        self.settings = settings
        self._question_timeout = question_timeout
        self._own_pid = own_pid
        self._judge = judge
        self._mode_of = mode_of or (lambda _pod: settings.value.mode)
        self._kubelet: dict[PodUid, tuple[tuple[ProcessId | None, float], float]] = {}
        """What the ledger says of how kubelet let go of each pod, and when that was first seen."""
        self._runtime: dict[PodUid, RuntimeSeen] = {}

    @property
    def question_timeout(self) -> float:
        """Return for how many seconds an answer of kubelet's is waited for."""
        return self._question_timeout.value

    async def look(self, pod: PodUid) -> tuple[Member, ...]:
        """Return the processes of *pod*; note whether kubelet and the runtime have let go of it."""
        members = await self._pods.members(pod)
        state = await self._pods.runtime_state(pod, members)
        # Read only now: the pod may have been forgotten while the files were read.
        before = self._runtime.get(pod, RuntimeSeen())
        self._runtime[pod] = runtime_seen(before, members, state, self._clock.monotonic())
        self._let_go_since(self.record(pod))
        return members

    def forget(self, pod: PodUid) -> None:
        """Forget *pod*: when it ends again, its grace periods start again."""
        self._runtime.pop(pod, None)
        self._kubelet.pop(pod, None)

    async def ask(self) -> KubeletView | None:
        """Ask kubelet now; return the view that its answer gave, None where it gave none."""
        return await self._reader.answered_after(self._clock.uptime(), self.question_timeout)

    def record(self, pod: PodUid) -> PodRecord | None:
        """Return what the ledger has of *pod*; from any thread."""
        return self._ledger.book.value.pods.get(pod)

    def why_stale(self, asked_at: float) -> str | None:
        """Return why kubelet's answer is too old to act on, or None; from any thread.

        *asked_at* is a moment after which kubelet gave it, in seconds since the machine booted.
        """
        return why_stale(
            asked=asked_at, now=self._clock.uptime(), limit=self.settings.value.evidence_age
        )

    def stands(self, lock: DeviceLock, warrant: Warrant) -> bool:
        """Tell, from any thread, whether the lock has not moved and its pod is not counted again.

        While kubelet's checkpoint cannot be read, the pod may be counted.
        """
        if self._ledger.book.value.locks.get(lock.device) != lock or lock.pod is None:
            return False
        if warrant.by_hand is ByHand.FORCE:
            return True
        counted = _may_count(self._reader.view.value, lock.pod)
        return not (counted or has_claim(self._ledger.book.value, lock.pod))

    def judging(self, lock: DeviceLock, warrant: Warrant) -> Judge:
        """Return a judge of the processes of the lock's pod, by all that is known at this moment.

        It may be called from any thread: what belongs to the event loop is read here.
        """
        pod = lock.pod
        if pod is None:
            return lambda _each, _members: "the device's pod was never identified"
        record = self.record(pod)
        runtime, since = self._runtime.get(pod, RuntimeSeen()), self._let_go_since(record)
        kubelet = self._reader.view.value.kubelet

        def judge(each: Member, members: Sequence[Member]) -> str | None:
            settings = self.settings.value  # those of this moment: `observe` ends nothing more
            return self._judge(
                EndFacts(
                    terminate=self._mode_of(pod) == "terminate",
                    scan_complete=warrant.complete,
                    process=each.process,
                    command=each.command,
                    in_pod=each.in_pod,
                    inode=each.inode,
                    granted_to=pod,
                    pod=record,
                    let_go_at=since,
                    kubelet=kubelet,
                    members=tuple(members),
                    runtime_gone_at=runtime.gone_at,
                    sandbox=each.sandbox,
                    runtime=runtime.state,
                    only_pause_at=runtime.only_pause_at,
                    now=self._clock.monotonic(),
                    own_pid=self._own_pid,
                    let_go_grace=settings.let_go_grace,
                    orphan_grace=settings.orphan_grace,
                    sandbox_grace=settings.sandbox_grace,
                    by_hand=warrant.by_hand,
                )
            )

        return judge

    def _let_go_since(self, record: PodRecord | None) -> float | None:
        """Return since when (monotonic seconds) kubelet has let go of the pod; None: it has not.

        The first call for a piece of evidence is what starts its time.
        """
        if record is None:
            return None
        if record.let_go_at is None:
            self._kubelet.pop(record.uid, None)
            return None
        said = (record.counted_by, record.let_go_at)
        known = self._kubelet.get(record.uid)
        if known is None or known[0] != said:
            known = self._kubelet[record.uid] = (said, self._clock.monotonic())
        return known[1]


class Uncounted:
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

    def keep(self, pods: Collection[PodUid | None]) -> None:
        """Drop what is remembered of others than *pods*."""
        for pod in self._since.keys() - set(pods):
            del self._since[pod]


def _may_count(view: KubeletView, pod: PodUid) -> bool:
    return not view.readable or view.counts(pod)
