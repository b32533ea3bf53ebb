"""Claims in the book: how one gets devices, who shares it, and how it ends.

A claim has one Allocation for each resource, and so the same queue and the same locks as the pods
that come by the device plugin.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Allocation, Book, ClaimRecord, Phase, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.proof import could_have_started
from holdfast.model.book.queue import settle
from holdfast.model.cards import clash
from holdfast.model.ids import (
    BootId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)

REMEMBERED = 600.0
"""Seconds for which a claim that is over is remembered: kubelet gives a call up after 45."""


class ClaimPhase(Enum):
    """How far a claim has come."""

    PREPARING = "preparing"
    """Kubelet asked for it, and it waits for its devices."""
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    """It is over, and not all of its devices are free yet."""
    OVER = "over"
    """It is over and has nothing; only remembered, so that a late call cannot revive it."""


class Wish(Struct, frozen=True, kw_only=True):
    """What a claim is to have: devices with their keys by resource, for *pods* with their names.

    `admin` are devices with adminAccess: it gets no lock on them, and waits for nobody.
    """

    ref: ClaimRef
    pods: Mapping[PodUid, str]
    devices: Mapping[ResourceName, Mapping[DeviceId, frozenset[HardwareKey]]]
    admin: Mapping[DeviceName, frozenset[HardwareKey]] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return the keys of the devices that it gets locks on."""
        every = (keys for devices in self.devices.values() for keys in devices.values())
        return frozenset().union(*every)


def locks_of(book: Book, claim: ClaimUid) -> list[DeviceLock]:
    """Return the locks that *claim* has, or has to give back."""
    return [lock for lock in book.locks.values() if lock.claim == claim]


def admins_on(book: Book, keys: frozenset[HardwareKey]) -> frozenset[PodUid]:
    """Return the pods that may use hardware of *keys* by a claim with adminAccess."""
    return frozenset[PodUid]().union(
        *(
            record.pods
            for record in book.claims.values()
            if any(clash(each, keys) for each in record.admin.values())
        )
    )


def phase_of(book: Book, record: ClaimRecord) -> ClaimPhase:
    """Return how far a claim of *book* has come."""
    claim = record.ref.uid
    if record.over_at is not None:
        return ClaimPhase.UNPREPARING if locks_of(book, claim) else ClaimPhase.OVER
    mine = book.holdings.of_claim(claim)
    ready = bool(mine or record.admin) and all(each.phase is Phase.ACTIVE for each in mine)
    return ClaimPhase.PREPARED if ready else ClaimPhase.PREPARING


def enlist(draft: Draft, wish: Wish) -> str | None:
    """Put the claim into the book and the queue; return why it has to wait before even that.

    A claim that is in the book already is joined by the pods of *wish*. Raises ClaimRefusedError
    for what no wait changes.
    """
    ref, book = wish.ref, draft.book
    _refuse_late(draft, wish)
    former = [each for each in locks_of(book, ref.uid) if each.state is not LockState.HELD]
    if former:
        first = former[0]
        return (
            f"{first.device} is not free of {book.holder(first)} yet ({first.state.value}): "
            f"{first.evidence}"
        )
    mine = draft.holdings.of_claim(ref.uid)
    wanted = {(resource, id_) for resource, ids in wish.devices.items() for id_ in ids}
    if stray := {(each.resource, id_) for each in mine for id_ in each.ids} - wanted:
        names = ", ".join(sorted(f"{resource}/{id_}" for resource, id_ in stray))
        message = f"it was given {names}, and is now allocated others; delete the pods that use it"
        raise ClaimRefusedError(message)
    record = book.claims.get(ref.uid)
    known = record.pods if record is not None and record.over_at is None else frozenset()
    pods = known | wish.pods.keys()
    draft.note_claim(ClaimRecord(ref=ref, pods=pods, boot=draft.boot, admin=wish.admin))
    for uid, name in wish.pods.items():
        _note_pod(draft, uid, ref.namespace, name)
    for resource, devices in wish.devices.items():
        keys = frozenset[HardwareKey]().union(*devices.values())
        # A group can get another function later: then the claim gets one more Allocation.
        if not any(each.resource == resource and each.keys >= keys for each in mine):
            draft.allocate(resource, devices, pod=min(pods), claim=ref.uid)
    settle(draft, near=wish.keys)
    return None


def adopt(draft: Draft, wish: Wish) -> None:
    """Put a claim into the book that kubelet has prepared, and the book has not: its pods run.

    Raises ClaimRefusedError as `enlist` does.
    """
    if enlist(draft, wish) is not None:
        return
    for allocation in draft.holdings.of_claim(wish.ref.uid):
        # But not on what another had at that time.
        if could_have_started(allocation, draft.holdings):
            draft.activate(allocation)


def _refuse_late(draft: Draft, wish: Wish) -> None:
    """Refuse a claim that kubelet has unprepared for every pod that *wish* is for.

    Kubelet prepares nothing for a pod whose claims it has unprepared, so the call is an old one
    that comes late. Another pod may use the claim anew.
    """
    record = draft.book.claims.get(wish.ref.uid)
    if record is None or record.over_at is None or _is_old(record, draft.uptime, draft.boot):
        return
    if wish.pods.keys() <= record.pods:
        message = "kubelet has unprepared it, and no other pod is to use it since"
        raise ClaimRefusedError(message)


def share(draft: Draft, claim: ClaimUid, pods: Iterable[PodUid]) -> None:
    """Write down that *pods* use a claim of the book, too: its devices are not free before theirs.

    A claim that is over is left as it is: kubelet unprepares it for all its pods.
    """
    record = draft.book.claims.get(claim)
    if record is None or record.over_at is not None:
        return
    for pod in sorted(frozenset(pods) - record.pods):
        _note_pod(draft, pod, record.ref.namespace, "")
        record = replace(record, pods=record.pods | {pod})
    draft.note_claim(record)


def end_claim(
    draft: Draft, claim: ClaimUid, evidence: str, *, kubelet: ProcessId | None = None
) -> None:
    """Take what *claim* has out of the book; its locks wait until each of its pods is over.

    *kubelet* is the one that says so, as evidence against what is left of the pods; None: nobody
    says so. Locks of a claim that never was prepared are free at once: no container had them.
    """
    record = draft.book.claims.get(claim)
    if record is None:
        return
    for allocation in draft.holdings.of_claim(claim):
        _end(draft, allocation, record, evidence)
    if record.over_at is None:
        record = replace(record, boot=draft.boot, over_at=draft.uptime, admin={})
        draft.note_claim(record)
    if kubelet is not None:
        _let_go(draft, record, kubelet)
    settle(draft)


def _end(draft: Draft, allocation: Allocation, record: ClaimRecord, evidence: str) -> None:
    locks = [
        each
        for each in draft.holdings.locks_on(allocation.keys)
        if each.allocation == allocation.id
    ]
    draft.end(allocation, evidence)
    for before in locks:
        lock = draft.locks[before.device]
        if lock.state is not LockState.RELEASING:
            continue
        if not before.started:
            draft.move(lock.device, LockState.FREE, "it was never prepared")
        elif lock.pod != min(record.pods):
            draft.pass_on(lock, min(record.pods), evidence)


def release(draft: Draft, lock: DeviceLock, evidence: str) -> None:
    """Free *lock*, whose pod is over; or let it wait for the next pod that had its claim."""
    other = _next_pod(draft.book, lock)
    if other is not None:
        draft.pass_on(lock, other, f"{draft.book.pod(lock.pod)} is over; {evidence}")
        return
    if lock.state is LockState.QUARANTINED:
        draft.move(lock.device, LockState.RECLAIMING, evidence)
    draft.move(lock.device, LockState.FREE, evidence)
    settle(draft, near=lock.keys)


def _next_pod(book: Book, lock: DeviceLock) -> PodUid | None:
    """Return which pod's end comes after that of `lock.pod`: they are gone through in order."""
    record = None if lock.claim is None else book.claims.get(lock.claim)
    if record is None or lock.pod is None:
        return None
    return min((pod for pod in record.pods if pod > lock.pod), default=None)


def pods_of_claims(book: Book, *, over: bool) -> frozenset[PodUid]:
    """Return the pods of claims that are not over; with *over*, of those with locks left, too."""
    left = {lock.claim for lock in book.locks.values()} if over else frozenset()
    return frozenset[PodUid]().union(
        *(
            each.pods
            for each in book.claims.values()
            if each.over_at is None or each.ref.uid in left
        )
    )


def has_claim(book: Book, pod: PodUid) -> bool:
    """Tell whether *pod* uses a claim that is not over: then it is not over itself."""
    return any(each.over_at is None and pod in each.pods for each in book.claims.values())


def drop_old_claims(draft: Draft) -> None:
    """Forget the claims that were over long ago, and of which no lock is left."""
    left = {lock.claim for lock in draft.locks.values()}
    for record in draft.book.claims.values():
        if record.ref.uid not in left and _is_old(record, draft.uptime, draft.boot):
            draft.forget_claim(record.ref.uid)


def _is_old(record: ClaimRecord, uptime: float, boot: BootId) -> bool:
    if record.over_at is None:
        return False
    return record.boot != boot or uptime - record.over_at >= REMEMBERED


def _note_pod(draft: Draft, uid: PodUid, namespace: str, name: str) -> None:
    known = draft.book.pods.get(uid, PodRecord(uid=uid, boot=draft.boot))
    if name:
        known = replace(known, namespace=namespace, name=name)
    draft.note_pod(known)


def _let_go(draft: Draft, record: ClaimRecord, kubelet: ProcessId) -> None:
    """Note for the pods that have nothing else that *kubelet* has let go of them."""
    book = draft.book
    counted = pods_of_claims(book, over=False)
    for uid in record.pods - counted:
        pod = book.pods.get(uid)
        if pod is None or book.holdings.of_pod(uid):
            continue
        same = pod.counted_by == kubelet and pod.counted_boot == draft.boot
        if not (same and pod.let_go_at is not None):
            draft.note_pod(
                replace(pod, counted_by=kubelet, let_go_at=draft.uptime, counted_boot=draft.boot)
            )
