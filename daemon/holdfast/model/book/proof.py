"""Which pod can have a device, and which really has it, if it is not the one with the lock."""

from holdfast.model.book.book import Allocation, Book, Holdings, Phase, same_holder
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import ENDING, DeviceLock, LockState
from holdfast.model.book.queue import settle
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import named


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
            for each in sorted(book.holdings.on(lock.keys), key=book.rank)
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
