"""Which pod really has a device, if it is not the one that has the lock."""

from holdfast.model.book.book import Allocation, Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.queue import settle
from holdfast.model.book.reconcile import could_have_started
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import named


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
