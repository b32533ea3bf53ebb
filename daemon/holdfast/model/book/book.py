"""The book: every live Allocation and lock at one moment, as one frozen value."""

from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct, field

from holdfast.model.book.locks import DeviceLock
from holdfast.model.book.marks import Marks
from holdfast.model.ids import (
    NO_CHECKPOINT,
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)


class Phase(Enum):
    """How far an Allocation has come; one that ended is no longer in the book."""

    PENDING = "pending"
    """Answered to kubelet; no container has passed the gate on it."""

    ACTIVE = "active"
    """Its gate has passed, which counts as a hold before the first open."""


class Allocation(Struct, frozen=True, kw_only=True):
    """The record of one Allocate: which devices, with which keys, for whom once that is known.

    Ids grow with time, so the smaller id is the older Allocation. `checkpoint` is kubelet's as it
    was when Allocate was answered, at `answered_at`: only another one that was read later can name
    this Allocation's pod. `started_at` is when a container last passed the gate on it; both are
    in seconds since `boot`. `created_at` is in seconds since the epoch, for people alone.
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

    @property
    def ids(self) -> frozenset[DeviceId]:
        """Return the ids that kubelet named."""
        return frozenset(self.devices)

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return the keys of all its devices."""
        return frozenset().union(*self.devices.values())

    def names(self) -> Iterator[tuple[DeviceName, frozenset[HardwareKey]]]:
        """Yield each device's name with its keys."""
        return ((DeviceName(self.resource, id_), keys) for id_, keys in self.devices.items())


class PodRecord(Struct, frozen=True, kw_only=True):
    """What is known of a pod that has, or lately had, a lock.

    `cgroup` and `inode` are its cgroup as it was seen to exist, in `boot`; None: never seen.
    `counted_by` is the kubelet that had the pod in a checkpoint it wrote itself; `let_go_at` is
    when that same kubelet, asked anew, no longer had it. Both are of `counted_boot`: a process id
    and a moment (seconds since that boot) mean nothing in another one.
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
        """Tell whether the cgroup that its UID has now is a later incarnation's.

        Inodes of cgroups begin anew with each boot, so the same number says nothing then.
        """
        return self.boot != boot or self.inode not in {None, inode}

    def __str__(self) -> str:
        """Return ``namespace/name (uid)``, or as much of it as is known."""
        return f"{self.namespace}/{self.name} ({self.uid})" if self.name else self.uid


class Book(Struct, frozen=True, kw_only=True):
    """All that the ledger holds at one moment; `fence` and `last_allocation` never go back."""

    fence: int = 0
    last_allocation: int = 0
    allocations: Mapping[int, Allocation] = field(default_factory=dict)
    locks: Mapping[DeviceName, DeviceLock] = field(default_factory=dict)
    pods: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    kept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What a vendor's adapter must not forget across a restart: texts that it alone can read."""

    def lock_on(self, keys: frozenset[HardwareKey]) -> DeviceLock | None:
        """Return a lock on one of *keys*, under whatever resource name, or None."""
        return next(self.locks_on(keys), None)

    def locks_on(self, keys: frozenset[HardwareKey]) -> Iterator[DeviceLock]:
        """Yield every lock on one of *keys*, under whatever resource name."""
        return (lock for lock in self.locks.values() if lock.keys & keys)

    def rank(self, allocation: Allocation) -> tuple[int, int]:
        """Return its place in the queue: a pod's Allocations stand where its oldest one does."""
        if allocation.pod is None:
            return (allocation.id, allocation.id)
        oldest = min(
            (other.id for other in self.allocations.values() if other.pod == allocation.pod),
            default=allocation.id,
        )
        return (oldest, allocation.id)

    def queue(self) -> list[Allocation]:
        """Return the live Allocations, the one with the first right to its keys first."""
        oldest: dict[PodUid, int] = {}
        for each in self.allocations.values():
            if each.pod is not None:
                oldest[each.pod] = min(each.id, oldest.get(each.pod, each.id))
        return sorted(
            self.allocations.values(),
            key=lambda each: (each.id if each.pod is None else oldest[each.pod], each.id),
        )

    def started(self, allocation: Allocation) -> frozenset[HardwareKey]:
        """Return the hardware that a container of its pod has started on."""
        return frozenset().union(
            *(
                each.keys
                for each in self.allocations.values()
                if each.phase is Phase.ACTIVE
                and (each.id == allocation.id or same_pod(each.pod, allocation.pod))
            )
        )

    def pod(self, uid: PodUid | None) -> str:
        """Return how to name the pod to a person."""
        if uid is None:
            return "a pod not yet known"
        record = self.pods.get(uid)
        return f"pod {record or uid}"


def same_pod(one: PodUid | None, other: PodUid | None) -> bool:
    """Tell whether both are known and the same; an unknown pod is never the same as any."""
    return one is not None and one == other
