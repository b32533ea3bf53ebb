"""Claims in the book: how one gets devices, who shares it, and how it ends.

A claim has one Allocation for each resource, and so the same queue and the same locks as the pods
that come by the device plugin.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import (
    Allocation,
    Book,
    ClaimRecord,
    DeviceLock,
    LockState,
    Phase,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.proof import could_have_started
from holdfast.model.book.queue import settle
from holdfast.model.book.standing import belongs_to
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

    `admin` are devices with adminAccess: it gets no lock on them, and waits for nobody. `recorded`
    are the pods that kubelet's own record has for the claim.
    """

    ref: ClaimRef
    pods: Mapping[PodUid, str]
    devices: Mapping[ResourceName, Mapping[DeviceId, frozenset[HardwareKey]]]
    admin: Mapping[DeviceName, frozenset[HardwareKey]] = field(default_factory=dict)
    recorded: frozenset[PodUid] = frozenset()

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return the keys of the devices that it gets locks on."""
        every = (keys for devices in self.devices.values() for keys in devices.values())
        return frozenset().union(*every)


def locks_of(book: Book, claim: ClaimUid) -> list[DeviceLock]:
    """Return the locks that *claim* has, or has to give back, but of no earlier allocation."""
    record = book.claims.get(claim)
    return [
        lock
        for lock in book.locks.values()
        if lock.claim == claim and (record is None or not record.had_before(lock))
    ]


def first_left(book: Book, claim: ClaimUid) -> DeviceLock | None:
    """Return the first lock that *claim* has to give back; None: it has none to give."""
    left = (each for each in locks_of(book, claim) if each.state is not LockState.HELD)
    return next(left, None)


def why_not_free(book: Book, claim: ClaimUid) -> str | None:
    """Return who has the first device that *claim* has to give back; None: it has none to give."""
    lock = first_left(book, claim)
    return None if lock is None else belongs_to(lock, book)


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


def enlist(draft: Draft, wish: Wish, *, partly: bool = False) -> DeviceLock | None:
    """Put the claim into the book and the queue; return what it has to wait for before even that.

    That is a lock that it has to give back first. *partly*: it may have more than *wish* says.

    A claim that is in the book already is joined by the pods of *wish*. Raises ClaimRefusedError
    for what no wait changes.
    """
    ref, book = wish.ref, draft.book
    _refuse_late(draft, wish)
    # What it had before, and is not to have now, keeps nobody but others waiting.
    mine = (each for each in book.locks.values() if each.claim == ref.uid)
    left = [each for each in mine if each.state is not LockState.HELD]
    for each in left:
        if clash(each.keys, wish.keys):
            return each
    wanted = {DeviceName(resource, id_) for resource, ids in wish.devices.items() for id_ in ids}
    _give_up_locks(draft, wish, wanted, partly=partly)
    had = draft.holdings.of_claim(ref.uid)
    stray = {name for each in had for name, _ in each.names()} - wanted
    if stray and not partly:
        names = ", ".join(sorted(map(str, stray)))
        raise ClaimRefusedError(
            f"it was given {names}, and is now allocated others; delete the pods that use it "
            "(where kubelet has no record of them, it is over within a minute of their end)"
        )
    record = book.claims.get(ref.uid)
    former = known = let_go = frozenset[PodUid]()
    if record is not None and record.over_at is None:
        known, let_go = record.pods, record.let_go - wish.pods.keys()
    pods = known | wish.pods.keys()
    if record is not None and left:
        former = (record.former | record.pods) - pods
    draft.note_claim(
        ClaimRecord(
            ref=ref, pods=pods, boot=draft.boot, let_go=let_go, former=former, admin=wish.admin
        )
    )
    for uid, name in wish.pods.items():
        draft.know_pod(uid, ref.namespace, name)
    for resource, devices in wish.devices.items():
        keys = frozenset[HardwareKey]().union(*devices.values())
        # A group can get another function later: then the claim gets one more Allocation.
        if not any(each.resource == resource and each.keys >= keys for each in had):
            draft.allocate(resource, devices, pod=min(pods), claim=ref.uid)
    settle(draft, near=wish.keys)
    return None


def _give_up_locks(
    draft: Draft, wish: Wish, wanted: Collection[DeviceName], *, partly: bool
) -> None:
    """Free what the claim waited for and is not *wanted* now, and what it has adminAccess to.

    Another pod joined it while it waited, so that kubelet did not unprepare it. Or it was taken
    over from kubelet's record, which does not say that it has adminAccess, beside who has a device.
    """
    for each in draft.holdings.of_claim(wish.ref.uid):
        stays = partly or each.phase is Phase.ACTIVE
        names = ((name, keys) for name, keys in each.names() if name not in wish.admin)
        rest = {name.id: keys for name, keys in names if stays or name in wanted}
        if len(rest) == len(each.devices):
            continue
        if rest:
            kept = draft.allocate(each.resource, rest, pod=each.pod, claim=each.claim)
            if each.phase is Phase.ACTIVE:
                draft.activate(kept)
        draft.end(each, "it is not to have that any more")
        for lock in draft.holdings.locks_on(each.keys):
            free = lock.device in wish.admin or not lock.started
            if lock.claim == each.claim and lock.state is LockState.RELEASING and free:
                draft.move(lock.device, LockState.FREE, "it needs no lock on it")
        settle(draft, near=each.keys)


def adopt(
    draft: Draft,
    wish: Wish,
    kubelet: ProcessId | None = None,
    running: Collection[PodUid] = (),
) -> bool:
    """Put a claim into the book that *kubelet* has prepared, and the book has not: its pods run.

    In those that are *running* a process may live; they count where the claim is over here.
    Return whether that changes the book: a claim that waits for what another had, or for what it
    had before, is tried again. Raises ClaimRefusedError as `enlist` does.
    """
    uid, pods = wish.ref.uid, wish.pods.keys()
    if joined_after_end(draft.book, uid, pods, kubelet, draft.boot, running=running):
        _revive(draft, wish)
    if enlist(draft, wish, partly=True) is not None:  # what is not seen now is still its own
        return False
    for allocation in draft.holdings.of_claim(wish.ref.uid):
        # But not on what another had at that time.
        waits = allocation.phase is Phase.PENDING
        if waits and could_have_started(allocation, draft.holdings):
            draft.activate(allocation)
    settle(draft, near=wish.keys)  # who has not started on it has to give it back
    return draft.book is not draft.before


def joined_after_end(
    book: Book,
    claim: ClaimUid,
    recorded: Collection[PodUid],
    kubelet: ProcessId | None,
    boot: BootId,
    *,
    running: Collection[PodUid],
) -> frozenset[PodUid]:
    """Return which pods, *recorded* by kubelet with devices, use *claim* although it is over here.

    A pod can join while kubelet still waits for the claim's end. Kubelet then makes no call for
    it, and none for the end of the former pod. A *kubelet* that was started since prepares again
    whatever its record has, before a sandbox is made: of the pods that are *running* it was the
    former kubelet that had the claim prepared.
    """
    record = book.claims.get(claim)
    if record is None or record.over_at is None or record.boot != boot:
        return frozenset()
    ended = (book.pods[pod].counted_by for pod in record.let_go if pod in book.pods)
    said = {each for each in ended if each is not None}
    joined = frozenset(recorded) - record.let_go
    if said and kubelet is not None and kubelet not in said:
        return joined & frozenset(running)
    return joined


def _revive(draft: Draft, wish: Wish) -> None:
    """Let a claim that is over go on for the pods of *wish*, with what it has not given back yet.

    What a former pod of it left on the device is its own as long as it lives.
    """
    uid = wish.ref.uid
    record = draft.book.claims[uid]
    pods = record.pods | wish.pods.keys()
    draft.note_claim(replace(record, pods=pods, over_at=None, let_go=frozenset()))
    for resource, devices in wish.devices.items():
        allocation = draft.allocate(resource, devices, pod=min(wish.pods), claim=uid)
        for lock in draft.holdings.locks_on(allocation.keys):
            if lock.claim == uid and lock.state is not LockState.HELD:
                text = "another pod joined its claim before kubelet had unprepared it"
                draft.move(lock.device, LockState.HELD, text, allocation=allocation.id)


def _refuse_late(draft: Draft, wish: Wish) -> None:
    """Refuse a claim that kubelet has unprepared for every pod that *wish* is for.

    Kubelet prepares nothing for a pod whose claims it has unprepared, so the call is an old one
    that comes late. Another pod may use the claim again: kubelet writes it down before it calls.
    """
    record = draft.book.claims.get(wish.ref.uid)
    if record is None or record.over_at is None or _is_old(record, draft.uptime, draft.boot):
        return
    if wish.pods.keys() <= record.pods and not wish.recorded - record.let_go:
        raise ClaimRefusedError("kubelet has unprepared it, and no other pod is to use it since")


def share(
    draft: Draft, claim: ClaimUid, pods: Iterable[PodUid], left: Collection[PodUid] = ()
) -> None:
    """Write down that *pods* use a claim of the book, too: its devices are not free before theirs.

    Kubelet is done with those that have *left*, so that by this claim they are not counted. A claim
    that is over is left as it is: see `joined_after_end`.
    """
    record = draft.book.claims.get(claim)
    if record is None or record.over_at is not None:
        return
    users = frozenset(pods)
    for pod in sorted(users - record.pods):
        draft.know_pod(pod)
    let_go = (record.let_go | (record.pods & frozenset(left))) - users
    record = replace(record, pods=record.pods | users, let_go=let_go, forgotten=False)
    draft.note_claim(record)
    for each in draft.holdings.of_claim(claim):
        if each.pod in let_go and (using := _using(record)):
            draft.identify(each, min(using))


def forget(draft: Draft, claim: ClaimUid) -> None:
    """Write down that kubelet has no record of *claim*, which is prepared."""
    record = draft.book.claims.get(claim)
    if record is not None and phase_of(draft.book, record) is ClaimPhase.PREPARED:
        draft.note_claim(replace(record, forgotten=True))


def part(draft: Draft, claim: ClaimUid, pods: Collection[PodUid]) -> None:
    """Forget that *pods* used a claim of the book which others use: nothing is left of them.

    The pods that its locks and Allocations name stay.
    """
    record = draft.book.claims.get(claim)
    if record is None or record.over_at is not None:
        return
    named = {each.pod for each in locks_of(draft.book, claim)}
    named |= {each.pod for each in draft.holdings.of_claim(claim)}
    stay = record.pods - (frozenset(pods) - named)
    draft.note_claim(replace(record, pods=stay, let_go=record.let_go & stay))


def end_claim(
    draft: Draft,
    claim: ClaimUid,
    evidence: str,
    *,
    kubelet: ProcessId | None = None,
    recorded: Collection[PodUid] = (),
) -> None:
    """Take what *claim* has out of the book; its locks wait until each of its pods is over.

    *kubelet* is the one that says so, as evidence against what is left of the pods; None: nobody
    says so. *recorded* are the pods that its record had for the claim, none where that is not
    known. Locks of a claim that never was prepared are free at once: no container had them.
    """
    record = draft.book.claims.get(claim)
    if record is None:
        return
    for allocation in draft.holdings.of_claim(claim):
        _end(draft, allocation, record, evidence)
    if record.over_at is None:
        record = replace(
            record,
            boot=draft.boot,
            over_at=draft.uptime,
            let_go=frozenset(recorded) or record.pods,
            admin={},
        )
        draft.note_claim(record)
    if kubelet is not None:
        _let_go(draft, record, kubelet)
    settle(draft)


def _end(draft: Draft, allocation: Allocation, record: ClaimRecord, evidence: str) -> None:
    locks = draft.locks_of(allocation)
    draft.end(allocation, evidence)
    for before in locks:
        lock = draft.locks[before.device]
        if lock.state is not LockState.RELEASING:
            continue
        if not before.started:
            draft.move(lock.device, LockState.FREE, "it was never prepared")
        elif lock.pod != min(record.pods):
            draft.pass_on(lock, min(record.pods), evidence)


def release(
    draft: Draft, lock: DeviceLock, evidence: str, *, over: Collection[PodUid] = ()
) -> None:
    """Free *lock*, whose pod is over; or let it wait for the next pod that had its claim.

    Those of the claim's pods that are *over* as well are not waited for: there can be thousands.
    """
    other = min((pod for pod in following(draft.book, lock) if pod not in over), default=None)
    if over:
        evidence = f"with {len(over)} other pods of its claim; {evidence}"
    if other is not None:
        draft.pass_on(lock, other, f"{draft.book.pod(lock.pod)} is over; {evidence}")
        return
    if lock.state is LockState.QUARANTINED:
        draft.move(lock.device, LockState.RECLAIMING, evidence)
    draft.move(lock.device, LockState.FREE, evidence)
    settle(draft, near=lock.keys)


def following(book: Book, lock: DeviceLock) -> list[PodUid]:
    """Return the pods whose end comes after that of `lock.pod`: they are gone through in order."""
    record = None if lock.claim is None else book.claims.get(lock.claim)
    if record is None or lock.pod is None:
        return []
    return [pod for pod in record.users(lock) if pod > lock.pod]


def pods_of_claims(book: Book, *, over: bool) -> frozenset[PodUid]:
    """Return the pods that use claims which are not over.

    With *over*, also those that have left one, and those of claims with locks left.
    """
    if not over:
        return frozenset[PodUid]().union(*map(_using, book.claims.values()))
    left = {lock.claim for lock in book.locks.values()}
    return frozenset[PodUid]().union(
        *(
            each.pods | each.former if each.ref.uid in left else each.pods
            for each in book.claims.values()
            if each.over_at is None or each.ref.uid in left
        )
    )


def _using(record: ClaimRecord) -> frozenset[PodUid]:
    return record.pods - record.let_go if record.over_at is None else frozenset()


def claims_left(book: Book) -> bool:
    """Tell whether a claim is not over, or has something to give back."""
    return any(each.over_at is None for each in book.claims.values()) or any(
        lock.claim is not None for lock in book.locks.values()
    )


def has_claim(book: Book, pod: PodUid) -> bool:
    """Tell whether *pod* uses a claim that is not over: then it is not over itself."""
    return any(pod in _using(each) for each in book.claims.values())


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
