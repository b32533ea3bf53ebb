"""The world in which the promise is tried: no two pods ever have one piece of hardware.

A small world (kubelet's checkpoint, processes that outlive their pods, reboots) drives the rules over
the ledger's real file. The daemon may be killed at any statement of any commit: what it finds then
must be the book before that commit or the book after it."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from fakes.books import HALF, NOW, WHOLE, breaches, inventory, silicon, unlocked
from fakes.doors import why_wait
from fakes.ledgers import moves_in, stored
from holdfast.errors import ClaimRefusedError, LedgerError
from holdfast.ledger.disk import FILE, SEAL
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.store import Store
from holdfast.model.book.book import ENDING, Book, DeviceLock, LockState, Move, Phase
from holdfast.model.book.claims import release
from holdfast.model.book.draft import Draft
from holdfast.model.book.places import place
from holdfast.model.book.pods import (
    Observation,
    PodSighting,
    changes_with_time,
    lacking,
    reconcile,
    take_in,
)
from holdfast.model.book.queue import settle
from holdfast.model.cards import card_of, replica_key, replica_of, shares
from holdfast.model.devices import Device, Identity, pci_key
from holdfast.model.gate.gate import Caller, Passage, arrive, enter, who_calls
from holdfast.model.ids import (
    NO_CHECKPOINT,
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.model.nvidia.free import granted_on
from holdfast.model.use.free import (
    FormerPod,
    Freedom,
    KernelFacts,
    OpenOutcome,
    ReleaseFacts,
    judge_kernel,
    judge_release,
)
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched
from oneholder.virtualtime import VirtualLane

T = TypeVar("T")

REPLICA = ResourceName("example.com/replica")
SHARE = ResourceName("example.com/share")
VFIO = ResourceName("example.com/vfio")
_CARD, _TOP, _BOTTOM = HardwareKey("card/G"), HardwareKey("part/G/1"), HardwareKey("part/G/2")
_SHARED = {DeviceId(f"r{n}"): frozenset({replica_key("G", n)}) for n in range(3)}
_TOP_SHARED = {DeviceId(f"s{n}"): frozenset({replica_of(_TOP, n)}) for n in range(2)}
_ADDRESS = PciAddress("0000:3b:00.0")
_FUNCTION = frozenset({pci_key(_ADDRESS)})
_FOUND = inventory(
    {
        # The card G is there whole, as halves, shared, with one half shared, and on VFIO: as if all
        # of that just changed.
        WHOLE: {
            **silicon(w0="ab", w1="cd", w2="e"),
            DeviceId("w3"): frozenset({_CARD, _TOP, _BOTTOM}),
        },
        HALF: {
            **silicon(h0="a", h1="b", h2="c", h3="de"),
            DeviceId("h4"): frozenset({_TOP}),
            DeviceId("h5"): frozenset({_BOTTOM}),
        },
        REPLICA: _SHARED,
        SHARE: _TOP_SHARED,
        VFIO: {DeviceId("v0"): _FUNCTION | {HardwareKey("pci/0000:3b:00.1")}},
    }
)
_NODE = replace(
    _FOUND,
    devices=tuple(
        replace(each, identity=Identity(addresses=(_ADDRESS,)))
        if any(map(card_of, each.keys))
        else each
        for each in _FOUND.devices
    ),
)
REPLICAS = _NODE.of(REPLICA)
_WAYS = {
    _CARD: ("12", ""),
    _TOP: ("1", ""),
    _BOTTOM: ("2", ""),
    **{key: ("12", "card") for keys in _SHARED.values() for key in keys},
    **{key: ("1", "top") for keys in _TOP_SHARED.values() for key in keys},
}
"""Which halves of the card each of its keys has, and whom it shares these with."""
_KEYS = {device.name: device.keys for device in _NODE.devices}
WISHES = st.lists(
    st.sampled_from(
        [
            (WHOLE, ("w0",)),
            (WHOLE, ("w1",)),
            (WHOLE, ("w0", "w1")),
            (WHOLE, ("w2",)),
            (HALF, ("h0",)),
            (HALF, ("h1", "h2")),
            (HALF, ("h3",)),
            (WHOLE, ("w3",)),
            (HALF, ("h4",)),
            (REPLICA, ("r0",)),
            (REPLICA, ("r1",)),
            (REPLICA, ("r1", "r2")),
            (SHARE, ("s0",)),
            (SHARE, ("s1",)),
            (VFIO, ("v0",)),
        ]
    ),
    min_size=1,
    max_size=3,
)
Crossing = tuple[tuple[tuple[ResourceName, tuple[str, ...]], ...], ...]
CROSSING: tuple[Crossing, ...] = (
    (((WHOLE, ("w0",)), (HALF, ("h2",))), ((WHOLE, ("w1",)), (HALF, ("h0",)))),
    (((HALF, ("h4",)), (HALF, ("h0",))), ((WHOLE, ("w0",)), (SHARE, ("s0",)))),
    (((VFIO, ("v0",)), (HALF, ("h3",))), ((WHOLE, ("w2",)), (REPLICA, ("r0",)))),
)
"""What two pods ask for, of which each asks first for what the other asks for last."""
MOSTLY = st.sampled_from([True, True, True, False])
CRASH = st.one_of(st.none(), st.none(), st.integers(0, 30))
"""At which statement of the next commit the daemon is killed."""


class Look(Enum):
    """What becomes of a look at kubelet's checkpoint."""

    READ = "read"
    UNREADABLE = "it cannot be read"
    STUCK = "the read does not return, and what was read before is all that is known"


class Disk(Enum):
    """How much the disk of the ledger still takes."""

    ROOM = "everything"
    FULL = "what is kept for releases"
    NOTHING = "nothing"
    HANGS = "takes one commit, too late, and no other before that"


_TAKES_NOTHING = frozenset({Disk.NOTHING, Disk.HANGS})
_DISKS = st.sampled_from([Disk.ROOM, *Disk])
_LOOKS = st.sampled_from([Look.READ, Look.READ, Look.READ, Look.READ, Look.UNREADABLE, Look.STUCK])


def devices_of(
    resource: ResourceName, ids: frozenset[DeviceId]
) -> dict[DeviceId, frozenset[HardwareKey]]:
    return {id_: _KEYS[DeviceName(resource, id_)] for id_ in sorted(ids)}


@cache
def excludes(one: frozenset[HardwareKey], other: frozenset[HardwareKey]) -> bool:
    """Tell whether two pods must not have *one* and *other* at the same time."""
    by_driver = any(map(card_of, one)), any(map(card_of, other))
    by_vfio = not _FUNCTION.isdisjoint(one), not _FUNCTION.isdisjoint(other)
    # Of the one card that there is.
    crosswise = (by_driver[0] and by_vfio[1]) or (by_vfio[0] and by_driver[1])
    return crosswise or any(_meet(a, b) for a in one for b in other)


def _meet(one: HardwareKey, other: HardwareKey) -> bool:
    if one == other:
        return True
    halves, among = _WAYS.get(one, ("", ""))
    others, theirs = _WAYS.get(other, ("", ""))
    return not {*halves}.isdisjoint(others) and not (among and among == theirs)


@cache
def is_on(opened: frozenset[HardwareKey], keys: frozenset[HardwareKey]) -> bool:
    """Tell whether a look at *keys* shows who has opened *opened*."""
    return excludes(opened, keys) or shares(opened, keys)


class Killed(Exception):  # noqa: N818 - the daemon's end, not an error of the test
    pass


@dataclass
class Container:
    resource: ResourceName
    ids: frozenset[DeviceId]
    passed: bool = False
    opened: bool = False
    known: bool = False
    """Whether the book learned whose start it was. Where it never did, the kernel alone tells."""
    waits_as: PodUid | None = None
    """Whose start it is, for the call that waits at the gate."""
    forgotten: bool = False
    """Whether its Allocate was not recorded before the daemon was killed: nothing tells of it."""

    @property
    def keys(self) -> frozenset[HardwareKey]:
        return frozenset().union(*devices_of(self.resource, self.ids).values())


@dataclass
class Pod:
    uid: PodUid
    containers: list[Container] = field(default_factory=list)
    counted: bool = True
    alive: bool = False
    """Whether a process is left in its cgroup."""

    @property
    def live(self) -> bool:
        return self.counted or self.alive

    @property
    def sure(self) -> frozenset[HardwareKey]:
        return frozenset().union(
            *(each.keys for each in self.containers if each.passed and each.known)
        )

    @property
    def passed(self) -> frozenset[HardwareKey]:
        return self.opened | self.sure

    @property
    def opened(self) -> frozenset[HardwareKey]:
        return frozenset().union(*(each.keys for each in self.containers if each.opened))


class OneHolder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        shm = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=shm if os.access(shm, os.W_OK) else None))
        self.copies = 0
        self.now = NOW
        """Seconds since the machine booted, or rather since the first of its boots."""
        self.wall = NOW
        self.boots = 0
        self.pods: list[Pod] = []
        self.writes = 0
        self.checkpoint: tuple[CheckpointEntry, ...] = ()
        self.writes_checkpoint = True
        """Whether kubelet's disk has room for its checkpoint; without it the old one stays."""
        self.look = Look.READ
        self.view = KubeletView()
        self.disk = Disk.ROOM
        self.hanging: Callable[[Draft], object] | None = None
        """What a disk that hangs was given, and takes once it hangs no more."""
        self.owed: frozenset[object] = frozenset()
        """What was allocated before the last commit, and could not be recorded."""
        self.out_of_turn = False
        """Whether an Allocate was forgotten, and the checkpoint told nothing of it either."""
        self.met: Counter[str] = Counter()
        """How often the faults met something that they matter to."""
        self.stranger: frozenset[HardwareKey] = frozenset()
        self.moves: list[Move] = []
        self._open(self._folder())

    def _open(self, folder: Path) -> None:
        """Start the daemon on the ledger in *folder*."""
        self.store = Store(folder)
        self.ledger = Ledger(
            store=self.store,
            lane=VirtualLane("ledger", around=lambda call: call()),
            book=Watched(self.store.book),
            clock=_Clock(self),
            boot=BootId(f"boot-{self.boots}"),
            locks=(),
        )
        self.book = self.ledger.book.value

    def teardown(self) -> None:
        self.disk = Disk.ROOM
        try:
            self._everybody_who_waits_can_start_in_the_end()
        finally:
            self.store.close()
            shutil.rmtree(self.root)

    def _everybody_who_waits_can_start_in_the_end(self) -> None:
        """When the dead are gone and kubelet can be asked, no queue stands still.

        Pods end after they have started, as they do, so that the next can. Only where the daemon was
        killed before it could record an Allocate, and could not read the checkpoint when it came
        back, does nothing tell which pod came first. Then a person deletes one.
        """
        self._calm()
        self.the_watcher_beats(None)
        self._calm()  # what is recorded only now has its `allocate.pendingTimeout` too
        self._all_start_and_end()
        started = [pod for pod in self.pods if pod.counted and pod.passed]
        while self.out_of_turn and started:
            started.pop().counted = False
            self._write_checkpoint()
            self._all_start_and_end()
            started = [pod for pod in started if pod.counted]
            self.met["a pod that a person had to delete"] += 1
        assert not [pod.uid for pod in self.pods if pod.counted], (
            f"a pod waits for ever: {self.book}"
        )

    def _all_start_and_end(self) -> None:
        idle = 0
        for _ in range(3 * len(self.pods)):
            idle += not any(pod.counted for pod in self.pods)
            if idle > 2:  # the last one is through, and what it left was looked at
                break
            for pod in self.pods:
                if not pod.counted:
                    self._all_exit(pod)
                for each in pod.containers:
                    each.opened = False
            for _ in range(4):
                self.the_watcher_beats(None)
            for pod in [each for each in self.pods if each.counted]:
                for each in pod.containers:
                    self._start(pod, each, None)
                if all(each.passed for each in pod.containers):
                    pod.counted = False
                    self._write_checkpoint()

    def _calm(self) -> None:
        """Let nobody be in the way, and everything that was to take its time have had it."""
        self.stranger = frozenset()
        self.look, self.writes_checkpoint = Look.READ, True
        self.now += 1000
        self._write_checkpoint()

    def _everybody(self) -> list[Pod]:
        """Return every pod, by whatever door it came."""
        return self.pods

    def _nobody_else_has(self, keys: frozenset[HardwareKey], but: Collection[Pod]) -> None:
        for other in self._everybody():
            if other not in but and other.live:
                assert not excludes(other.passed, keys), f"{other.uid} has it too"

    def _all_exit(self, pod: Pod) -> None:
        pod.alive = False
        for each in pod.containers:
            each.passed = each.opened = each.known = False

    # The world.

    def _folder(self) -> Path:
        self.copies += 1
        folder = self.root / str(self.copies)
        folder.mkdir()
        self.folder = folder
        return folder

    def _read(self, look: Look, *, asks: bool) -> None:
        """Let the daemon look at the checkpoint, once it has had kubelet write it if it *asks*."""
        was = replace(self.view, file=self._file, read_at=self.now)
        answered = asks and self.writes_checkpoint
        if look is Look.READ:
            self.view = replace(
                was,
                entries=self.checkpoint,
                readable=True,
                kubelet=ProcessId(7, 7),
                answered=answered or (was.answered and was.entries == self.checkpoint),
                asked_at=self.now if answered else was.asked_at,
            )
        elif look is Look.UNREADABLE:
            self.view = replace(was, readable=False, answered=False)

    @property
    def _file(self) -> CheckpointId:
        return CheckpointId(str(self.writes))

    def _write_checkpoint(self) -> None:
        self.now += 1
        if not self.writes_checkpoint:
            self.met["a checkpoint that kubelet could not write"] += 1
            return
        self.writes += 1
        self.checkpoint = tuple(
            CheckpointEntry(pod=pod.uid, container=str(n), resource=each.resource, devices=each.ids)
            for pod in self.pods
            if pod.counted
            for n, each in enumerate(pod.containers)
        )

    def _holders(self, keys: frozenset[HardwareKey]) -> tuple[Holder, ...]:
        """Return who is in the way on *keys*: of a card, its driver shows everybody."""
        neighbours = granted_on(keys, self.book.locks, pods_of=self.book.pods_of).neighbours
        found = [
            Holder(
                process=ProcessId(100 + n, 1),
                command="work",
                access=frozenset({DeviceAccess.NODE}),
                pod=pod.uid,
            )
            for n, pod in enumerate(self._everybody())
            if is_on(pod.opened, keys) and pod.uid not in neighbours
        ]
        if is_on(self.stranger, keys):
            found.append(
                Holder(process=ProcessId(9, 1), command="dd", access=frozenset({DeviceAccess.NODE}))
            )
        return tuple(found)

    # The daemon.

    def _commit(self, decide: Callable[[Draft], T], crash: int | None) -> T:
        """Let the ledger decide, killed at statement number *crash*; None: not killed."""
        if self.disk is Disk.HANGS:
            self.met[f"a commit on a disk that {self.disk.value}"] += 1
            self.hanging = self.hanging or decide
            raise LedgerError("no answer in time")
        if self.hanging is not None:
            late, self.hanging = self.hanging, None
            with suppress(ClaimRefusedError):  # nobody hears it any more
                self._commit_or_log(late, None)
        before, refused = self.book, None
        self.owed = frozenset(self.ledger._owed.values())
        wreck = _Wreck(self.folder, self.root / "wreck", crash)
        self.store._db.set_trace_callback(wreck.statement)
        self.store._reserve.full = self.disk is not Disk.ROOM
        if self.disk is Disk.NOTHING:
            self.store._db.execute("PRAGMA query_only = ON")
        try:
            answer, commit = self.ledger._apply(decide)
        except LedgerError as error:
            assert self.disk is not Disk.ROOM
            self.met[f"a commit on a disk that takes {self.disk.value}"] += 1
            refused, answer, commit = error, None, None
        finally:
            self.store._db.execute("PRAGMA query_only = OFF")
            self.store._db.set_trace_callback(None)
        if not (commit or refused):
            return cast("T", answer)
        after, moves = (commit.book, commit.moves) if commit else (before, ())
        wreck.finish()
        assert stored(self.store) == after
        if crash is not None:
            self._rise_from(wreck, before, after, moves)
            raise Killed
        if refused:
            raise refused
        self._committed(after, moves)
        return cast("T", answer)

    def _commit_or_log(self, decide: Callable[[Draft], object], crash: int | None) -> bool:
        """Do as Ledger does for those who try again; return whether it was committed."""
        try:
            self._commit(decide, crash)
        except LedgerError:
            return False
        return True

    def _rise_from(
        self, wreck: "_Wreck", before: Book, after: Book, moves: tuple[Move, ...]
    ) -> None:
        """Go on with what the killed daemon left behind."""
        for cut in wreck.cuts():
            found = self._look_into(cut)
            assert found in ((before, len(self.moves)), (after, len(self.moves) + len(moves)))
        book = self._begin_again(wreck)
        assert book in (before, after), "the ledger shows a book that never was"
        if book == after:
            self._committed(after, moves)
        self._check_history()
        self._look_at_kubelet()

    def _begin_again(self, wreck: "_Wreck") -> Book:
        """Start the daemon on what the killed one left behind; return the book there."""
        self.store.close()
        before, self.hanging = self.book, None
        shutil.copytree(wreck.copy, self._folder(), dirs_exist_ok=True)
        self._open(self.folder)
        self.view = KubeletView()
        for pod in self.pods:
            for each in pod.containers:
                each.waits_as = None
                owed = (each.resource, each.ids) in self.owed
                each.forgotten |= owed and self.book == before
        book, self.book = self.book, before
        return book

    def _look_into(self, folder: Path) -> tuple[Book, int]:
        store = Store(folder)
        try:
            return stored(store), len(moves_in(store, None, 1_000_000))
        finally:
            store.close()

    def _committed(self, book: Book, moves: tuple[Move, ...]) -> None:
        last = self.moves[-1].fence if self.moves else 0
        for move in moves:
            assert move.fence > last, "a fence repeats"
            last = move.fence
        self.book = book
        self.ledger.book.set(book)
        self.moves.extend(moves)
        for pod in self.pods:
            for each in pod.containers:
                each.known |= any(
                    one.phase is Phase.ACTIVE
                    and (one.pod, one.resource, one.ids) == (pod.uid, each.resource, each.ids)
                    for one in book.allocations.values()
                )

    def _check_history(self) -> None:
        assert moves_in(self.store, None, 1_000_000) == tuple(self.moves)

    @initialize()
    def start(self) -> None:
        assert self.book == Book()
        self._commit(partial(place, found=_NODE.cards), None)

    @rule(wishes=WISHES, crash=CRASH, admitted=MOSTLY)
    def a_pod_comes(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], crash: int | None, admitted: bool
    ) -> None:
        """Kubelet admits a pod, or refuses it after our Allocates: another plugin said no.

        Its containers may be given what its init containers have.
        """
        wished = [(resource, frozenset(map(DeviceId, ids))) for resource, ids in wishes]
        self._admit(wished, crash, admitted=admitted)

    @rule(wishes=WISHES, data=st.data())
    def a_pod_comes_and_starts(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], data: st.DataObject
    ) -> None:
        wished = [(resource, frozenset(map(DeviceId, ids))) for resource, ids in wishes]
        self._admit(wished, None)
        self._start_last_pod(data)

    @rule(data=st.data(), disk=_DISKS, look=_LOOKS)
    @precondition(lambda self: any(pod.counted for pod in self.pods))
    def a_pod_is_followed_at_once_by_the_next(
        self, data: st.DataObject, disk: Disk, look: Look
    ) -> None:
        """Kubelet thinks that the devices are free; what is left of the former pod may not.

        The disk may have no room for a moment, and the former pod's own start wait at the gate.
        """
        former = data.draw(st.sampled_from([each for each in self.pods if each.counted]))
        for each in former.containers:
            self._start(former, each, None)
        former.counted = False
        self._write_checkpoint()
        until, self.disk = self.disk, disk
        self._admit([(each.resource, each.ids) for each in former.containers], None)
        self.disk, self.look = until, look
        self._start_last_pod(data)
        for each in former.containers:
            if each.waits_as is not None:
                self._start(former, each, None)

    @rule(
        wishes=st.sampled_from(CROSSING),
        disks=st.lists(_DISKS, min_size=4, max_size=4),
        killed=st.sampled_from([None, None, *Disk]),
        look=_LOOKS,
        data=st.data(),
    )
    def two_pods_cross_while_the_disk_comes_and_goes(
        self,
        wishes: Crossing,
        disks: list[Disk],
        killed: Disk | None,
        look: Look,
        data: st.DataObject,
    ) -> None:
        """Each asks for what the other asks for in another way, and they start in any order."""
        starting = self.cross(wishes, disks, killed=killed, look=look)
        for pod, each in data.draw(st.permutations(starting)):
            if data.draw(st.booleans()):
                self.the_watcher_beats(None)
            self._start(pod, each, None)

    def cross(
        self, wishes: Crossing, disks: Sequence[Disk], *, killed: Disk | None, look: Look
    ) -> list[tuple[Pod, Container]]:
        """Let two pods come, and return their containers, which have not started.

        *disks* is how the disk is at each Allocate, and *killed* how it is when the daemon is
        started again, if it is killed.
        """
        until, came = self.disk, len(self.pods)
        of_each = iter(disks)
        for pod in wishes:
            wished = [(resource, frozenset(map(DeviceId, ids))) for resource, ids in pod]
            self._admit(wished, None, disks=[next(of_each) for _ in wished])
        self.look = look
        if killed is not None:
            self.disk = killed
            self._restart()
        self.disk = until
        return [(pod, each) for pod in self.pods[came:] for each in pod.containers]

    def _start_last_pod(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(0, 2))):
            self.the_watcher_beats(None)
        for pod in self.pods[-1:]:
            for container in pod.containers if pod.counted else ():
                self._start(pod, container, None)
                container.opened = container.passed and data.draw(st.booleans())

    def _admit(
        self,
        wishes: list[tuple[ResourceName, frozenset[DeviceId]]],
        crash: int | None,
        *,
        admitted: bool = True,
        disks: Sequence[Disk] = (),
    ) -> None:
        taken = {
            (each.resource, id_)
            for pod in self.pods
            if pod.counted
            for each in pod.containers
            for id_ in each.ids
        }
        pod = Pod(uid=PodUid(f"pod-{len(self.pods)}"))
        for (resource, ids), disk in zip_longest(wishes, disks):
            if any((resource, id_) in taken for id_ in ids):
                continue
            self.disk = disk or self.disk
            try:
                self._call_allocate(resource, ids, crash)
            except Killed:
                return  # Allocate failed, and with it the admission
            if not self.writes_checkpoint:
                return  # and so it does where kubelet cannot write that down
            pod.containers.append(Container(resource, ids))
            if admitted:
                if pod not in self.pods:
                    self.pods.append(pod)
                self._write_checkpoint()

    def _call_allocate(
        self, resource: ResourceName, ids: frozenset[DeviceId], crash: int | None
    ) -> None:
        """Allocate is answered though it cannot be recorded: the gate commits before it passes."""
        stuck = self.look is Look.STUCK
        file, at = (NO_CHECKPOINT, None) if stuck else (self._file, self.now)
        record = partial(_record, resource=resource, ids=ids, file=file, at=at)
        self.ledger.owe((resource, ids), record)
        if stuck or not self._commit_or_log(Draft.pay, crash):
            self.met["an Allocate that was not recorded"] += 1

    @rule(data=st.data(), crash=CRASH, look=_LOOKS)
    @precondition(lambda self: bool(self._starting()))
    def a_container_starts(self, data: st.DataObject, crash: int | None, look: Look) -> None:
        """Or the call that waits at the gate is looked at again, though its pod may be deleted."""
        if data.draw(MOSTLY):
            self.the_watcher_beats(None)
        pod, container = data.draw(st.sampled_from(self._starting()))
        if pod.counted and data.draw(st.booleans()):
            container.waits_as = None
        self._start(pod, container, crash, look)

    def _starting(self) -> list[tuple[Pod, Container]]:
        every = [(pod, each) for pod in self.pods for each in pod.containers]
        return [(pod, each) for pod, each in every if pod.counted or each.waits_as is not None]

    def _start(
        self, pod: Pod, container: Container, crash: int | None, look: Look | None = None
    ) -> None:
        passage = Passage(
            resource=container.resource,
            asked=container.ids,
            devices=devices_of(container.resource, container.ids),
        )
        caller = self._identified(pod, container, passage, look or self.look)
        if caller is None or why_wait(passage, caller, self.book) is not None:
            return
        facts = KernelFacts(holders=self._holders(passage.keys))
        if judge_kernel(facts).freedom is not Freedom.FREE:
            return
        try:
            reason = self._commit(lambda draft: enter(draft, passage, caller, "passed"), crash)
        except (Killed, LedgerError):
            return  # kubelet hears an error, and asks again later
        if reason is None:
            container.waits_as = None
            self._nobody_else_has(container.keys, [pod])
            container.passed = pod.alive = True
            container.known = caller.pod == pod.uid

    def _identified(
        self, pod: Pod, container: Container, passage: Passage, look: Look
    ) -> Caller | None:
        """Return whose start it is taken for, None where it waits for that."""
        known, asked = container.waits_as, (passage.resource, passage.asked)
        if self.ledger.may_lack(asked) and not self._commit_or_log(Draft.pay, None):
            return None
        self._read(look, asks=False)
        if look is not Look.READ:
            self.met[f"a start, and of the checkpoint: {look.value}"] += 1
        if look is Look.STUCK and known is None:
            return None
        view = replace(self.view, readable=False) if look is Look.STUCK else self.view
        caller = who_calls(passage, view, self.book, known=known)
        container.waits_as = caller.pod
        if container.forgotten and caller.pod not in {None, pod.uid}:
            self.met["a start that is taken for a former pod's"] += 1
            return None  # as docs/lock-states.md says; that pod's own process may open it again
        if self.view.unreadable:
            arrived = partial(arrive, passage=passage, caller=caller)
            if not self._commit_or_log(arrived, None):
                return None
        return caller if len(caller.pods) <= 1 and caller.gone is None else None

    @rule(data=st.data())
    @precondition(lambda self: any(pod.alive for pod in self.pods))
    def a_process_opens_or_closes(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from([each for each in self.pods if each.alive]))
        for each in pod.containers:
            if each.passed:
                opens = data.draw(st.booleans())
                each.opened = opens and (each.known or not self._was_given_on(pod, each))

    def _was_given_on(self, pod: Pod, container: Container) -> bool:
        """Tell whether another pod has what *container* let go of, and of whose start nothing tells.

        Its pod was not in the checkpoint, and its process has the device closed: it was free.
        """
        others = (each for each in self._everybody() if each is not pod and each.live)
        return any(excludes(each.passed, container.keys) for each in others)

    @rule(data=st.data())
    @precondition(lambda self: any(pod.counted for pod in self.pods))
    def kubelet_lets_go_of_a_pod(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from([each for each in self.pods if each.counted]))
        pod.counted = False
        self._write_checkpoint()
        if data.draw(MOSTLY):
            self.the_watcher_beats(None)

    @rule(data=st.data(), allocates=st.booleans())
    @precondition(lambda self: any(not pod.counted for pod in self.pods))
    def kubelet_counts_a_pod_again(self, data: st.DataObject, allocates: bool) -> None:
        """A kubelet that lost its checkpoint for a moment; or a static pod that comes back."""
        pod = data.draw(st.sampled_from([each for each in self.pods if not each.counted]))
        wished = [(each.resource, each.ids) for each in pod.containers]
        if not self.writes_checkpoint or any(
            each.resource == resource and each.ids & ids
            for other in self.pods
            if other.counted
            for each in other.containers
            for resource, ids in wished
        ):
            return
        if allocates:
            for resource, ids in wished:
                self._call_allocate(resource, ids, None)
        pod.counted = True
        self._write_checkpoint()

    @rule(data=st.data())
    @precondition(lambda self: any(pod.alive and not pod.counted for pod in self.pods))
    def the_last_process_of_a_pod_exits(self, data: st.DataObject) -> None:
        pod = data.draw(
            st.sampled_from([each for each in self.pods if each.alive and not each.counted])
        )
        self._all_exit(pod)

    @rule(look=_LOOKS, seconds=st.sampled_from([1, 70, 700]))
    def time_passes(self, look: Look, seconds: int) -> None:
        self.now += seconds
        self.look = look

    @rule(disk=_DISKS, writes_checkpoint=MOSTLY)
    def a_disk_fills_or_is_cleared(self, disk: Disk, writes_checkpoint: bool) -> None:
        """The ledger's, kubelet's, or both."""
        self.disk = disk
        self.writes_checkpoint = writes_checkpoint
        self._write_checkpoint()

    @rule(seconds=st.sampled_from([3600, -3600, -86400]))
    def the_clock_is_set(self, seconds: int) -> None:
        self.wall += seconds

    @rule(keys=st.sampled_from([("a",), ("d", "e"), (_CARD,)]))
    @precondition(lambda self: not self.stranger)
    def a_stranger_opens_what_is_free(self, keys: tuple[str, ...]) -> None:
        wanted = frozenset(map(HardwareKey, keys))
        if not any(is_on(pod.opened, wanted) for pod in self._everybody()):
            self.stranger = wanted

    @rule()
    @precondition(lambda self: self.stranger)
    def the_stranger_lets_go(self) -> None:
        self.stranger = frozenset()

    @rule(crash=CRASH)
    @precondition(lambda self: self._everybody() or self.stranger)
    def the_watcher_beats(self, crash: int | None) -> None:
        self._read(self.look, asks=True)
        around = self._observed()
        try:
            ends = replace(around, adopts=False)
            before, ended = self.book, self._over(ends)
            if self.disk is not Disk.ROOM:
                self._commit_or_log(lambda draft: reconcile(draft, ends), crash)
            if self.book is before:
                self._commit_or_log(lambda draft: reconcile(draft, around), crash)
            # A disk with room for releases alone takes each end, whoever was admitted meanwhile.
            assert self.disk in _TAKES_NOTHING or ended.isdisjoint(self.book.allocations)
            self._agrees_at_any_time(around)
            for device in _NODE.devices:
                if self.book.lock_on(device.keys) is None and self._holders(device.keys):
                    self._commit_or_log(partial(_withhold, device=device), crash)
            self._free_what_is_free(crash)
        except Killed:
            return

    def _observed(self) -> Observation:
        sightings = {
            pod.uid: PodSighting(
                cgroup=f"/pod{pod.uid}",
                inode=1,
                populated=pod.alive,
                processes=(1,) if pod.alive else (),
            )
            for pod in self._everybody()
            if pod.live
        }
        return Observation(
            pending_timeout=60.0,
            view=self.view,
            inventory=_NODE,
            boot=BootId(f"boot-{self.boots}"),
            sightings=sightings,
        )

    def _agrees_at_any_time(self, around: Observation) -> None:
        """The daemon compares nothing again while nothing has changed."""
        settled = Draft(self.book, now=NOW, uptime=self.now, boot=around.boot)
        reconcile(settled, around)
        if settled.book is self.book and not changes_with_time(self.book):
            later = Draft(self.book, now=NOW, uptime=self.now + 1e6, boot=around.boot)
            reconcile(later, around)
            assert later.book is self.book

    def _over(self, ends: Observation) -> set[int]:
        """Return the Allocations that have ended; what is owed is recorded first if there is room."""
        owed = self.ledger._owed if self.disk is Disk.ROOM else {}
        draft = Draft(self.book, now=NOW, uptime=self.now, boot=ends.boot, owed=owed)
        draft.pay()
        reconcile(draft, ends)
        return self.book.allocations.keys() - draft.book.allocations.keys()

    def _free_what_is_free(self, crash: int | None) -> None:
        for lock in list(self.book.locks.values()):
            if lock.state not in ENDING and lock.state is not LockState.FOREIGN:
                continue
            kernel = KernelFacts(
                holders=self._holders(_KEYS[lock.device]), opened=OpenOutcome.UNAVAILABLE
            )
            if (
                judge_release(
                    ReleaseFacts(unseen_grace=30.0, kernel=kernel, pod=self._former(lock))
                ).freedom
                is Freedom.FREE
            ):
                self._commit_or_log(partial(release, lock=lock, evidence="free"), crash)

    def _former(self, lock: DeviceLock) -> FormerPod | None:
        pod = next((each for each in self._everybody() if each.uid == lock.pod), None)
        if pod is None:
            return None
        return FormerPod(
            counted=self.view.counts(pod.uid) if self.view.readable else None,
            unreadable=self.view.unreadable,
            populated=pod.alive,
            processes=(1,) if pod.alive else () if pod.counted else None,
            cgroup_seen=True,
        )

    @rule(data=st.data(), crash=CRASH)
    @precondition(lambda self: any(lock.state in ENDING for lock in self.book.locks.values()))
    def a_reclaim_moves_on(self, data: st.DataObject, crash: int | None) -> None:
        ending = [each for each in self.book.locks.values() if each.state in ENDING]
        lock = data.draw(st.sampled_from(ending))
        following = {
            LockState.RELEASING: LockState.RECLAIMING,
            LockState.RECLAIMING: LockState.QUARANTINED,
            LockState.QUARANTINED: LockState.RECLAIMING,
        }[lock.state]
        try:
            move = partial(Draft.move, device=lock.device, state=following, evidence="still held")
            self._commit_or_log(move, crash)
        except Killed:
            return

    @rule()
    @precondition(lambda self: len(self.moves) > 8)
    def the_ledger_is_tidied(self) -> None:
        self.store.tidy(keep=100_000)

    @rule(reboot=st.sampled_from([False, False, True]))
    @precondition(lambda self: self.book.allocations)
    def the_daemon_is_killed_while_it_does_nothing(self, reboot: bool) -> None:
        if reboot:
            self.boots += 1
            self.now += 60
            self.stranger = frozenset()
            for pod in self._everybody():
                self._all_exit(pod)
        self._restart()

    def _restart(self) -> None:
        old = self.folder
        wreck = _Wreck(old, self.root / "wreck", 0)
        wreck.finish()
        self.owed = frozenset(self.ledger._owed.values())
        assert self._begin_again(wreck) == self.book
        self._check_history()
        self._look_at_kubelet()

    def _look_at_kubelet(self) -> None:
        """Do what the daemon does at its start."""
        self._read(self.look, asks=False)
        containers = (each for pod in self.pods for each in pod.containers)
        if self.look is not Look.READ and any(each.forgotten for each in containers):
            self.out_of_turn = True
        around = self._observed()
        if not self._commit_or_log(partial(reconcile, observed=around), None):
            self.ledger.owe("catch up", partial(take_in, observed=lacking(self.book, around)))

    # What holds at every moment.

    @invariant()
    def no_hardware_is_in_two_locks_and_no_two_pods_are_active_on_it(self) -> None:
        assert not breaches(self.book)

    @invariant()
    def every_active_allocation_has_its_locks(self) -> None:
        """But for what a stranger has, or what the book of a former plugin's pod came too late for."""
        live = {pod.uid for pod in self._everybody() if pod.live} | {None}
        alive = [each for each in self.book.allocations.values() if each.pod in live]
        book = Book(allocations={each.id: each for each in alive}, locks=self.book.locks)
        assert not unlocked(book)

    @invariant()
    def what_two_live_pods_may_touch_is_never_the_same(self) -> None:
        live = [pod for pod in self.pods if pod.live and pod.passed]
        for n, one in enumerate(live):
            for other in live[n + 1 :]:
                assert not excludes(one.passed, other.passed)

    @invariant()
    def what_a_live_pod_may_touch_is_locked_for_nobody_else(self) -> None:
        for pod in self.pods:
            if pod.live:
                for lock in self.book.locks_on(pod.sure):
                    assert lock.pod in {pod.uid, None}

    @invariant()
    def every_lock_that_is_held_belongs_to_a_live_allocation(self) -> None:
        for lock in self.book.locks.values():
            if lock.state is LockState.HELD:
                assert lock.allocation in self.book.allocations

    @invariant()
    def no_allocation_is_active_that_was_never_started(self) -> None:
        started = {Phase.PENDING, Phase.ACTIVE}
        assert {each.phase for each in self.book.allocations.values()} <= started


class _Clock(SystemClock):
    """The clock of a world."""

    def __init__(self, world: OneHolder) -> None:
        self._world = world

    def uptime(self) -> float:
        return self._world.now

    def wall(self) -> float:
        return self._world.wall


class _Wreck:
    """A copy of the ledger's files at one statement of a commit: what kill -9 leaves behind."""

    def __init__(self, folder: Path, copy: Path, at: int | None) -> None:
        self.copy = copy
        self._folder = folder
        self._left = at
        self._taken = False
        self._wal_before = self._wal_size()
        self._seal_before = (folder / SEAL).read_bytes()

    def statement(self, _text: str) -> None:
        if self._left is not None and not self._taken:
            if self._left == 0:
                self._take()
            else:
                self._left -= 1

    def finish(self) -> None:
        if self._left is not None and not self._taken:
            self._take()

    def cuts(self) -> list[Path]:
        """Return copies whose WAL ends within the commit: what a power cut may leave behind."""
        after = self._wal_size()
        found = []
        for tenths in (1, 5, 9) if after > self._wal_before else ():
            cut = self.copy.with_name(f"cut-{tenths}")
            shutil.rmtree(cut, ignore_errors=True)
            shutil.copytree(self._folder, cut, ignore=shutil.ignore_patterns("*-shm", "reserve"))
            length = self._wal_before + (after - self._wal_before) * tenths // 10
            os.truncate(cut / f"{FILE}-wal", length)
            (cut / SEAL).write_bytes(self._seal_before)  # it is written once a commit is synced
            found.append(cut)
        return found

    def _take(self) -> None:
        self._taken = True
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self._folder, self.copy, ignore=shutil.ignore_patterns("*-shm", "reserve"))

    def _wal_size(self) -> int:
        wal = self._folder / f"{FILE}-wal"
        return wal.stat().st_size if wal.exists() else 0


def _record(
    draft: Draft,
    resource: ResourceName,
    ids: frozenset[DeviceId],
    file: CheckpointId,
    at: float | None,
) -> None:
    draft.allocate(resource, devices_of(resource, ids), checkpoint=file, answered_at=at)
    settle(draft)


def _withhold(draft: Draft, device: Device) -> None:
    draft.call_foreign(device.name, device.keys, "held by pid 9 (dd)")
