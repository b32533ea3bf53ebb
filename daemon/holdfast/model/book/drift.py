"""Where what is known of a device or claim disagrees: the ledger, kubelet and the kernel."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.model.book.book import Book, ClaimRecord, LockState
from holdfast.model.book.claims import ClaimPhase, phase_of
from holdfast.model.book.offers import Offers
from holdfast.model.book.pods import LONGEST_START
from holdfast.model.cards import replicas_in
from holdfast.model.devices import Inventory
from holdfast.model.ids import (
    BootId,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ResourceName,
)
from holdfast.model.kubelet import CheckpointEntry, ClaimEntry, KubeletView, ListedPod
from holdfast.model.use.holders import Holder, named


class Drift(Enum):
    """What two truths disagree about."""

    STALE_ACCOUNTING = "stale-accounting"
    """Kubelet keeps devices back that no pod of its own has (kubernetes#130145)."""
    LOST_BOOKS = "lost-books"
    """Kubelet runs a pod and has forgotten its devices: it will refuse to restart it."""
    NEVER_GRANTED = "never-granted"
    """A pod has, by kubelet, a device that holdfast does not know."""
    COUNTED_TWICE = "counted-twice"
    """Two pods have, by kubelet, the same device."""
    LOCK_WITHOUT_POD = "lock-without-pod"
    """The ledger has a device for a pod that kubelet does not have."""
    NOT_OUR_LIST = "not-our-list"
    """Kubelet has other devices of our resource than we sent: another plugin serves its name."""
    CLAIM_NOT_RECORDED = "claim-not-recorded"
    """The ledger has a claim prepared that kubelet has not recorded: nobody will unprepare it."""
    CLAIM_UNKNOWN = "claim-unknown"
    """Kubelet has a claim prepared that the ledger does not have."""
    CLAIM_OTHER_DEVICES = "claim-other-devices"
    """The ledger and kubelet have different devices prepared for a claim."""
    HELD_BY_ANOTHER = "held-by-another"
    """By the kernel, somebody else uses a device than who it was granted to."""


_OF_CLAIMS = frozenset(
    {Drift.CLAIM_NOT_RECORDED.value, Drift.CLAIM_UNKNOWN.value, Drift.CLAIM_OTHER_DEVICES.value}
)
"""The kinds of which kubelet's record of claims is a side, and not its checkpoint."""


class Disagreement(Struct, frozen=True, kw_only=True, order=True):
    """Two truths that differ about *subject*, and what a person can do about it."""

    kind: str
    subject: str
    one: str
    other: str
    advice: str


class DriftFacts(Struct, frozen=True, kw_only=True):
    """What the ledger, kubelet and the kernel say at one moment.

    `holders` are the processes known to use each device. `kept_back` are the devices that kubelet
    left out of its last GetPreferredAllocation although it could grant them. `list_answered`:
    kubelet has answered a question since it got the present device list. `locked_at` is since when
    each lock is in its state, in seconds since the boot; `lock_patience` is how many seconds a lock
    may be without a pod that kubelet knows.
    """

    book: Book
    view: KubeletView
    inventory: Inventory
    offers: Offers
    holders: Mapping[DeviceName, tuple[Holder, ...]] = field(default_factory=dict)
    kept_back: Mapping[ResourceName, frozenset[DeviceId]] = field(default_factory=dict)
    list_answered: bool = True
    locked_at: Mapping[DeviceName, float] = field(default_factory=dict)
    lock_patience: float


def disagreements(facts: DriftFacts) -> tuple[Disagreement, ...]:
    """Return every disagreement, in a stable order.

    Kubelet is compared only by a complete answer of its own: a pod that it lacks in between may
    be one that it is about to write down.
    """
    found = [*_held_by_another(facts)]
    if comparable(facts.view):
        for rule in (
            _stale_accounting,
            _kept_back,
            _lost_books,
            _never_granted,
            _counted_twice,
            _lock_without_pod,
            _not_our_list,
        ):
            found += rule(facts)
    return tuple(sorted(set(found)))


def comparable(view: KubeletView) -> bool:
    """Return whether *view* is a complete answer of kubelet, and nothing was written since."""
    return view.readable and view.answered


def _stale_accounting(facts: DriftFacts) -> Iterator[Disagreement]:
    """Yield pods whose devices kubelet counts, while its own list of pods lacks them."""
    listed = {(pod.namespace, pod.name) for pod in facts.view.pods}
    for entry in _entries(facts):
        record = facts.book.pods.get(entry.pod)
        # The name was learned from that list: without it nothing could be compared.
        if not facts.view.pods or record is None or not record.name:
            continue
        if (record.namespace, record.name) not in listed:
            yield Disagreement(
                kind=Drift.STALE_ACCOUNTING.value,
                subject=_devices(entry.resource, entry.devices),
                one=f"kubelet's checkpoint gives them to pod {record}",
                other="kubelet's PodResources does not list that pod",
                advice="pods wait in vain for these devices: restart kubelet if it stays so",
            )


def _kept_back(facts: DriftFacts) -> Iterator[Disagreement]:
    """Yield devices that kubelet could grant by the book and by its checkpoint, and does not."""
    for resource, ids in facts.kept_back.items():
        names = {name: DeviceName(resource, name) for name in ids}
        left = {
            id_
            for id_, name in names.items()
            if not facts.view.pods_with(name) and name not in facts.book.locks
        }
        if left:
            yield Disagreement(
                kind=Drift.STALE_ACCOUNTING.value,
                subject=_devices(resource, left),
                one="offered as healthy, and no pod in kubelet's checkpoint has them",
                other="kubelet left them out of its last GetPreferredAllocation call",
                advice="kubelet has leaked them (kubernetes#130145): restart kubelet",
            )


_OF_THE_LIVING = frozenset({LockState.HELD, LockState.RELEASING})
"""Once a device is reclaimed, its pod was proven to be over: one of that name is its successor."""


def _lost_books(facts: DriftFacts) -> Iterator[Disagreement]:
    listed = {(pod.namespace, pod.name): pod for pod in facts.view.pods}
    for record in facts.book.pods.values():
        pod = listed.get((record.namespace, record.name)) if record.name else None
        if pod is None or facts.view.counts(record.uid) or _has_any(pod, facts.inventory):
            continue
        had = sorted(
            str(lock.device)
            for lock in facts.book.locks.values()
            if lock.pod == record.uid and lock.state in _OF_THE_LIVING and lock.claim is None
        )
        if had:
            yield Disagreement(
                kind=Drift.LOST_BOOKS.value,
                subject=f"pod {record}",
                one=f"the ledger has {', '.join(had)} for it, and kubelet runs it",
                other="kubelet's checkpoint has no devices for it",
                advice=(
                    "kubelet will not restart its containers (no devices found allocated in local "
                    "cache): delete the pod"
                ),
            )


def _never_granted(facts: DriftFacts) -> Iterator[Disagreement]:
    for entry in _entries(facts):
        devices = {id_: facts.inventory.find(entry.resource, id_) for id_ in entry.devices}
        promised = set(entry.promised)
        strange = {
            id_
            for id_, device in devices.items()
            if (device is None and DeviceName(entry.resource, id_) not in facts.book.locks)
            or (device and promised and not {node.path for node in device.nodes} <= promised)
        }
        if strange:
            yield Disagreement(
                kind=Drift.NEVER_GRANTED.value,
                subject=_devices(entry.resource, strange),
                one=f"kubelet's checkpoint gives them to {facts.book.pod(entry.pod)}",
                other="holdfast did not grant them, or not with these device nodes",
                advice="another plugin did, or group numbers changed since: delete the pod",
            )


def _counted_twice(facts: DriftFacts) -> Iterator[Disagreement]:
    owners: dict[DeviceName, set[PodUid]] = {}
    for entry in _entries(facts):
        for id_ in entry.devices:
            device = facts.inventory.find(entry.resource, id_)
            if device is not None:
                owners.setdefault(device.name, set()).add(entry.pod)
    for name, pods in owners.items():
        if len(pods) > 1:
            lock = facts.book.locks.get(name)
            yield Disagreement(
                kind=Drift.COUNTED_TWICE.value,
                subject=str(name),
                one=f"the ledger has it for {facts.book.pod(lock.pod if lock else None)}",
                other=f"kubelet's checkpoint gives it to {' and '.join(sorted(pods))}",
                advice="delete the other pods, which wait for it",
            )


def _lock_without_pod(facts: DriftFacts) -> Iterator[Disagreement]:
    for lock in facts.book.locks.values():
        if lock.state is not LockState.HELD or lock.claim is not None:
            continue  # kubelet's checkpoint has nothing of claims
        since = facts.locked_at.get(lock.device)
        if since is None or facts.view.asked_at - since < facts.lock_patience:
            continue
        counted = lock.pod is not None and facts.view.counts(lock.pod)
        if not counted and not facts.view.pods_with(lock.device):
            yield Disagreement(
                kind=Drift.LOCK_WITHOUT_POD.value,
                subject=str(lock.device),
                one=f"the ledger has it for {facts.book.pod(lock.pod)}",
                other="kubelet has no pod with it",
                advice=(
                    "its cgroup is still there: look at `holdfast holders`"
                    if lock.pod is not None
                    else f"it is released {LONGEST_START / 60:g} min after its last start, if "
                    "kubelet names no pod until then"
                ),
            )


def _not_our_list(facts: DriftFacts) -> Iterator[Disagreement]:
    if not facts.list_answered:  # kubelet may not have written down yet what it was just sent
        return
    for resource, registered in facts.view.registered.items():
        ours = facts.offers.of(resource)
        if not ours:
            continue
        healthy = {each.id for each in ours if each.healthy}
        strange = registered - {each.id for each in ours}
        lacking = healthy - registered
        if strange or lacking:
            yield Disagreement(
                kind=Drift.NOT_OUR_LIST.value,
                subject=str(resource),
                one=f"holdfast offers {_ids(healthy)} as healthy",
                other=f"kubelet has {_ids(registered)}",
                advice="another plugin serves this resource name: remove it",
            )


def _held_by_another(facts: DriftFacts) -> Iterator[Disagreement]:
    for lock in facts.book.locks.values():
        strangers = [
            holder
            for holder in facts.holders.get(lock.device, ())
            if lock.state is LockState.FOREIGN
            or (lock.pod is not None and holder.pod not in facts.book.pods_of(lock))
        ]
        if strangers:
            granted = (
                "holdfast granted it to nobody"
                if lock.state is LockState.FOREIGN
                else f"the ledger has it for {facts.book.holder(lock)}"
            )
            yield Disagreement(
                kind=Drift.HELD_BY_ANOTHER.value,
                subject=str(lock.device),
                one=granted,
                other=f"the kernel shows {named(strangers)}",
                advice="end that process if nobody needs it; holdfast will not",
            )


def _entries(facts: DriftFacts) -> Iterator[CheckpointEntry]:
    """Yield the checkpoint's entries for what we advertise."""
    return (each for each in facts.view.entries if each.resource in facts.inventory.resources)


def _has_any(pod: ListedPod, inventory: Inventory) -> bool:
    return any(name.resource in inventory.resources for name in pod.devices)


def _devices(resource: ResourceName, ids: Iterable[DeviceId]) -> str:
    return f"{resource} {', '.join(sorted(ids))}"


def _ids(ids: Iterable[DeviceId]) -> str:
    return ", ".join(sorted(ids)) or "none"


class ClaimDriftFacts(Struct, frozen=True, kw_only=True):
    """What the ledger and kubelet say of claims.

    `entries` is kubelet's record as it was read at `read_at`, in seconds since `boot`; None where
    it cannot be read. `devices` are those that the scheduler knows, by their names there, of what
    is shared all of it; `driver` and `pool` are ours.
    """

    book: Book
    boot: BootId
    driver: str
    pool: str
    entries: Sequence[ClaimEntry] | None = None
    read_at: float = 0.0
    devices: Mapping[str, tuple[DeviceName, ...]] = field(default_factory=dict)


def claim_disagreements(facts: ClaimDriftFacts) -> tuple[Disagreement, ...]:
    """Return every disagreement, in a stable order; none where kubelet's record cannot be read."""
    if facts.entries is None:
        return ()
    recorded = {each.claim.uid: each for each in facts.entries}
    found = [*_not_recorded(facts, recorded), *_unknown(facts), *_other_devices(facts, recorded)]
    return tuple(sorted(found))


def undecided(each: Disagreement, facts: DriftFacts, claims: ClaimDriftFacts | None) -> bool:
    """Return whether the facts neither confirm a disagreement nor show that it has ended."""
    if each.kind in _OF_CLAIMS:
        return claims is not None and claims.entries is None
    if each.kind == Drift.NOT_OUR_LIST.value and not facts.list_answered:
        return True
    return each.kind != Drift.HELD_BY_ANOTHER.value and not comparable(facts.view)


def _not_recorded(
    facts: ClaimDriftFacts, recorded: Mapping[ClaimUid, ClaimEntry]
) -> Iterator[Disagreement]:
    """Yield claims that are prepared and that kubelet will never unprepare."""
    for record in _prepared(facts):
        if record.ref.uid not in recorded:
            yield Disagreement(
                kind=Drift.CLAIM_NOT_RECORDED.value,
                subject=f"claim {record.ref}",
                one=f"the ledger has {_names(_had(facts, record))} prepared for it",
                other="kubelet's record of claims does not have it",
                advice=(
                    "kubelet will not unprepare it: delete its pods and the claim; it is over once "
                    "the API server has no such claim and none of its pods has a cgroup"
                ),
            )


def _unknown(facts: ClaimDriftFacts) -> Iterator[Disagreement]:
    for entry in facts.entries or ():
        labels = {each.name for each in entry.given(facts.driver, facts.pool)}
        if labels and entry.pods and entry.claim.uid not in facts.book.claims:
            yield Disagreement(
                kind=Drift.CLAIM_UNKNOWN.value,
                subject=f"claim {entry.claim}",
                one=f"kubelet's record has {', '.join(sorted(labels))} prepared for it",
                other="the ledger does not have it",
                advice="its devices may be given to another claim: delete its pods",
            )


def _other_devices(
    facts: ClaimDriftFacts, recorded: Mapping[ClaimUid, ClaimEntry]
) -> Iterator[Disagreement]:
    for record in _prepared(facts):
        entry = recorded.get(record.ref.uid)
        devices = () if entry is None else entry.given(facts.driver, facts.pool)
        # Of a device that has left the node nothing can be compared.
        if not devices or not all(each.name in facts.devices for each in devices):
            continue
        theirs = sorted(name for each in devices for name in facts.devices[each.name])
        ours = sorted(_wholly(facts, record))
        if theirs != ours:
            yield Disagreement(
                kind=Drift.CLAIM_OTHER_DEVICES.value,
                subject=f"claim {record.ref}",
                one=f"the ledger has {_names(ours)} prepared for it",
                other=f"kubelet's record has {_names(theirs)}",
                advice="delete its pods; it is prepared again for the next ones",
            )


def _prepared(facts: ClaimDriftFacts) -> Iterator[ClaimRecord]:
    """Yield the claims that were prepared before kubelet's record was read."""
    for record in facts.book.claims.values():
        if phase_of(facts.book, record) is ClaimPhase.PREPARED and all(
            each.boot != facts.boot or each.started_at < facts.read_at
            for each in facts.book.holdings.of_claim(record.ref.uid)
        ):
            yield record


def _had(
    facts: ClaimDriftFacts, record: ClaimRecord
) -> Mapping[DeviceName, frozenset[HardwareKey]]:
    mine = facts.book.holdings.of_claim(record.ref.uid)
    had = {name: keys for each in mine for name, keys in each.names()}
    return {**had, **record.admin}


def _wholly(facts: ClaimDriftFacts, record: ClaimRecord) -> Iterator[DeviceName]:
    """Yield what the claim has, of each replica all of its card: kubelet knows no more."""
    known = {name.id: name for names in facts.devices.values() for name in names}
    for name, keys in _had(facts, record).items():
        replicas = replicas_in(keys)
        for card, _ in replicas:
            yield known.get(card, DeviceName(name.resource, card))
        if not replicas:
            yield name


def _names(devices: Iterable[DeviceName]) -> str:
    return ", ".join(sorted(str(each) for each in devices))
