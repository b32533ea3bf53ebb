"""A pod may leave thousands of processes behind: what is asked and told of them stays small."""

from typing import Any, ClassVar

from fakes.books import KUBELET, NOW, X, device_lock, name
from fakes.ending import LET_GO, ORPHAN
from fakes.reclaimer import reclaimer
from holdfast.model.book.book import LockState
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Grounds, Member, RuntimeEvidence, Warrant
from holdfast.reclaim.evidence import PodJudge
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from manual_clock import ManualClock

_MANY = 2000


class _Counted(Member, frozen=True, kw_only=True):
    """Counts how often it is asked whether it shows a container, of all that there are."""

    asked: ClassVar[list[int]] = []

    @property
    def shows_a_container(self) -> bool:
        self.asked.append(self.process.pid)
        return super().shows_a_container


def test_each_of_thousands_is_not_judged_by_all_the_others() -> None:
    nothing: Any = None
    clock, settings = ManualClock(), Watched(ReclaimSettings())
    evidence = reclaimer(
        ledger=nothing, reader=nothing, pods=nothing, pidfds=nothing, clock=clock, settings=settings
    ).evidence
    lock = device_lock(name("d0"), state=LockState.RELEASING, since=0.0, pod=X)
    members = tuple(
        _Counted(
            process=ProcessId(100 + number, 99),
            command="python",
            parent=ORPHAN.parent,
            in_pod=X,
            inode=ORPHAN.inode,
        )
        for number in range(_MANY)
    )
    judge = PodJudge(
        evidence=evidence,
        warrant=Warrant(grounds=Grounds.OVER, lock=lock, pod=X, gap=""),
        members=members,
        asked_at=NOW,
        record=LET_GO,
        let_go_at=clock.monotonic() - 1000,
        runtime=RuntimeEvidence(gone_at=clock.monotonic() - 1000),
        kubelet=KUBELET,
    )
    _Counted.asked.clear()
    assert not judge.spared(members), "every guard agrees on all of them"
    assert len(_Counted.asked) < 5 * _MANY
