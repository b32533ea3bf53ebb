"""A draft of the next book: the few elementary moves from which every rule builds its change."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from holdfast.errors import LedgerError
from holdfast.model.book.book import (
    CARDS,
    NEXT,
    Allocation,
    Book,
    ClaimRecord,
    DeviceLock,
    LockState,
    Move,
    Phase,
    PodRecord,
    same_holder,
)
from holdfast.model.book.marks import Marks
from holdfast.model.devices import places_of
from holdfast.model.ids import (
    NO_CHECKPOINT,
    BootId,
    CheckpointId,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ResourceName,
)


class Draft:
    """Starts from a book, collects moves, and ends as the next book.

    It lives inside one pure decision and is never shared; what it yields (`book`, `moves`) is
    frozen. Every method keeps this true: no key is in two locks.
    """

    def __init__(
        self,
        book: Book,
        *,
        now: float,
        uptime: float,
        boot: BootId,
        owed: "Mapping[Callable[[Draft], None], object]" = MappingProxyType({}),
    ) -> None:
        """Start from *book* at *uptime*, in seconds since *boot*.

        *now* is the same in seconds since the epoch. It stamps every move, and decides nothing.
        *owed* record the Allocations that could not be recorded in their time, the oldest first,
        and each has what it is about.
        """
        self.before = book
        self._latest: Book | None = book
        self.now = now
        """When it is decided, in seconds since the epoch, for people alone."""
        self.uptime = uptime
        """The same moment, in seconds since the machine booted."""
        self.boot = boot
        """The boot of the machine that it is decided in."""
        self._fence = book.fence
        self._last_allocation = book.last_allocation
        self.holdings = book.holdings.copy()
        """The Allocations and the locks with the changes so far; only read them."""
        self._pods = dict(book.pods)
        self._claims = dict(book.claims)
        self.marks = book.marks
        """The marks with the changes so far."""
        self._kept = dict(book.kept)
        self._moves: list[Move] = []
        self._owed = owed
        self.paid: tuple[Callable[[Draft], None], ...] = ()
        """Those that were owed, and are in the book."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """Return the moves so far, in order."""
        return tuple(self._moves)

    @property
    def locks(self) -> Mapping[DeviceName, DeviceLock]:
        """Return the locks with the changes so far, by device."""
        return MappingProxyType(self.holdings.locks)

    @property
    def book(self) -> Book:
        """Return the book with the changes so far; the same object if nothing changed."""
        if self._latest is None:
            holdings = self.holdings.copy()
            book = Book(
                fence=self._fence,
                last_allocation=self._last_allocation,
                allocations=holdings.allocations,
                locks=holdings.locks,
                pods=dict(self._pods),
                claims=dict(self._claims),
                marks=self.marks,
                kept=dict(self._kept),
            )
            book.take(holdings)
            self._latest = self.before if book == self.before else book
        return self._latest

    def adopt(self, other: "Draft") -> bool:
        """Take over what *other* did to the same book; False: it began from another one."""
        if other.before is not self.before:
            return False
        vars(self).update(vars(other))
        return True

    def is_as(self, lock: DeviceLock) -> bool:
        """Return whether *lock* is unchanged since it was read: each move has a new fence."""
        now = self.holdings.locks.get(lock.device)
        return now is not None and now.fence == lock.fence

    def pay(self) -> None:
        """Record what is owed."""
        owed, self._owed = self._owed, {}
        self.paid += tuple(owed)
        for record in owed:
            record(self)

    def owes(self, what: object) -> bool:
        """Tell whether *what* is owed."""
        return what in self._owed.values()

    def foreseen(self) -> Book:
        """Return the book as it will be once what is owed is recorded."""
        owed = self._owed
        if not owed:
            return self.book
        draft = Draft(self.book, now=self.now, uptime=self.uptime, boot=self.boot, owed=owed)
        draft.pay()
        return draft.book

    def allocate(
        self,
        resource: ResourceName,
        devices: Mapping[DeviceId, frozenset[HardwareKey]],
        *,
        checkpoint: CheckpointId = NO_CHECKPOINT,
        answered_at: float | None = None,
        pod: PodUid | None = None,
        claim: ClaimUid | None = None,
    ) -> Allocation:
        """Record an Allocation, after those that are owed; `settle` gives it its locks.

        *checkpoint* is kubelet's at *answered_at*, in seconds since this boot; None: now.
        """
        self.pay()  # the queue goes by their numbers
        self._last_allocation += 1
        allocation = Allocation(
            id=self._last_allocation,
            resource=resource,
            devices=dict(sorted(devices.items())),
            created_at=self.now,
            boot=self.boot,
            checkpoint=checkpoint,
            answered_at=self.uptime if answered_at is None else answered_at,
            pod=pod,
            claim=claim,
        )
        self._put(allocation)
        if pod is not None:
            self.know_pod(pod)
        return allocation

    def identify(self, allocation: Allocation, pod: PodUid) -> None:
        """Write down whose *allocation* is, on its locks too."""
        self._put(replace(self.holdings.allocations[allocation.id], pod=pod))
        self.know_pod(pod)
        for lock in self.locks_of(allocation):
            if lock.pod != pod:
                self._put_lock(replace(lock, pod=pod))

    def activate(self, allocation: Allocation) -> None:
        """Write down that a container of *allocation* passed the gate.

        Kubelet replays its answers after a reboot: from its first start on it is of this boot.
        """
        now = self.holdings.allocations[allocation.id]
        if now.boot != self.boot:
            now = replace(now, boot=self.boot, answered_at=self.uptime)
        self._put(replace(now, phase=Phase.ACTIVE, started_at=self.uptime))
        for lock in self.locks_of(allocation):
            if not lock.started:
                self._put_lock(replace(lock, started=True))

    def end(self, allocation: Allocation, evidence: str) -> None:
        """Take *allocation* out of the book; the locks it alone has start to be released."""
        self._latest = None
        self.holdings.drop(allocation.id)
        for lock in self.locks_of(allocation):
            on_it = self.holdings.on(lock.keys)
            heir = next((other for other in on_it if same_holder(other, lock)), None)
            if heir is not None:
                self._put_lock(replace(lock, allocation=heir.id))
            elif lock.state is LockState.HELD:
                self.move(lock.device, LockState.RELEASING, evidence, allocation=None)
            else:
                self._put_lock(replace(lock, allocation=None))

    def withdraw(self, allocation: Allocation, evidence: str) -> None:
        """End *allocation*; of its locks those are free at once that nothing started on.

        What started on one before a reboot has ended.
        """
        locks = self.locks_of(allocation)
        unused = [lock for lock in locks if not lock.started or lock.boot != self.boot]
        self.end(allocation, evidence)
        for lock in unused:
            if self.holdings.locks[lock.device].state is LockState.RELEASING:
                ended = "what had started on it ended with the reboot"
                why = ended if lock.started else "no container has started on it"
                self.move(lock.device, LockState.FREE, why)

    def lock(
        self,
        device: DeviceName,
        keys: frozenset[HardwareKey],
        allocation: Allocation,
        evidence: str,
    ) -> None:
        """Lock a free device for *allocation*."""
        self._refuse_taken(device, keys, of=allocation)
        self._change(_owned(self._free(device, keys), allocation), LockState.HELD, evidence)

    def call_foreign(self, device: DeviceName, keys: frozenset[HardwareKey], evidence: str) -> None:
        """Record that something we did not grant has a free device."""
        self._refuse_taken(device, keys)
        self._change(self._free(device, keys), LockState.FOREIGN, evidence)

    def move(
        self,
        device: DeviceName,
        state: LockState,
        evidence: str,
        *,
        allocation: int | None = None,
    ) -> None:
        """Move a lock to *state*; FREE takes it out of the book.

        `allocation` has it from now on; its pod does not change.
        """
        lock = self.holdings.locks[device]
        moved = replace(
            lock,
            allocation=allocation,
            # Its holder may have been running for a long time.
            started=lock.started or state is LockState.HELD,
        )
        self._change(moved, state, evidence)

    def hand(self, lock: DeviceLock, allocation: Allocation, evidence: str) -> None:
        """Give a lock to *allocation*, from any former one."""
        handed = replace(lock, boot=self.boot)
        self._change(_owned(handed, allocation), LockState.HELD, evidence)

    def grow(self, lock: DeviceLock, keys: frozenset[HardwareKey]) -> None:
        """Add free *keys* to a lock, which stays whose it is."""
        self._refuse_taken(lock.device, keys, of=lock)
        self._restate(replace(lock, keys=lock.keys | keys), "more of its hardware")

    def note(self, lock: DeviceLock, evidence: str) -> None:
        """Write a start on a HELD lock into the history; the lock stays whose it is."""
        self._restate(replace(lock, boot=self.boot), evidence)

    def pass_on(self, lock: DeviceLock, pod: PodUid, evidence: str) -> None:
        """Wait from now on for the end of *pod*, another one that shared the lock's claim."""
        self._restate(replace(lock, pod=pod), evidence)

    def mark(self, marks: Marks) -> None:
        """Withhold by hand what *marks* say, and nothing else."""
        self._latest = None
        self.marks = marks

    def keep(self, topic: str, texts: Mapping[str, str]) -> None:
        """Keep *texts* of *topic*, and drop all else that was kept of it."""
        self._latest = None
        others = {name: each for name, each in self._kept.items() if name != topic}
        self._kept = others | {topic: dict(texts)} if texts else others
        self.holdings = self.holdings.placed(places_of(self._kept.get(CARDS, {})))

    def tell(self, device: DeviceName, keys: frozenset[HardwareKey], evidence: str) -> None:
        """Record in the history of *device* what a person asked for; its lock does not change."""
        lock = self.book.lock_on(keys) or self._free(device, keys)
        told = replace(lock, device=device, fence=self._next_fence(), evidence=evidence)
        self._note_move(told, lock.state)

    def know_pod(self, uid: PodUid, namespace: str = "", name: str = "") -> None:
        """Have a record of a pod, with its name where that is told."""
        known = self._pods.get(uid, PodRecord(uid=uid, boot=self.boot))
        self.note_pod(replace(known, namespace=namespace, name=name) if name else known)

    def note_pod(self, record: PodRecord) -> None:
        """Write down what is known of a pod."""
        if self._pods.get(record.uid) != record:
            self._latest = None
            self._pods[record.uid] = record

    def forget_pod(self, uid: PodUid) -> None:
        """Drop a pod that has nothing any more."""
        if self._pods.pop(uid, None) is not None:
            self._latest = None

    def note_claim(self, record: ClaimRecord) -> None:
        """Write down what is known of a claim."""
        if self._claims.get(record.ref.uid) != record:
            self._latest = None
            self._claims[record.ref.uid] = record

    def forget_claim(self, uid: ClaimUid) -> None:
        """Drop a claim that has nothing any more."""
        if self._claims.pop(uid, None) is not None:
            self._latest = None

    def _free(self, device: DeviceName, keys: frozenset[HardwareKey]) -> DeviceLock:
        """Return the lock of a device that has none."""
        free = LockState.FREE
        return DeviceLock(
            device=device, keys=keys, state=free, fence=0, since=self.now, boot=self.boot
        )

    def _restate(self, lock: DeviceLock, evidence: str) -> None:
        """Write *lock* down, which stays in its state."""
        self._enter(lock, lock.state, evidence)

    def _change(self, lock: DeviceLock, state: LockState, evidence: str) -> None:
        """Move *lock* to *state*, or refuse a move that there is not."""
        if state not in NEXT[lock.state]:
            raise LedgerError(f"cannot move {lock.device} from {lock.state.value} to {state.value}")
        self._enter(replace(lock, state=state, since=self.now), lock.state, evidence)

    def _refuse_taken(
        self,
        device: DeviceName,
        keys: frozenset[HardwareKey],
        *,
        of: Allocation | DeviceLock | None = None,
    ) -> None:
        """Refuse to lock what another lock excludes; *of* is whose the new keys are.

        Its own pod may have a card and a replica of it, where it was shared in between.
        """
        same = self.holdings.locks.get(device)
        for lock in (*self.holdings.locks_on(keys), *([] if same is None else [same])):
            own = of is not None and same_holder(lock, of)
            if lock is not of and (lock is same or not own or lock.keys & keys):
                raise LedgerError(f"cannot lock {device}: {lock.device} has the same hardware")

    def locks_of(self, allocation: Allocation) -> list[DeviceLock]:
        """Return the locks that *allocation* has, with the changes so far."""
        found = self.holdings.locks_on(allocation.keys)
        return [lock for lock in found if lock.allocation == allocation.id]

    def _put(self, allocation: Allocation) -> None:
        self._latest = None
        self.holdings.put(allocation)

    def _put_lock(self, lock: DeviceLock) -> None:
        self._latest = None
        self.holdings.put_lock(lock)

    def _enter(self, lock: DeviceLock, before: LockState, evidence: str) -> None:
        lock = replace(lock, fence=self._next_fence(), evidence=evidence)
        if lock.state is LockState.FREE:
            self.holdings.drop_lock(lock.device)
        else:
            self._put_lock(lock)
        self._note_move(lock, before)

    def _note_move(self, lock: DeviceLock, before: LockState) -> None:
        """Add a line to the history of *lock*'s device, whose state was *before*."""
        pod = None if lock.pod is None else self._pods.get(lock.pod)
        claim = None if lock.claim is None else self._claims.get(lock.claim)
        self._moves.append(
            Move(
                at=self.now,
                device=lock.device,
                fence=lock.fence,
                before=before,
                after=lock.state,
                pod=lock.pod,
                pod_name=None if pod is None else pod.full_name,
                claim=None if claim is None else str(claim.ref),
                evidence=lock.evidence,
            )
        )

    def _next_fence(self) -> int:
        self._latest = None
        self._fence += 1
        return self._fence


def _owned(lock: DeviceLock, allocation: Allocation) -> DeviceLock:
    """Return *lock* as one that *allocation* has."""
    return replace(
        lock,
        allocation=allocation.id,
        pod=allocation.pod,
        claim=allocation.claim,
        started=allocation.phase is Phase.ACTIVE,
    )
