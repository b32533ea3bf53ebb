"""The gate's rules: whose container is about to start, and whether its pod may pass."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.model.book.book import Allocation, Book, Phase, same_pod
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.queue import settle, waits_behind
from holdfast.model.book.withheld import why_withheld
from holdfast.model.cards import same_functions
from holdfast.model.devices import pci_addresses
from holdfast.model.ids import DeviceId, HardwareKey, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView

LONGEST_WAIT = 26.0
"""How long a start may wait for its answer, in seconds.

Kubelet gives up after 30, and its own text names nobody; the rest is for a node that is slow.
"""


class Passage(Struct, frozen=True, kw_only=True):
    """What asks to pass: a container start on these devices of *resource*.

    `asked` are the ids kubelet named; `devices` the same by our ids, with their keys.
    """

    resource: ResourceName
    asked: frozenset[DeviceId]
    devices: Mapping[DeviceId, frozenset[HardwareKey]]

    @property
    def keys(self) -> frozenset[HardwareKey]:
        """Return the keys of all its devices."""
        return frozenset().union(*self.devices.values())


class Caller(Struct, frozen=True, kw_only=True):
    """Whose container starts. Several pods: kubelet gave the same devices twice."""

    pods: tuple[PodUid, ...] = ()
    allocation: int | None = None
    """The only live Allocation of these ids, where the checkpoint cannot be read."""
    gone: PodUid | None = None
    """Whose start it was a moment ago; the checkpoint no longer has the devices for that pod."""
    remembered: bool = False
    """An earlier look at the same call showed the pod; now the checkpoint cannot be read."""

    @property
    def pod(self) -> PodUid | None:
        """Return the pod, None while unknown."""
        return self.pods[0] if len(self.pods) == 1 else None


def who_calls(
    passage: Passage, view: KubeletView, book: Book, *, known: PodUid | None = None
) -> Caller:
    """Return whose start this is; *known* is whose it was when this very call was looked at before.

    Kubelet writes its checkpoint after each container's Allocates and before its start, so the
    entry with exactly these ids is the caller's. Without a readable checkpoint the only live
    Allocation of these ids is the caller's; of several, any could be. What was one pod's start is
    never another's: kubelet may have given the devices on while the call was waiting.
    """
    if view.readable:
        pods = {entry.pod for entry in view.entries_of(passage.resource, passage.asked)}
        if known is not None and known not in pods:
            return Caller(gone=known)
        return Caller(pods=tuple(sorted(pods)))
    if known is not None:
        return Caller(pods=(known,), remembered=True)
    same = _allocations_of(passage, book)
    if len(same) != 1:
        return Caller()
    only = same[0]
    return Caller(pods=() if only.pod is None else (only.pod,), allocation=only.id)


def why_wait(passage: Passage, caller: Caller, book: Book) -> str | None:
    """Return what *caller* has to wait for by the book, or None when it may go on.

    What the kernel shows is asked apart from this, and both must agree.
    """
    return why_kept_away(passage, caller, book) or why_held(passage, caller, book)


def why_held(passage: Passage, caller: Caller, book: Book) -> str | None:
    """Return which other pod has the devices or is before *caller* in the queue, or None."""
    for lock in book.locks_on(passage.keys):
        if not _own(lock, passage, caller, book):
            return belongs_to(lock, book, passage.keys)
    if caller.pod is None:
        others = _others(passage, caller, book)
        if others:
            return (
                "it is not known whose container this is, and "
                f"{book.holder(others[0])} waits for the same hardware"
            )
    return None


def why_kept_away(passage: Passage, caller: Caller, book: Book) -> str | None:
    """Return why a person withholds the devices from *caller*, or None."""
    return why_withheld(book, passage.keys, _started(passage, caller, book))


def arrive(draft: Draft, passage: Passage, caller: Caller) -> None:
    """Write down a start that the book has no Allocation for, while the checkpoint is silent.

    Kubelet starts a container on what it has allocated to its pod alone. So this is as good as an
    Allocate: older Allocations of the same ids are over, and this one waits behind their locks.
    """
    if not _allocations_of(passage, draft.book):
        _enrol(draft, passage, caller)
        settle(draft)


def enter(draft: Draft, passage: Passage, caller: Caller, evidence: str) -> str | None:
    """Let *caller* pass: take its locks and write the start down; or return what it waits for.

    *evidence* says what the kernel showed and goes into the history. An entry in the checkpoint
    re-creates an Allocation that the book does not have: after a reboot kubelet replays its old
    answer, and an Allocate may have been answered without a commit.
    """
    allocation = _enrol(draft, passage, caller)
    settle(draft)
    book = draft.book
    reason = why_wait(passage, caller, book)
    if reason is not None:
        return reason
    locks = tuple(book.locks_on(passage.keys))
    unlocked = passage.keys.difference(*(lock.keys for lock in locks))
    if unlocked:
        return waits_behind(book, allocation, unlocked)
    for lock in locks:
        draft.note(lock, evidence)
    draft.activate(allocation)
    return None


def _enrol(draft: Draft, passage: Passage, caller: Caller) -> Allocation:
    """Return the caller's Allocation, identified as far as it can be."""
    book = draft.book
    if caller.pod is not None and not caller.remembered:
        for allocation in _allocations_of(passage, book):
            if allocation.pod is None:
                draft.identify(allocation, caller.pod)
        book = draft.book
    # A group can get another function after Allocate: then the start needs a new one.
    mine = [
        each
        for each in _allocations_of(passage, book)
        if _fits(each, caller) and each.keys >= passage.keys
    ]
    pending = [each for each in mine if each.phase is Phase.PENDING]
    if mine:
        return (pending or mine)[0]
    return draft.allocate(passage.resource, passage.devices, pod=caller.pod)


def _fits(allocation: Allocation, caller: Caller) -> bool:
    if caller.pod is not None:
        return allocation.pod == caller.pod
    return allocation.pod is None or allocation.id == caller.allocation


def _own(lock: DeviceLock, passage: Passage, caller: Caller, book: Book) -> bool:
    if lock.state is not LockState.HELD or lock.claim is not None:
        return False
    if same_pod(lock.pod, caller.pod):
        return True
    owner = book.allocations.get(lock.allocation) if lock.allocation is not None else None
    if owner is None or owner.pod is not None or caller.remembered:
        return False
    # Its pod is not known. It can only be this very start's, if ids and resource are the same.
    alone = len(_allocations_of(passage, book)) == 1
    return owner.resource == passage.resource and owner.ids == set(passage.devices) and alone


def _started(passage: Passage, caller: Caller, book: Book) -> frozenset[HardwareKey]:
    """Return what *caller*'s pod has started on; nothing where that is not certain."""
    if caller.pod is None:
        same = _allocations_of(passage, book)
        mine = same if len(same) == 1 and _fits(same[0], caller) else []
    else:
        mine = book.holdings.of_pod(caller.pod)
    return frozenset().union(*(book.started(each) for each in mine))


def _others(passage: Passage, caller: Caller, book: Book) -> list[Allocation]:
    same = _allocations_of(passage, book)
    own = same[0].id if len(same) == 1 else caller.allocation
    return [
        each for each in _in_line(book, book.holdings.contending(passage.keys)) if each.id != own
    ]


def _allocations_of(passage: Passage, book: Book) -> list[Allocation]:
    naming = book.holdings.naming(passage.resource, passage.devices)
    same = (each for each in naming if each.ids == set(passage.devices) and each.claim is None)
    return _in_line(book, same)


def _in_line(book: Book, allocations: Iterable[Allocation]) -> list[Allocation]:
    return sorted(allocations, key=book.rank)


def belongs_to(lock: DeviceLock, book: Book, keys: frozenset[HardwareKey] = frozenset()) -> str:
    """Return why *lock* keeps others from its device, naming who has it.

    *keys* are what is asked for. Where one of them is the same hardware under the name that another
    driver has for it, the text says so.
    """
    met = same_functions(lock.keys, keys, book.holdings.places)
    same = f" (the same hardware: {', '.join(pci_addresses(met))})" if met else ""
    return f"{lock.device}{same} {_state_of(lock, book)}"


def _state_of(lock: DeviceLock, book: Book) -> str:
    if lock.state is LockState.FOREIGN:
        return f"is in use by something holdfast did not grant it to: {lock.evidence}"
    owner = book.holder(lock)
    if lock.state is LockState.HELD:
        return f"is held by {owner}"
    return f"is not free of {owner} yet ({lock.state.value}): {lock.evidence}"
