"""The book: every live Allocation and lock at one moment, as one frozen value; and lock states."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Protocol, TypeVar

from msgspec import Struct, field

from holdfast.model.book.marks import Marks
from holdfast.model.cards import NOWHERE, Places, Side, rivals, sides_of
from holdfast.model.devices import places_of
from holdfast.model.ids import (
    NO_CHECKPOINT,
    BootId,
    CheckpointId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.text import some

_MOST_PODS = 3
"""Pods that a text names of a claim: up to 256 may share one."""
CARDS = "cards"
"""Under which topic the book keeps the PCI address of each card."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Index = dict[_Key, tuple[_Value, ...]]
"""Allocations by number, or locks by device, by something that they have in common."""
_Mark = HardwareKey | Side
"""By what those on some hardware are found: a key, or a side of a card."""


class LockState(Enum):
    """The state of a device's lock. A device without a lock in the ledger is FREE."""

    FREE = "free"
    HELD = "held"
    RELEASING = "releasing"
    RECLAIMING = "reclaiming"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"


# One entry per arrow in docs/lock-states.md; any other move is refused.
NEXT = {
    LockState.FREE: frozenset({LockState.HELD, LockState.FOREIGN}),
    # HELD to HELD: another Allocation gets a lock whose gate never passed, or a holder is proven.
    LockState.HELD: frozenset({LockState.HELD, LockState.RELEASING}),
    # Back to HELD: kubelet counts the pod again; its absence from the checkpoint was not an end.
    LockState.RELEASING: frozenset({LockState.FREE, LockState.RECLAIMING, LockState.HELD}),
    LockState.RECLAIMING: frozenset({LockState.FREE, LockState.QUARANTINED, LockState.HELD}),
    LockState.QUARANTINED: frozenset({LockState.RECLAIMING, LockState.HELD}),
    LockState.FOREIGN: frozenset({LockState.FREE, LockState.HELD}),
}

ENDING = frozenset({LockState.RELEASING, LockState.RECLAIMING, LockState.QUARANTINED})
"""The states of a lock whose pod has ended while the device is not yet free."""


class DeviceLock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The exclusive hold on one device's keys.

    `fence` grows with each move and never repeats, across all devices. `allocation` is the
    Allocation that has the lock, None once its pod has ended or if there never was one. `pod` is
    None while it is unknown; of a `claim` that pods share it is one of them, and once the claim is
    over the one whose end is waited for. `since` is when this state was entered, in seconds since
    the epoch. `started`: a container of its pod may have passed the gate; without, the pod has no
    process.
    """

    device: DeviceName
    keys: frozenset[HardwareKey]
    state: LockState
    fence: int
    since: float
    boot: BootId
    allocation: int | None = None
    pod: PodUid | None = None
    claim: ClaimUid | None = None
    evidence: str = ""
    started: bool = True


class Move(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a device's history: what moved, and what had been seen.

    `claim` is ``namespace/name (uid)`` of the claim that had or gets the device, and `pod_name`
    ``namespace/name`` of the pod: the history outlives what the book knows of them.
    """

    at: float
    device: DeviceName
    fence: int
    before: LockState
    after: LockState
    pod: PodUid | None
    evidence: str
    pod_name: str | None = None
    claim: str | None = None


class Phase(Enum):
    """How far an Allocation has come; one that ended is no longer in the book."""

    PENDING = "pending"
    """Answered to kubelet; no container has passed the gate on it. Or its claim is not prepared."""

    ACTIVE = "active"
    """Its gate has passed, or its claim is prepared: that is a hold before the first open."""


class Allocation(Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """The record of one Allocate call: its devices with their keys, and its pod once known.

    Or, with `claim`, of a ResourceClaim: its devices of this resource. `pod` is then one of the
    pods that share the claim, never None.

    Ids grow with time, so the smaller id is the older Allocation. `checkpoint` is kubelet's
    checkpoint when Allocate was answered, at `answered_at`: only another one that was read later
    can name this Allocation's pod. `started_at` is when a container last passed the gate; both are
    in seconds since `boot`. `created_at` is in seconds since the epoch, only for display.
    """

    id: int
    resource: ResourceName
    devices: Mapping[DeviceId, frozenset[HardwareKey]]
    created_at: float
    boot: BootId
    checkpoint: CheckpointId = NO_CHECKPOINT
    answered_at: float = 0.0
    started_at: float = 0.0
    phase: Phase = Phase.PENDING
    pod: PodUid | None = None
    claim: ClaimUid | None = None

    @cached_property
    def ids(self) -> frozenset[DeviceId]:
        """Return the ids that kubelet named."""
        return frozenset(self.devices)

    @cached_property
    def keys(self) -> frozenset[HardwareKey]:
        """Return the keys of all its devices."""
        return frozenset().union(*self.devices.values())

    def names(self) -> Iterator[tuple[DeviceName, frozenset[HardwareKey]]]:
        """Yield each device's name with its keys."""
        return ((DeviceName(self.resource, id_), keys) for id_, keys in self.devices.items())


class PodRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a pod that has or recently had a lock.

    `cgroup` and `inode` identify its cgroup, as seen in `boot`; None: never seen. `counted_by` is
    the kubelet that had the pod in a checkpoint that it wrote itself; `let_go_at` is when the same
    kubelet, asked again, no longer had it. Both belong to `counted_boot`: a process id and a time
    (seconds since that boot) mean nothing after another boot.
    """

    uid: PodUid
    boot: BootId
    cgroup: str | None = None
    inode: int | None = None
    namespace: str = ""
    name: str = ""
    counted_by: ProcessId | None = None
    let_go_at: float | None = None
    counted_boot: BootId | None = None

    def is_former(self, inode: int, boot: BootId) -> bool:
        """Return whether the present cgroup with its UID belongs to a later pod.

        The inodes of cgroups start again with each boot, so they are compared only within one boot.
        """
        return self.boot != boot or self.inode not in {None, inode}

    @property
    def full_name(self) -> str | None:
        """Return ``namespace/name``; None while it is not known."""
        return f"{self.namespace}/{self.name}" if self.name else None

    def __str__(self) -> str:
        """Return ``namespace/name (uid)``, or as much of it as is known."""
        return f"{self.full_name} ({self.uid})" if self.name else self.uid


class ClaimRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a ResourceClaim that has or recently had devices, and the pods sharing it.

    `over_at` is when kubelet unprepared it, or it was found to be over, in seconds since `boot`;
    None while it is in preparation or prepared. `admin` are the devices, with their keys, that it
    was given with adminAccess: it uses them beside whoever has them, and has no lock on them.
    `let_go` are the pods that kubelet was done with when it was over; before that, those that left
    it while others use it. `former` are those of an earlier allocation of the claim, which has not
    given all of that back yet. `forgotten`: kubelet has no record of it, so that it will not
    unprepare it.
    """

    ref: ClaimRef
    pods: frozenset[PodUid]
    boot: BootId
    over_at: float | None = None
    let_go: frozenset[PodUid] = frozenset()
    former: frozenset[PodUid] = frozenset()
    forgotten: bool = False
    admin: Mapping[DeviceName, frozenset[HardwareKey]] = field(default_factory=dict)

    def had_before(self, lock: DeviceLock) -> bool:
        """Tell whether *lock*, one of this claim's, is left of an earlier allocation of it."""
        return lock.pod in self.former

    def users(self, lock: DeviceLock) -> frozenset[PodUid]:
        """Return the pods that may use what *lock*, one of this claim's, locks."""
        return self.former if self.had_before(lock) else self.pods


class Holdings:
    """The Allocations and locks of one book, found by their hardware, device or pod.

    Nothing here goes through all of them, so that a node with hundreds of devices is not slow. A
    Draft changes its own; those of a Book stay as they are. Allocations are returned with the
    smallest number, which is the oldest, first.
    """

    def __init__(
        self,
        allocations: Iterable[Allocation] = (),
        locks: Iterable[DeviceLock] = (),
        places: Places = NOWHERE,
    ) -> None:
        """Take *allocations* and *locks*; no key may be in two locks."""
        self.places = places
        self.allocations: dict[int, Allocation] = {}
        self.locks: dict[DeviceName, DeviceLock] = {}
        self._on: _Index[_Mark, int] = {}
        self._naming: _Index[tuple[ResourceName, DeviceId], int] = {}
        self._of_pod: _Index[PodUid, int] = {}
        self._of_claim: _Index[ClaimUid, int] = {}
        self._locked: _Index[_Mark, DeviceName] = {}
        self._excluded: dict[frozenset[HardwareKey], frozenset[_Mark]] = {}
        for allocation in allocations:
            self.put(allocation)
        for lock in locks:
            self.put_lock(lock)

    def copy(self) -> "Holdings":
        """Return the same, to be changed apart from this."""
        other = Holdings(places=self.places)
        tables = {name: each.copy() for name, each in vars(self).items() if name != "places"}
        vars(other).update(tables)
        return other

    def placed(self, places: Places) -> "Holdings":
        """Return the same, with cards at *places*."""
        if places == self.places:
            return self
        return Holdings(self.allocations.values(), self.locks.values(), places)

    def put(self, allocation: Allocation) -> None:
        """Add *allocation*, in place of the one with its number."""
        before = self.allocations.get(allocation.id)
        if before is not None:
            self._index(before, _without)
        self.allocations[allocation.id] = allocation
        self._index(allocation, _with)

    def drop(self, number: int) -> None:
        """Take out the Allocation with this number."""
        self._index(self.allocations.pop(number), _without)

    def put_lock(self, lock: DeviceLock) -> None:
        """Add *lock*, in place of the one on its device."""
        before = self.locks.get(lock.device)
        if before is not None:
            self._index_lock(before, _without)
        self.locks[lock.device] = lock
        self._index_lock(lock, _with)

    def drop_lock(self, device: DeviceName) -> None:
        """Take out the lock on *device*."""
        self._index_lock(self.locks.pop(device), _without)

    def on(self, keys: Iterable[HardwareKey]) -> list[Allocation]:
        """Return the Allocations of one of *keys*."""
        return self._numbered({each for key in keys for each in self._on.get(key, ())})

    def has_started(self, one: Allocation, keys: Iterable[HardwareKey]) -> bool:
        """Tell whether a container of whoever has *one* has started on one of *keys*."""
        return any(
            each.phase is Phase.ACTIVE and (each.id == one.id or same_holder(each, one))
            for each in self.on(keys)
        )

    def contending(self, keys: Collection[HardwareKey]) -> list[Allocation]:
        """Return the Allocations that exclude one of *keys*: on it, or on its card otherwise."""
        marks: tuple[_Mark, ...] = (*keys, *rivals(keys, self.places))
        return self._numbered({each for mark in marks for each in self._on.get(mark, ())})

    def naming(self, resource: ResourceName, ids: Iterable[DeviceId]) -> list[Allocation]:
        """Return the Allocations of *resource* that name one of *ids*."""
        named = self._naming
        return self._numbered({each for id_ in ids for each in named.get((resource, id_), ())})

    def of_pod(self, pod: PodUid) -> list[Allocation]:
        """Return the Allocations of *pod*."""
        return self._numbered(self._of_pod.get(pod, ()))

    def of_claim(self, claim: ClaimUid) -> list[Allocation]:
        """Return the Allocations of *claim*, one for each resource."""
        return self._numbered(self._of_claim.get(claim, ()))

    def connected(self, keys: Iterable[HardwareKey]) -> list[Allocation]:
        """Return the Allocations of *keys*, those that share hardware with these, and so on."""
        found: dict[int, Allocation] = {}
        new = self.contending(frozenset(keys))
        while new:
            found |= {each.id: each for each in new}
            further = self.contending({key for each in new for key in each.keys})
            new = [each for each in further if each.id not in found]
        return self._numbered(found)

    def locks_on(self, keys: Collection[HardwareKey]) -> list[DeviceLock]:
        """Return the locks that exclude any of *keys*, under any resource name.

        They are on the same hardware, or one is on a replica of a card and the other on the card,
        or one is on a card and the other on the PCI function that is the card.
        """
        marks: list[_Mark] = [*sorted(keys), *sorted(rivals(keys, self.places))]
        found = (device for mark in marks for device in sorted(self._locked.get(mark, ())))
        return [self.locks[device] for device in dict.fromkeys(found)]

    def are_locked(self, keys: frozenset[HardwareKey]) -> bool:
        """Tell whether a lock excludes any of *keys*, the keys of a device, under any resource."""
        excluded = self._excluded.get(keys)
        if excluded is None:
            excluded = self._excluded[keys] = keys | rivals(keys, self.places)
        return not self._locked.keys().isdisjoint(excluded)

    def concern(self, name: DeviceName, keys: frozenset[HardwareKey]) -> bool:
        """Tell whether an Allocation or a lock is on the device called *name*, or on its *keys*."""
        named = (name.resource, name.id) in self._naming or name in self.locks
        return named or self.are_locked(keys)

    def rank(self, allocation: Allocation) -> tuple[int, int]:
        """Return its place in the queue: all Allocations of a pod have the place of the oldest."""
        own = self._of_pod.get(allocation.pod, ()) if allocation.pod is not None else ()
        return (min(own, default=allocation.id), allocation.id)

    def _index(self, allocation: Allocation, change: "_Change") -> None:
        for mark in self._marks(allocation.keys):
            change(self._on, mark, allocation.id)
        for id_ in allocation.devices:
            change(self._naming, (allocation.resource, id_), allocation.id)
        if allocation.pod is not None:
            change(self._of_pod, allocation.pod, allocation.id)
        if allocation.claim is not None:
            change(self._of_claim, allocation.claim, allocation.id)

    def _numbered(self, numbers: Collection[int]) -> list[Allocation]:
        return [self.allocations[each] for each in sorted(numbers)]

    def _index_lock(self, lock: DeviceLock, change: "_Change") -> None:
        for mark in self._marks(lock.keys):
            change(self._locked, mark, lock.device)

    def _marks(self, keys: frozenset[HardwareKey]) -> Iterator[_Mark]:
        yield from keys
        yield from sides_of(keys, self.places)


def _with(index: _Index[_Key, _Value], key: _Key, value: _Value) -> None:
    index[key] = (*index.get(key, ()), value)


def _without(index: _Index[_Key, _Value], key: _Key, value: _Value) -> None:
    left = tuple(each for each in index[key] if each != value)
    if left:
        index[key] = left
    else:
        del index[key]


class _Change(Protocol):
    """Adds a value to an index, or takes it out."""

    def __call__(self, index: _Index[_Key, _Value], key: _Key, value: _Value, /) -> None: ...


class Book(Struct, frozen=True, kw_only=True, dict=True):
    """All that the ledger holds at one moment; `fence` and `last_allocation` never go back."""

    fence: int = 0
    last_allocation: int = 0
    allocations: Mapping[int, Allocation] = field(default_factory=dict)
    locks: Mapping[DeviceName, DeviceLock] = field(default_factory=dict)
    pods: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    claims: Mapping[ClaimUid, ClaimRecord] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    kept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What must not be forgotten across a restart, by topic: a part's texts, which it alone can
    read, and where cards are."""

    @cached_property
    def holdings(self) -> Holdings:
        """Return its Allocations and locks by what they have; only a copy may be changed."""
        return Holdings(
            self.allocations.values(), self.locks.values(), places_of(self.kept.get(CARDS, {}))
        )

    def take(self, holdings: Holdings) -> None:
        """Take *holdings*, made of the same Allocations and locks: they need not be made again."""
        self.__dict__["holdings"] = holdings

    def lock_on(self, keys: frozenset[HardwareKey]) -> DeviceLock | None:
        """Return the lock that counts for *keys*, under any resource name, or None.

        Of several that exclude some of them it is the first that is not HELD, else the first.
        """
        locks = self.holdings.locks_on(keys)
        return min(locks, key=lambda lock: lock.state is LockState.HELD, default=None)

    def locks_on(self, keys: frozenset[HardwareKey]) -> list[DeviceLock]:
        """Return every lock that excludes any of *keys*, under any resource name."""
        return self.holdings.locks_on(keys)

    def queue(self) -> list[Allocation]:
        """Return the live Allocations, the one with the first right to its keys first."""
        return sorted(self.allocations.values(), key=self.holdings.rank)

    def started(self, allocation: Allocation) -> frozenset[HardwareKey]:
        """Return the hardware that a container of its pod has started on."""
        own = [self.allocations.get(allocation.id, allocation)]
        if allocation.pod is not None:
            own = self.holdings.of_pod(allocation.pod)
        return frozenset().union(*(each.keys for each in own if each.phase is Phase.ACTIVE))

    def pod(self, uid: PodUid | None) -> str:
        """Return how to name the pod to a person."""
        if uid is None:
            return "a pod not yet known"
        record = self.pods.get(uid)
        return f"pod {record or uid}"

    def pod_name(self, uid: PodUid | None) -> str:
        """Return the shortest that tells a person which pod it is: no uid where a name is known."""
        record = None if uid is None else self.pods.get(uid)
        return (record and record.full_name) or self.pod(uid)

    def pods_of(self, lock: DeviceLock) -> frozenset[PodUid]:
        """Return the known pods that may use what *lock* locks: several may share its claim."""
        claim = None if lock.claim is None else self.claims.get(lock.claim)
        return named_pod(lock) if claim is None else named_pod(lock) | claim.users(lock)

    def holder(self, each: "Allocation | DeviceLock") -> str:
        """Return how to name to a person whose *each* is: a pod, or a claim with its pods.

        Of a lock that is not free of its claim yet, the pod is named whose end is waited for.
        """
        return self._whose(each, self.pod, _MOST_PODS)

    def owner(self, each: "Allocation | DeviceLock") -> str:
        """Return the same in the fewest words: one pod, and no uid where a name is known."""
        return self._whose(each, self.pod_name, 1)

    def _whose(
        self, each: "Allocation | DeviceLock", name: Callable[[PodUid | None], str], most: int
    ) -> str:
        claim = None if each.claim is None else self.claims.get(each.claim)
        if claim is None:  # once it has ended, a pod that nobody has named is not known later
            ended = each.pod is None and isinstance(each, DeviceLock) and each.state in ENDING
            return "its former pod" if ended else name(each.pod)
        left = isinstance(each, DeviceLock) and claim.had_before(each)
        pods = sorted(claim.pods) if claim.over_at is None and not left else [each.pod]
        named = some([name(pod) for pod in pods], most, " and ")
        return f"{named} by claim {claim.ref.namespace}/{claim.ref.name}"


def named_pod(lock: DeviceLock) -> frozenset[PodUid]:
    """Return the pod that *lock* names; none where that is not known."""
    return frozenset() if lock.pod is None else frozenset({lock.pod})


def same_pod(one: PodUid | None, other: PodUid | None) -> bool:
    """Return whether both are known and the same; an unknown pod never equals another."""
    return one is not None and one == other


def same_holder(one: Allocation | DeviceLock, other: Allocation | DeviceLock) -> bool:
    """Return whether both are one claim's, or neither is a claim's and both are one pod's.

    A pod and its claim are two holders: each has an end of its own.
    """
    if one.claim is None and other.claim is None:
        return same_pod(one.pod, other.pod)
    return one.claim == other.claim
