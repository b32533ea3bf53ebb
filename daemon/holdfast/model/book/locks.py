"""Lock states, and the only moves between them; docs/lock-states.md explains them."""

from enum import Enum

from msgspec import Struct

from holdfast.model.ids import BootId, ClaimUid, DeviceName, HardwareKey, PodUid


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


class DeviceLock(Struct, frozen=True, kw_only=True):
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


class Move(Struct, frozen=True, kw_only=True):
    """One line of a device's history: what moved, and what had been seen.

    `claim` is ``namespace/name (uid)`` of the claim that had or gets the device: the history
    outlives what the book knows of it.
    """

    at: float
    device: DeviceName
    fence: int
    before: LockState
    after: LockState
    pod: PodUid | None
    evidence: str
    claim: str | None = None
