"""The queue: who gets free hardware, and who has to give it back to an older Allocation."""

from collections.abc import Iterable

from holdfast.model.book.book import (
    Allocation,
    Book,
    DeviceLock,
    Holdings,
    LockState,
    Phase,
    same_holder,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.standing import why_withheld
from holdfast.model.ids import DeviceName, HardwareKey


def settle(draft: Draft, *, near: frozenset[HardwareKey] | None = None) -> None:
    """Give every free key to the first in the queue, and take back what younger ones got early.

    Walks the queue once, oldest pod first, all keys of a pod before those of the next. So two pods
    that wait for each other's devices cannot both get one. Allocations that have started come
    first. What is withheld by hand stays free. *near*: only these keys have changed, so Allocations
    without such hardware are left out.
    """
    holdings = draft.holdings
    queue = _in_turn(
        holdings,
        holdings.allocations.values() if near is None else holdings.connected(near),
    )
    turns = {each.id: turn for turn, each in enumerate(queue)}
    for allocation in queue:
        for device, keys in allocation.names():
            lacks = missing(holdings, allocation, keys)
            if not lacks or _is_withheld(draft, allocation, lacks):
                continue
            # Its own pod may be before it on the same card in another way.
            if all(
                same_holder(each, allocation) and each.keys.isdisjoint(lacks)
                for each in holdings.contending(lacks)
                if turns[each.id] < turns[allocation.id]
            ):
                _lock_for(draft, allocation, device, lacks)


def missing(
    holdings: Holdings, allocation: Allocation, keys: frozenset[HardwareKey]
) -> frozenset[HardwareKey]:
    """Return which of *keys* neither *allocation* nor another of its holder has a lock on."""
    own = (lock.keys for lock in holdings.locks_on(keys) if _is_own(lock, allocation))
    return keys.difference(*own)


def first_before(
    book: Book, allocation: Allocation, keys: frozenset[HardwareKey]
) -> Allocation | None:
    """Return whose turn it is to have *keys*, which no lock has and *allocation* waits for."""
    others = (each for each in book.holdings.contending(keys) if not same_holder(each, allocation))
    return next(iter(_in_turn(book.holdings, others)), None)


def _in_turn(holdings: Holdings, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return *allocations* with the one first that has the first right to its hardware."""
    return sorted(allocations, key=lambda each: (each.phase is Phase.PENDING, holdings.rank(each)))


def _is_withheld(draft: Draft, allocation: Allocation, keys: frozenset[HardwareKey]) -> bool:
    if not draft.marks:
        return False
    return why_withheld(draft.book, keys, draft.book.started(allocation)) is not None


def _lock_for(
    draft: Draft, allocation: Allocation, device: DeviceName, lacks: frozenset[HardwareKey]
) -> None:
    """Lock *lacks*, which its pod does not have yet, if those who have it yield."""
    # Its pod may have had the card in another way, before it was shared.
    found = draft.holdings.locks_on(lacks)
    in_the_way = [lock for lock in found if not _is_own(lock, allocation)]
    if not all(_yields(draft, lock, allocation) for lock in in_the_way):
        return
    same = draft.locks.get(device)
    if same is not None and in_the_way == [same] and same.keys == lacks:
        draft.hand(same, allocation, "the older Allocation goes first")
        return
    part = None if same in in_the_way else same
    if part is not None and not (_is_own(part, allocation) and part.state is LockState.HELD):
        return
    for lock in in_the_way:
        # No pod could open it: the Allocation that had it never passed the gate.
        draft.move(lock.device, LockState.RELEASING, "an older Allocation has the hardware")
        draft.move(lock.device, LockState.FREE, "it never passed the gate")
    if part is None:
        draft.lock(device, lacks, allocation, "allocated")
    else:  # it has grown, or its pod has had a part of it under another name
        draft.grow(part, lacks)


def _yields(draft: Draft, lock: DeviceLock, senior: Allocation) -> bool:
    """Return whether *lock* belongs to a younger Allocation whose pod has started nothing."""
    owner = draft.holdings.allocations.get(lock.allocation) if lock.allocation else None
    if owner is None or lock.state is not LockState.HELD:
        return False
    if draft.holdings.has_started(owner, lock.keys):
        return False
    rank = draft.holdings.rank
    return senior.phase is Phase.ACTIVE or rank(owner) > rank(senior)


def _is_own(lock: DeviceLock, allocation: Allocation) -> bool:
    return lock.allocation == allocation.id or same_holder(lock, allocation)
