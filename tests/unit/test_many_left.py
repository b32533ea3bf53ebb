"""A pod may leave thousands of processes behind: what is asked and told of them stays small."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

from msgspec.structs import replace

from fakes.books import KUBELET, NOW, X, device_lock, name, seen
from fakes.ending import LET_GO, ORPHAN
from fakes.reclaimer import reclaimer
from holdfast.model.book.book import Book, LockState
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import Grounds, Member, ReclaimStep, RuntimeEvidence, Warrant
from holdfast.model.use.free import KernelFacts, ReleaseFacts
from holdfast.reclaim.evidence import Evidence, PodJudge
from holdfast.reclaim.pods import CgroupOutcome, MayEnd
from holdfast.reclaim.reclaimer import Reclaimer
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

    def __init__(self, clock: ManualClock, seconds: float = 0.25) -> None:
        self._clock = clock
        self._seconds = seconds
        self.looks = 0

    async def members(self, _pod: PodUid) -> tuple[Member, ...]:
        self.looks += 1
        self._clock.shift(self._seconds)
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


async def test_looks_at_hundreds_of_pods_have_their_part_of_the_time_together() -> None:
    clock, settings = ManualClock(), Watched(ReclaimSettings())
    pods, nothing = _SlowPods(clock, 0.001), None
    ledger: Any = SimpleNamespace(book=Watched(Book()))
    made = reclaimer(ledger=ledger, reader=nothing, pods=pods, clock=clock, settings=settings)
    facts = ReleaseFacts(kernel=KernelFacts(), unseen_grace=0.0)
    left = [
        device_lock(name(uid), state=LockState.RELEASING, since=0.0, pod=PodUid(uid))
        for uid in map(str, range(200))
    ]
    began = clock.monotonic()
    for _ in range(200):
        for lock in left:
            await made.step(lock, facts, "in use")
        clock.shift(0.2)
    assert len(left) < pods.looks < 0.15 * (clock.monotonic() - began) / 0.001


class _Pods:
    """Shows the same orphans at each look, of whom pidfds can be had."""

    def __init__(self, number: int) -> None:
        self.pidfds = self
        self._members = tuple(
            replace(ORPHAN, process=ProcessId(100 + each, 99)) for each in range(number)
        )

    async def members(self, _pod: PodUid) -> tuple[Member, ...]:
        return self._members

    async def runtime_state(self, _pod: PodUid, _members: tuple[Member, ...]) -> None:
        return None

    @contextmanager
    def holding(self, processes: Iterable[ProcessId]) -> Iterator[frozenset[ProcessId]]:
        yield frozenset(processes)


class _SilentKubelet:
    """Does not answer, for which it is waited five seconds; counts how often it was asked.

    `meanwhile` is called once while it is waited for.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.view = Watched(seen())
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self._clock = clock

    async def answered_after(self, _moment: float, timeout: float) -> None:
        self.asked += 1
        self._clock.shift(timeout)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


def _reclaimer(clock: ManualClock, number: int, **parts: Any) -> Reclaimer:
    """Return who ends a pod that is over and has left so many processes."""
    ledger: Any = SimpleNamespace(book=Watched(Book(pods={X: LET_GO})))
    settings = Watched(ReclaimSettings())
    return reclaimer(ledger=ledger, pods=_Pods(number), clock=clock, settings=settings, **parts)


async def _beat(made: Reclaimer, state: LockState) -> None:
    """Do what is due for each of the eight devices of the pod."""
    facts = ReleaseFacts(kernel=KernelFacts(), unseen_grace=0.0)
    for number in range(8):
        lock = device_lock(name(f"d{number}"), state=state, since=0.0, pod=X)
        await made.step(lock, facts, "it is held")


async def test_what_spares_all_of_thousands_is_not_asked_for_each_of_them() -> None:
    """It is asked at each beat and for each device, as long as the pod is spared."""
    clock, asked = ManualClock(), list[PodUid]()

    def may_end(pod: PodUid) -> bool:
        asked.append(pod)
        return False

    kubelet: Any = SimpleNamespace(view=Watched(seen()))
    made = _reclaimer(
        clock,
        _MANY,
        reader=kubelet,
        kind=lambda **parts: Evidence(**{**parts, "may_end": may_end}),
    )
    await _beat(made, LockState.RELEASING)
    assert 0 < len(asked) < _MANY


async def test_a_try_that_took_long_and_ended_nobody_is_not_made_for_each_device() -> None:
    clock = ManualClock()
    kubelet: Any = _SilentKubelet(clock)
    made = _reclaimer(clock, 1, reader=kubelet)
    made.retry(X, Grounds.RELEASE)
    await _beat(made, LockState.RECLAIMING)
    assert kubelet.asked == 1
    clock.shift(5.0)
    await _beat(made, LockState.RECLAIMING)
    assert kubelet.asked == 2


async def test_a_word_of_a_person_that_comes_during_a_try_waits_for_no_pause() -> None:
    clock = ManualClock()
    kubelet: Any = _SilentKubelet(clock)
    made = _reclaimer(clock, 1, reader=kubelet)
    made.retry(X, Grounds.RELEASE)
    kubelet.meanwhile = lambda: made.retry(X, Grounds.FORCE)
    await _beat(made, LockState.RECLAIMING)
    assert kubelet.asked == 2


class _LargePods(_Pods):
    """Pods of which each look takes *seconds*, one after the other on their lane."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__(1)
        self._clock, self._seconds, self._lane = clock, seconds, asyncio.Lock()
        self.killed: list[PodUid] = []
        self.looks = 0

    async def members(self, pod: PodUid) -> tuple[Member, ...]:
        async with self._lane:
            self.looks += 1
            self._clock.shift(self._seconds)
            await asyncio.sleep(0)  # who waits for the lane is the next
        return tuple(replace(each, in_pod=pod) for each in self._members)

    async def kill(self, pod: PodUid, *, may_end: MayEnd, **_: Any) -> CgroupOutcome:
        if not may_end(await self.members(pod)):
            return CgroupOutcome.SPARED
        self.killed.append(pod)
        return CgroupOutcome.KILLED


class _OneAnswer:
    """Kubelet, which answers all who wait with one answer."""

    def __init__(self, clock: ManualClock, waiting: int) -> None:
        self.view = Watched(seen())
        self._clock, self._all = clock, asyncio.Barrier(waiting)
        self._sent_at = 0.0

    async def answered_after(self, _moment: float, _timeout: float) -> KubeletView:
        await self._all.wait()
        self._sent_at = self._sent_at or self._clock.uptime()
        return replace(self.view.value, sent_at=self._sent_at)


async def test_of_many_pods_that_wait_for_one_answer_of_kubelets_some_are_ended_each_time() -> None:
    """It is new for a second. Once all have looked at their thousand processes it is too old."""
    clock, uids = ManualClock(), [PodUid(f"p{number}") for number in range(4)]
    locks = [device_lock(name(uid), state=LockState.RECLAIMING, since=0.0, pod=uid) for uid in uids]
    book = Book(
        pods={uid: replace(LET_GO, uid=uid) for uid in uids},
        locks={lock.device: lock for lock in locks},
    )
    pods, kubelet = _LargePods(clock, 0.3), _OneAnswer(clock, len(uids))
    ledger: Any = SimpleNamespace(book=Watched(book))
    made = reclaimer(
        ledger=ledger,
        reader=kubelet,
        pods=pods,
        clock=clock,
        settings=Watched(ReclaimSettings()),
    )
    for uid in uids:
        await made.evidence.look(uid)
    clock.shift(1000.0)  # every grace is over
    warrants = (
        Warrant(grounds=Grounds.OVER, lock=lock, pod=uid, gap="")
        for lock, uid in zip(locks, uids, strict=True)
    )
    step, before = ReclaimStep.KILL, pods.looks
    await asyncio.gather(*(made.ending.end(each, step, made.evidence) for each in warrants))
    assert pods.killed
    opened, while_it_is_new = len(uids), 4
    assert pods.looks - before == opened + while_it_is_new, "a look by an old answer is for nothing"
