"""What a person may ask for by hand, and how it changes the book. The history records it."""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import RequestRefusedError
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Mark, Quarantine
from holdfast.model.book.queue import settle
from holdfast.model.book.standing import belongs_to, quarantines_on
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceName, HardwareKey, PodUid


class Target(Struct, frozen=True, kw_only=True):
    """The device that a person means, with its hardware."""

    device: DeviceName
    keys: frozenset[HardwareKey]


def target(text: str, inventory: Inventory, book: Book, *, cards: bool = False) -> Target:
    """Return the device named by ``resource/id``, or by the id alone if that is unique.

    It may have left the node, as long as it has a lock or is quarantined. With *cards* it may be a
    card that is shared, with all of its replicas. Raises RequestRefusedError for a name of no
    device or of several devices.
    """
    known: dict[DeviceName, frozenset[HardwareKey]] = {
        quarantine.device: quarantine.keys for quarantine in book.marks.quarantines.values()
    }
    known |= {lock.device: lock.keys for lock in book.locks.values()}
    known |= {device.name: device.keys for device in inventory.devices}
    if cards:
        known |= {card.name: card.keys for card in inventory.shared_cards}
    meant = device_meant(text, known)
    return Target(device=meant, keys=known[meant])


def lock_meant(what: Target, book: Book) -> DeviceLock | None:
    """Return the lock that is shown of what a person means; None: there is none."""
    return book.lock_on(what.keys)


def device_meant(text: str, known: Collection[DeviceName]) -> DeviceName:
    """Return the one of *known* named by ``resource/id``, or by the id alone if that is unique.

    Raises RequestRefusedError for a name of no device or of several devices.
    """
    meant = [name for name in known if text == str(name)]
    meant = meant or [name for name in known if text == name.id]
    if len(meant) == 1:
        return meant[0]
    if meant:
        several = " and ".join(str(name) for name in sorted(meant))
        raise RequestRefusedError(f"cannot tell which device {text} is: {several}; name it in full")
    names = ", ".join(str(name) for name in sorted(known)) or "none"
    raise RequestRefusedError(f"cannot find device {text}: this node has {names}")


def quarantine(draft: Draft, what: Target, mark: Mark) -> str:
    """Quarantine a device for every new pod until a person ends that; return the reply.

    A pod that runs on it is not affected: ending a pod is another request.
    """
    book = draft.book
    draft.mark(
        book.marks.with_quarantine(Quarantine(device=what.device, keys=what.keys, mark=mark))
    )
    draft.tell(what.device, what.keys, f"quarantined by hand: {mark}")
    lock = lock_meant(what, book)
    done = f"{what.device} is quarantined: no new pod gets it"
    if lock is not None and lock.state is LockState.HELD:
        then = "has it and keeps it" if lock.started else "has not started on it, and waits"
        return f"{done}; {book.holder(lock)} {then}"
    return done


class UnquarantineOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of `unquarantine`; `retry` is the pod whose reclaim is to be tried again now."""

    text: str
    retry: PodUid | None = None


def unquarantine(
    draft: Draft, what: Target, mark: Mark, *, forgiven: Sequence[str] = ()
) -> UnquarantineOutcome:
    """Lift a quarantine by hand, and have an automatic one tried again at once.

    An automatic quarantine is never simply lifted, for something still holds the device.
    *forgiven* are reasons why it was Unhealthy that a person overrules by this. Raises
    RequestRefusedError where there is nothing to lift.
    """
    book = draft.book
    lock = lock_meant(what, book)
    by_hand = what.device in book.marks.quarantines
    stuck = lock is not None and lock.state is LockState.QUARANTINED
    others = [
        str(each.device) for each in quarantines_on(book, what.keys) if each.device != what.device
    ]
    if not by_hand and not stuck and not forgiven:
        raise RequestRefusedError(_why_not_lifted(what, lock, others))
    told: list[str] = []
    if by_hand:
        draft.mark(book.marks.without(what.device))
        told.append("not quarantined by hand any more")
    if forgiven:
        told.append(f"trusted again despite {', '.join(forgiven)}")
    if stuck:
        told.append("reclaimed again now, and withheld until it is free")
    if others:
        told.append(f"still withheld: {', '.join(others)} is the same hardware and is quarantined")
    if book.marks.drain is not None:
        told.append(f"still withheld: holdfast is draining ({book.marks.drain})")
    text = "; ".join(told)
    draft.tell(what.device, what.keys, f"unquarantine, {mark}: {text}")
    settle(draft)
    return UnquarantineOutcome(
        text=f"{what.device} is {text}", retry=lock.pod if lock is not None and stuck else None
    )


def drain(draft: Draft, devices: Iterable[Target], mark: Mark) -> str:
    """Withhold the whole node from every pod that has not started on it; return the reply.

    A node that is already drained does not change, and keeps the name of who asked first.
    """
    before = draft.book.marks
    if before.drain is not None:
        return f"holdfast is draining already: {before.drain}"
    draft.mark(replace(before, drain=mark))
    for each in devices:
        draft.tell(each.device, each.keys, f"draining: {mark}")
    return "holdfast is draining: no new pod starts on a device of this node"


def undrain(draft: Draft, devices: Iterable[Target], mark: Mark) -> str:
    """End the drain; raises RequestRefusedError if there is none."""
    before = draft.book.marks
    if before.drain is None:
        raise RequestRefusedError("cannot end the drain: holdfast is not draining")
    draft.mark(replace(before, drain=None))
    for each in devices:
        draft.tell(each.device, each.keys, f"draining ended: {mark}")
    settle(draft)
    kept = ", ".join(str(name) for name in sorted(before.quarantines))
    rest = f"; still quarantined by hand: {kept}" if kept else ""
    return f"holdfast is not draining any more{rest}"


class RemovalFacts(Struct, frozen=True, kw_only=True):
    """What decides whether the plugin can be taken off the node.

    `offered` are the devices reported to kubelet as Healthy. `problem` says why kubelet's
    checkpoint cannot be relied on; empty: it can. `looked`: the whole node has been scanned.
    `claims` says how kubelet and the scheduler still need the DRA driver; empty where they do not.
    """

    book: Book
    offered: tuple[DeviceName, ...] = ()
    problem: str = ""
    looked: bool = True
    claims: tuple[str, ...] = ()


def why_not_removable(facts: RemovalFacts) -> tuple[str, ...]:
    """Return everything that still needs the plugin; nothing when it can be uninstalled.

    A pod that kubelet counts needs it even while it holds nothing: each start of a container asks
    the plugin, and without one kubelet fails it.
    """
    book, found = facts.book, []
    if not facts.looked:
        found.append("holdfast has just started and has not scanned the node yet")
    if facts.problem:
        found.append(f"kubelet's checkpoint cannot be read: {facts.problem}")
    if book.marks.drain is None:
        found.append("holdfast is not draining")
    # A device that was granted to no pod does not have to be waited for.
    locks = [lock for lock in book.locks.values() if lock.state is not LockState.FOREIGN]
    found += [belongs_to(lock, book) for lock in locks]
    locked = frozenset().union(*(lock.keys for lock in locks))
    found += [
        f"{name} is waited for by {book.holder(allocation)}: delete the pod"
        for allocation in book.queue()
        for name, keys in allocation.names()
        if not keys & locked
    ]
    found += [f"kubelet is still told that {name} is Healthy" for name in facts.offered]
    found += facts.claims
    return tuple(found)


def _why_not_lifted(what: Target, lock: DeviceLock | None, others: Sequence[str]) -> str:
    state = lock.state.value if lock is not None else LockState.FREE.value
    reason = f"it is not quarantined (its lock is {state})"
    if others:
        reason = f"{', '.join(others)} is quarantined, which is the same hardware: name that one"
    return f"cannot lift the quarantine of {what.device}: {reason}"
