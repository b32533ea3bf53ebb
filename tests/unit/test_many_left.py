"""A pod may leave thousands of processes behind: what is asked and told of them stays small."""

from types import SimpleNamespace
from typing import Any, ClassVar

from fakes.books import KUBELET, NOW, X, device_lock, name
from fakes.ending import LET_GO, ORPHAN
from fakes.reclaimer import reclaimer
from holdfast.model.book.book import Book, LockState
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.ending import Grounds, Member, RuntimeEvidence, Warrant
from holdfast.model.use.free import KernelFacts, ReleaseFacts
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
        ledger=nothing, reader=nothing, pods=nothing, clock=clock, settings=settings
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


class _SlowPods:
    """Takes a quarter of a second for each look at the processes of a pod, as for a thousand."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.looks = 0

    async def members(self, _pod: PodUid) -> tuple[Member, ...]:
        self.looks += 1
        self._clock.shift(0.25)
        return ()

    async def runtime_state(self, _pod: PodUid, _members: tuple[Member, ...]) -> None:
        return None


async def test_all_locks_of_a_pod_share_a_look_which_has_its_part_of_the_time() -> None:
    clock, settings = ManualClock(), Watched(ReclaimSettings())
    pods, nothing = _SlowPods(clock), None
    ledger: Any = SimpleNamespace(book=Watched(Book()))
    made = reclaimer(ledger=ledger, reader=nothing, pods=pods, clock=clock, settings=settings)
    locks = [
        device_lock(name(f"d{number}"), state=LockState.RELEASING, since=0.0, pod=X)
        for number in range(8)
    ]
    facts = ReleaseFacts(kernel=KernelFacts(), unseen_grace=0.0)
    for beat in range(20):
        made.keep({X}, ())
        for lock in locks:
            await made.step(lock, facts, "in use")
        clock.shift(0.2)
        assert pods.looks <= 1 + beat // 10
    assert pods.looks == 2
    made.retry(X)
    await made.step(locks[0], facts, "in use")
    assert pods.looks == 3
