"""Which pod can have a device, which really has it, and whose it is where the kernel names none."""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from holdfast.model.book.book import (
    ENDING,
    Allocation,
    Book,
    DeviceLock,
    Holdings,
    LockState,
    Phase,
    named_pod,
    same_holder,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import Holder, Scan, named


def attribute(
    scan: Scan,
    enabled: frozenset[DeviceName],
    locks: Mapping[DeviceName, DeviceLock],
    pods_of: Callable[[DeviceLock], frozenset[PodUid]] = named_pod,
) -> dict[DeviceName, tuple[Holder, ...]]:
    """Return the holders of each device, also those that the kernel did not attribute.

    Before Linux 6.18 fdinfo does not say which function a VFIO device fd belongs to. Such a holder
    counts for the enabled devices that the ledger gave its pod; if there are none, for every
    enabled device without another explanation. A device that is not enabled has no device fd.
    *pods_of* returns all pods that may use what a lock locks: several where a claim has it.
    """
    found = {
        device: {holder.process: holder for holder in holders}
        for device, holders in scan.holders.items()
    }
    for holder in scan.unattributed:
        granted = [
            device for device in enabled if device in locks and holder.pod in pods_of(locks[device])
        ]
        unexplained = [device for device in enabled if not scan.holders.get(device)]
        for device in granted or unexplained:
            known = found.setdefault(device, {})
            same = known.get(holder.process, holder)
            known[holder.process] = replace(same, access=same.access | holder.access)
    return {device: tuple(holders.values()) for device, holders in found.items()}


def could_have_started(allocation: Allocation, holdings: Holdings) -> bool:
    """Tell whether no other pod has started on its keys, or is still to let go of them.

    The pod of *allocation* is known.
    """
    if any(
        each.phase is Phase.ACTIVE and not same_holder(each, allocation)
        for each in holdings.contending(allocation.keys)
    ):
        return False
    return not any(
        lock.state in ENDING and not same_holder(lock, allocation)
        for lock in holdings.locks_on(allocation.keys)
    )


def true_owner(book: Book, lock: DeviceLock, facts: KernelFacts) -> Allocation | None:
    """Return the Allocation of the one other pod that holds the device; None: there is none.

    Only a complete scan proves it, and only for a pod that was granted the same hardware: a pod
    that took it by itself must not get a lock. A lock whose pod has passed the gate stays, because
    no other pod could have started then.
    """
    if lock.state is not LockState.HELD or lock.pod is None or facts.gaps:
        return None
    pods = {holder.pod for holder in facts.holders or ()} - {None}
    if len(pods) != 1 or lock.pod in pods:
        return None
    return next(
        (
            each
            for each in sorted(book.holdings.on(lock.keys), key=book.holdings.rank)
            if each.pod in pods
            and lock.keys <= each.keys
            and could_have_started(each, book.holdings)
        ),
        None,
    )


def hand_to_true_owner(draft: Draft, lock: DeviceLock, facts: KernelFacts) -> None:
    """Give *lock* to the pod that holds its device by *facts*, if the lock is unchanged."""
    book = draft.book
    heir = true_owner(book, lock, facts)
    if heir is None or book.locks.get(lock.device) != lock:
        return
    draft.hand(
        lock, heir, f"the process scan shows that it is held by {named(facts.holders or ())}"
    )
    draft.activate(heir)
    settle(draft)


def unlocked(devices: Iterable[Device], book: Book) -> tuple[Device, ...]:
    """Return those of *devices* that no lock excludes: they were granted to nobody."""
    return tuple(each for each in devices if not book.holdings.are_locked(each.keys))


def call_foreign(draft: Draft, device: Device, reason: str) -> None:
    """Call *device* foreign, in use for *reason*, if it was granted to nobody meanwhile."""
    if unlocked([device], draft.book):
        draft.call_foreign(device.name, device.keys, reason)
