"""May a process of an ending pod be ended? Gathers what is known of it, and asks the rule."""

from collections.abc import Callable, Sequence

from holdfast.kubelet.books import KubeletBooks
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.locks import DeviceLock
from holdfast.model.ids import PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import EndFacts, Member, why_spare
from holdfast.model.reclaim.release import ByHand, Warrant
from holdfast.reclaim.evidence import Evidences
from holdfast.reclaim.runtimes import Runtimes
from holdfast.runtime.clock import Clock
from holdfast.settings.sections import Reclaim

Judge = Callable[[Member, Sequence[Member]], str | None]
"""Returns why one of a pod's processes, of which all are given, must be spared; None: it may end"""


class Guards:
    """Knows since when kubelet and the runtime have let go of each pod, and whose word counts."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        books: KubeletBooks,
        runtimes: Runtimes,
        clock: Clock,
        settings: Reclaim,
        own_pid: int,
        judge: Callable[[EndFacts], str | None] = why_spare,
    ) -> None:
        """Judge by *settings*; see `Reclaimer` for *own_pid* and *judge*."""
        self._ledger = ledger
        self._books = books
        self._runtimes = runtimes
        self._evidences = Evidences(clock)
        self._clock = clock
        self.settings = settings
        self._own_pid = own_pid
        self._judge = judge

    def forget(self, pod: PodUid) -> None:
        """Drop what is remembered of *pod*: a later end of it is another one."""
        self._runtimes.forget(pod)
        self._evidences.forget(pod)

    def let_go_at(self, pod: PodUid) -> float | None:
        """Return when kubelet let go of *pod*, in seconds since the boot; None: it has not.

        The first call for a piece of evidence is what starts its grace.
        """
        record = self._ledger.book.value.pods.get(pod)
        since = self._evidences.standing_since(record)
        return None if record is None or since is None else record.let_go_at

    def stands(self, lock: DeviceLock, warrant: Warrant) -> bool:
        """Tell, from any thread, whether the lock has not moved and its pod is not counted again.

        Books that cannot be read by now do not tell that it is not.
        """
        if self._ledger.book.value.locks.get(lock.device) != lock or lock.pod is None:
            return False
        view = self._books.view.value
        return warrant.by_hand is ByHand.FORCE or not _may_count(view, lock.pod)

    def judging(self, lock: DeviceLock, warrant: Warrant) -> Judge:
        """Return who judges the processes of the lock's pod, by all that is known at this moment.

        It may be asked from any thread: what the loop owns is taken down here.
        """
        pod = lock.pod
        if pod is None:
            return lambda _each, _members: "the device's pod was never identified"
        record = self._ledger.book.value.pods.get(pod)
        let_go, since = self._runtimes.seen(pod), self._evidences.standing_since(record)
        kubelet, settings = self._books.view.value.kubelet, self.settings

        def judge(each: Member, members: Sequence[Member]) -> str | None:
            return self._judge(
                EndFacts(
                    terminate=settings.mode == "terminate",
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
                    runtime_gone_at=let_go.gone_at,
                    sandbox=each.sandbox,
                    runtime=let_go.state,
                    only_pause_at=let_go.only_pause_at,
                    now=self._clock.monotonic(),
                    own_pid=self._own_pid,
                    let_go_grace=settings.let_go_grace,
                    orphan_grace=settings.orphan_grace,
                    sandbox_grace=settings.sandbox_grace,
                    by_hand=warrant.by_hand,
                )
            )

        return judge


def _may_count(view: KubeletView, pod: PodUid) -> bool:
    return not view.readable or view.counts(pod)
