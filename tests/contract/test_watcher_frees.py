"""What the watcher makes of a pod that has ended, and when it leaves its lock as it is."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.books import (
    BOOT,
    KUBELET,
    WHOLE,
    Silicon,
    X,
    Y,
    allocated,
    entry,
    name,
    seen,
    silicon,
    unreadable,
)
from fakes.watchers import KnownKubelet, NothingToDo, watcher_below
from holdfast.errors import HostError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import DeviceLock, LockState, Move, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import PodSighting
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device
from holdfast.model.ids import BootId, ClaimUid, DeviceName, PodUid, ResourceName
from holdfast.model.use.free import FormerPod, KernelFacts
from holdfast.reclaim.watcher import Watcher
from manual_clock import ManualClock
from waiting import until

_D0 = name("d0")
_RECORD = PodRecord(uid=X, boot=BOOT, cgroup="/kubepods/podx", inode=7, counted_by=KUBELET)
_IN_IT = PodSighting(cgroup="/kubepods/podx", inode=7, populated=True, processes=(41,))


@dataclass
class _Parts(NothingToDo):
    """What the watcher has do things: it notes what, and answers as a test says."""

    ledger: Ledger
    detained: str = ""
    cleared: str | None = ""
    moves: bool = False
    """The lock moves while it is judged."""
    stepped: list[DeviceLock] = field(default_factory=list)
    over: set[PodUid] = field(default_factory=set)
    """Of whom the end is remembered."""
    locked: set[DeviceName] = field(default_factory=set)
    troubled: set[DeviceName] = field(default_factory=set)
    """What cannot be judged."""
    answer: asyncio.Event | None = None
    """What each step waits for."""

    def keep(self, pods: Any, devices: Any) -> None:
        self.over, self.locked = pods, {*devices}

    async def step(self, lock: Any, *_facts: object) -> None:
        if lock.device in self.troubled:
            raise HostError("cannot list the processes of pod X")
        self.stepped.append(lock)
        if self.answer is not None:
            await self.answer.wait()

    async def detains(self, lock: Any) -> str:
        if self.moves:
            await self.ledger.move_if_unmoved(lock, LockState.RECLAIMING, "ending pid 41")
        return self.detained

    def clears(self, *_facts: object) -> str | None:
        return self.cleared


@dataclass
class _Node:
    """A watcher of a node on which pod X had a device that is unplugged since."""

    watcher: Watcher
    ledger: Ledger
    reader: KnownKubelet
    parts: _Parts
    clock: ManualClock

    async def ends(self) -> DeviceLock:
        """Let the pod be over; return its lock."""

        def decide(draft: Draft) -> None:
            draft.end(next(iter(draft.book.allocations.values())), "its pod is over")

        await self.ledger.apply(decide)
        return self.ledger.book.value.locks[_D0]

    async def release(self, **sightings: PodSighting) -> LockState | None:
        """Do what is due for the lock; return how it stands then, None where it is free."""
        await self.watcher._release({PodUid(pod): each for pod, each in sightings.items()})
        lock = self.ledger.book.value.locks.get(_D0)
        return None if lock is None else lock.state

    def former(
        self, sighting: PodSighting | None = None, *, claim: ClaimUid | None = None
    ) -> FormerPod:
        """Return what is known of the lock's pod, of which *sighting* was seen."""
        book = self.ledger.book.value
        lock = replace(book.locks[_D0], claim=claim)
        found = self.watcher._former_pod(lock, book, {} if sighting is None else {X: sighting})
        assert found is not None
        return found


@asynccontextmanager
async def _node(
    folder: Path,
    record: PodRecord = _RECORD,
    *,
    devices: Mapping[ResourceName, Silicon] | None = None,
) -> AsyncIterator[_Node]:
    async with watcher_below(folder, work=_Parts, devices=devices) as on:
        await on.ledger.apply(allocated(silicon(d0="a"), pod=X, active=True))
        await on.ledger.apply(lambda draft: draft.note_pod(record))
        await on.ledger.apply(settle)
        yield _Node(on.watcher, on.ledger, on.reader, on.work, on.clock)


async def test_a_checkpoint_that_cannot_be_read_does_not_say_who_is_counted(
    tmp_path: Path,
) -> None:
    async with _node(tmp_path) as on:
        assert on.former().counted is False
        on.reader.view.set(unreadable(seen(entry(Y, "d1"))))
        assert on.former().counted is None
        known = on.former(claim=ClaimUid("uid-1"))
        assert (known.counted, known.unreadable) == (False, False), "it has nothing of claims"


async def test_a_later_pod_of_the_same_uid_does_not_keep_what_the_former_had(
    tmp_path: Path,
) -> None:
    """A static pod that is made anew has another cgroup, and nothing of the former one's."""
    async with _node(tmp_path) as on:
        assert on.former(_IN_IT).populated
        later = on.former(replace(_IN_IT, inode=8))
        assert (later.populated, later.processes) == (False, None)


async def test_what_fails_for_what_one_pod_left_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    """Such as processes that are too many to be looked at in time, or to be opened."""
    async with _node(tmp_path) as on:
        other = allocated(silicon(d1="b"), pod=Y, active=True)
        await on.ledger.apply(other)
        await on.ledger.apply(settle)
        for each in tuple(on.ledger.book.value.allocations.values()):
            await on.ledger.apply(lambda draft, it=each: draft.end(it, "its pod is over"))  # type: ignore[misc]
        on.parts.troubled = {_D0}
        on.watcher._sight = _living  # type: ignore[method-assign]

        with pytest.raises(HostError, match="pod X"):
            await on.watcher._beat()

        assert on.watcher.looked.is_set(), "or no container would start on this node"
        assert [lock.device for lock in on.parts.stepped] == [name("d1")]


async def test_a_defect_is_not_hidden_by_what_cannot_be_judged(tmp_path: Path) -> None:
    """The daemon ends with it, and begins again."""
    async with _node(tmp_path) as on:
        await on.ends()
        await on.ledger.apply(allocated(silicon(d1="b"), pod=Y, active=True))
        await on.ledger.apply(settle)
        for each in tuple(on.ledger.book.value.allocations.values()):
            await on.ledger.apply(partial(Draft.end, allocation=each, evidence="its pod is over"))
        on.watcher._sight = _living  # type: ignore[method-assign]

        async def step(lock: DeviceLock, *_: object) -> None:
            raise HostError("cannot list them") if lock.device == _D0 else KeyError(lock.pod)

        on.parts.step = step  # type: ignore[method-assign]
        with pytest.raises(KeyError):
            await on.watcher._beat()


async def _living() -> dict[PodUid, PodSighting]:
    return {X: _IN_IT, Y: replace(_IN_IT, cgroup="/kubepods/pody", inode=8, processes=(42,))}


async def test_a_pod_of_other_processes_at_each_look_does_not_fill_the_log(tmp_path: Path) -> None:
    async with _node(tmp_path) as on:
        await on.ends()
        with capture_logs() as logs:
            for look in range(300):
                await on.watcher._release({X: replace(_IN_IT, processes=(1000 + look,))})
                await on.clock.advance(0.2)
            told = len(logs)
            await on.clock.advance(30)
            await on.watcher._release({X: replace(_IN_IT, processes=(77,))})

    assert told == 11, "ten at once, and then one each 30 s"
    assert [each["reason"] for each in logs[told:]] == ["processes of its pod still live: pid 77"]


@pytest.mark.parametrize(
    ("record", "was_seen"),
    [
        (_RECORD, True),
        (replace(_RECORD, cgroup=None, inode=None), False),
        (replace(_RECORD, cgroup=None, inode=None, boot=BootId("boot-0")), True),
    ],
    ids=["seen", "never seen", "of a former boot"],
)
async def test_a_pod_without_a_cgroup_is_gone_where_it_had_one_before(
    tmp_path: Path, record: PodRecord, was_seen: bool
) -> None:
    async with _node(tmp_path, record) as on:
        assert on.former().cgroup_seen is was_seen


@pytest.mark.parametrize(
    "keeps", [{"detained": "its functions are being reset and checked"}, {"cleared": None}]
)
async def test_a_device_is_not_free_before_it_was_reset_and_checked(
    tmp_path: Path, keeps: dict[str, Any]
) -> None:
    async with _node(tmp_path) as on:
        await on.ends()
        for attribute, value in keeps.items():
            setattr(on.parts, attribute, value)
        assert await on.release() is LockState.RELEASING
        assert not on.parts.stepped
        on.parts.detained, on.parts.cleared = "", ""
        assert await on.release() is None


async def test_a_lock_that_moves_while_it_is_judged_is_not_freed(tmp_path: Path) -> None:
    """What was judged is another part of its life: it can be another pod's by then."""
    async with _node(tmp_path) as on:
        await on.ends()
        on.parts.moves = True
        assert await on.release() is LockState.RECLAIMING


async def test_what_many_pods_left_waits_for_one_answer_of_kubelets_and_a_few_have_their_turn(
    tmp_path: Path,
) -> None:
    """Kubelet is asked once a second: one after the other, 30 pods kept all devices for 30 s."""
    async with _node(tmp_path) as on:
        others = ascii_letters[1:31]
        for each in others:
            own = allocated(silicon(**{each: each}), pod=PodUid(each), active=True)
            await on.ledger.apply(own)
        await on.ledger.apply(settle)
        for allocation in tuple(on.ledger.book.value.allocations.values()):
            await on.ledger.apply(partial(Draft.end, allocation=allocation, evidence="it is over"))
        on.parts.answer = asyncio.Event()
        left = {PodUid(each): replace(_IN_IT, cgroup=each) for each in others}

        for turn in (16, 30):
            beat = asyncio.create_task(on.watcher._release(left))
            await until(lambda count=turn: len(on.parts.stepped) >= count)  # type: ignore[misc]
            assert len({lock.pod for lock in on.parts.stepped}) == turn
            on.parts.answer.set()
            await beat
            on.parts.answer.clear()


class _Commits:
    """Hears which devices each commit moved."""

    def __init__(self) -> None:
        self.moved: list[set[DeviceName]] = []

    def committed(self, moves: tuple[Move, ...], _seconds: float) -> None:
        self.moved.append({each.device for each in moves})


async def test_what_is_free_at_the_same_moment_is_written_down_in_one_commit(
    tmp_path: Path,
) -> None:
    """Each commit makes the standings of all devices again: 256 of them took seconds of CPU."""
    async with _node(tmp_path) as on:
        letters = "bcdefghijklmnopqrstuvwxyz"
        for each in letters:
            await on.ledger.apply(allocated(silicon(**{each: each}), pod=PodUid(each), active=True))
        await on.ledger.apply(settle)
        for allocation in tuple(on.ledger.book.value.allocations.values()):
            await on.ledger.apply(partial(Draft.end, allocation=allocation, evidence="it is over"))
        commits = _Commits()
        on.ledger.observe(commits)
        on.watcher.settings.set(replace(on.watcher.settings.value, unseen_grace=0.0))

        await on.watcher._release({})

        assert not on.ledger.book.value.locks
        assert commits.moved == [{_D0, *map(name, letters)}]


async def test_of_a_pod_that_cannot_all_be_listed_nothing_is_ended_and_others_have_their_turn(
    tmp_path: Path,
) -> None:
    async with _node(tmp_path) as on:
        lock = await on.ends()
        unlisted = replace(_IN_IT, populated=None, processes=(), unlisted="cannot list it")
        assert await on.release(**{X: unlisted}) is LockState.RELEASING
        assert not on.parts.stepped
        assert await on.release(**{X: _IN_IT}) is LockState.RELEASING
        assert on.parts.stepped == [lock]


async def test_a_pod_that_has_its_device_again_starts_over(tmp_path: Path) -> None:
    """Its next end must not skip a grace, or a SIGTERM, because of the one that was none."""
    async with _node(tmp_path) as on:
        await on.ends()
        await on.release(**{X: _IN_IT})
        assert on.parts.over == {X}
        on.reader.view.set(seen(entry(X, "d0")))
        await on.watcher._beat()
        assert on.ledger.book.value.locks[_D0].state is LockState.HELD
        assert on.parts.over == set()


async def test_of_a_pod_that_has_another_device_no_end_is_remembered(tmp_path: Path) -> None:
    async with _node(tmp_path) as on:
        await on.ends()
        await on.ledger.apply(allocated(silicon(d1="b"), pod=X, active=True))
        await on.ledger.apply(settle)
        assert await on.release(**{X: _IN_IT}) is LockState.RELEASING
        assert on.parts.over == set()
        assert on.parts.locked == {_D0, name("d1")}, "why a sandbox is spared is said once"


class _Use:
    """Sees nobody, and notes whether that was to free the device."""

    def __init__(self) -> None:
        self.to_free: set[DeviceName] = set()
        self.look = self

    async def enabled(self, devices: Sequence[Device]) -> dict[DeviceName, tuple[()]]:
        return {each.name: () for each in devices}

    async def known(
        self, devices: Sequence[Device], _locks: object, *, to_free: set[DeviceName], **_: object
    ) -> dict[DeviceName, KernelFacts]:
        self.to_free = to_free
        return {each.name: KernelFacts(holders=()) for each in devices}


@pytest.mark.parametrize(
    ("pod", "to_free"),
    [
        (None, True),
        (FormerPod(counted=False, populated=False), True),
        (FormerPod(counted=False, populated=True), False),
        (FormerPod(counted=False, populated=None), False),
        (FormerPod(counted=True, populated=False), False),
        (FormerPod(counted=None, populated=False), False),
    ],
    ids=["no pod", "over", "populated", "perhaps populated", "counted", "perhaps counted"],
)
async def test_who_has_a_device_is_seen_anew_once_its_pod_is_over_and_never_tried_before(
    tmp_path: Path, pod: FormerPod | None, *, to_free: bool
) -> None:
    """That nobody has it must have been seen after the end, and an open could disturb a start."""
    async with _node(tmp_path, devices={WHOLE: silicon(d0="a")}) as on:
        use: Any = _Use()
        on.watcher.use = use
        book = on.ledger.book.value
        await on.watcher._kernel_facts([book.locks[_D0]], book, {_D0: pod})
        assert (_D0 in use.to_free) is to_free


@pytest.mark.parametrize(
    ("lock", "nobodys"),
    [
        pytest.param({}, False, id="a pod's"),
        pytest.param({"started": False}, False, id="a pod's that waits"),
        pytest.param({"pod": None}, False, id="a pod's whose name was lost"),
        pytest.param({"pod": None, "started": False}, True, id="never started"),
        pytest.param({"pod": None, "state": LockState.FOREIGN}, True, id="foreign"),
    ],
)
async def test_a_device_is_nobodys_only_where_no_pod_can_have_started_on_it(
    tmp_path: Path, lock: dict[str, Any], *, nobodys: bool
) -> None:
    async with _node(tmp_path) as on:
        book = on.ledger.book.value
        found = await on.watcher._facts([replace(book.locks[_D0], **lock)], book, {})
        assert [facts.nobodys for facts in found.values()] == [nobodys]
