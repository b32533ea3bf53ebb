"""Whose container is about to start, and what whoever asks for hardware has to wait for."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.book.book import (
    Allocation,
    Book,
    DeviceLock,
    LockState,
    Phase,
    same_pod,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import (
    BlockReason,
    Demand,
    FilledMessage,
    Message,
    of_lock,
    sentence,
)
from holdfast.model.book.queue import first_before, missing, settle
from holdfast.model.book.standing import belongs_to, why_withheld
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.model.use.free import Freedom, Verdict

LONGEST_WAIT = 26.0
"""How long a start may wait for its answer, in seconds.

Kubelet gives up after 30, and its own text names nobody; the rest is for a node that is slow.
"""


class WaitReport(Struct, frozen=True, kw_only=True):
    """A container start, or a claim, that has waited for `seconds`: `why`, in one sentence."""

    pods: frozenset[PodUid]
    why: str
    seconds: float


def why_queued(book: Book, allocation: Allocation, keys: frozenset[HardwareKey]) -> str:
    """Return what *allocation* waits for to get *keys*, which are missing."""
    obstacle = _before(book, allocation, keys)
    return "" if obstacle is None else obstacle.text


def told_queued(book: Book, allocation: Allocation, seen: Mapping[DeviceName, BlockReason]) -> str:
    """Return in one sentence what *allocation* waits for; empty: it has all that it is to have.

    *seen* is what was last seen to keep devices from being free.
    """
    lacks = missing(book.holdings, allocation, allocation.keys)
    obstacle = _before(book, allocation, lacks)
    if obstacle is None:
        return ""
    devices = [(name, keys & lacks) for name, keys in allocation.names()]
    said, kept = said_of(obstacle, devices, seen.get, book)
    asked = Demand(what="", devices=tuple(name for name, _ in devices), kept=kept)
    return sentence(said, asked)


def _before(book: Book, allocation: Allocation, lacks: frozenset[HardwareKey]) -> "Obstacle | None":
    started = book.started(allocation)
    rights = Rights(keys=lacks, own=frozenset(), started=started, queued=(allocation,))
    return why_not_yet(rights, book)


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
    passage: Passage,
    view: KubeletView,
    book: Book,
    *,
    known: PodUid | None = None,
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
    only = _only(passage, book)
    if only is None:
        return Caller()
    return Caller(pods=() if only.pod is None else (only.pod,), allocation=only.id)


class Rights(Struct, frozen=True, kw_only=True):
    """What who asks for the hardware with `keys` has of it by the book.

    `own` are the devices whose locks are its own, and `started` is hardware that it has started on
    before. `queued` are its Allocations, by which it has a place in the queue; None: it takes its
    place only as it enters. `yields_to` comes first because it is not known who asks.
    """

    keys: frozenset[HardwareKey]
    own: frozenset[DeviceName]
    started: frozenset[HardwareKey]
    queued: tuple[Allocation, ...] | None
    yields_to: Allocation | None = None


class Obstacle(Struct, frozen=True, kw_only=True):
    """What keeps somebody from hardware; `withheld`: a person does.

    `text` is why, and `said` what people are told, but for `locks` that are in the way: there it is
    what was seen on their devices. `kept` are the keys that are in the way where no lock is.
    """

    text: str
    withheld: bool = False
    said: FilledMessage | None = None
    locks: tuple[DeviceLock, ...] = ()
    kept: frozenset[HardwareKey] = frozenset()


def why_not_yet(rights: Rights, book: Book) -> Obstacle | None:
    """Return what who has *rights* waits for by the book, or None when it may go on.

    It is the one rule for whoever asks, at either door and in the queue. What the kernel shows is
    asked apart from this, and both must agree.
    """
    if not rights.keys:  # a claim with adminAccess alone: it is given nothing that is withheld
        return None
    withheld = why_withheld(book, rights.keys, rights.started)
    if withheld is not None:
        return Obstacle(text=str(withheld), withheld=True, said=withheld)
    locks = book.locks_on(rights.keys)
    others = tuple(lock for lock in locks if lock.device not in rights.own)
    if others:
        return Obstacle(text=belongs_to(others[0], book, rights.keys), locks=others)
    if rights.yields_to is not None:
        text = (
            "it is not known whose container this is, and "
            f"{book.holder(rights.yields_to)} waits for the same hardware"
        )
        said = Message.UNKNOWN_POD.filled(owner=book.owner(rights.yields_to))
        return Obstacle(text=text, said=said)
    unlocked = rights.keys.difference(*(lock.keys for lock in locks))
    if rights.queued is None or not unlocked:
        return None
    if not rights.queued:
        text = f"{', '.join(sorted(unlocked))} is not granted to it yet"
        return Obstacle(text=text, kept=unlocked)
    return _behind(book, rights.queued[0], unlocked)


def _behind(book: Book, allocation: Allocation, unlocked: frozenset[HardwareKey]) -> Obstacle:
    first = first_before(book, allocation, unlocked)
    whose = owner = "an older Allocation"
    if first is not None:
        whose, owner = book.holder(first), book.owner(first)
    text = f"{', '.join(sorted(unlocked))} waits behind {whose}"
    return Obstacle(text=text, said=Message.QUEUED.filled(owner=owner), kept=unlocked)


def said_of(
    obstacle: Obstacle,
    devices: Sequence[tuple[DeviceName, frozenset[HardwareKey]]],
    seen: Callable[[DeviceName], BlockReason | None],
    book: Book,
) -> tuple[FilledMessage, int]:
    """Return the text about *obstacle* for who asks for *devices*, and how many it is true of.

    *seen* is what was last seen on a device. Of several that are kept, one with a known holder is
    told: it says more than that the rest of the pod lives.
    """
    if obstacle.locks:
        kept = [
            (device, lock)
            for device, keys in devices
            for lock in book.locks_on(keys)
            if lock in obstacle.locks
        ]
        # A lock can be in the way of more than the devices: of what a claim had before.
        every = kept or [(lock.device, lock) for lock in obstacle.locks]
        blocked = {lock.device: seen(lock.device) for _, lock in every}
        held = (each for each in every if (at := blocked[each[1].device]) and at.holders)
        device, lock = next(held, every[0])
        return of_lock(device, lock, blocked[lock.device], book), len(dict(kept))
    free = [device for device, keys in devices if keys & obstacle.kept]
    if obstacle.said is None:
        return Message.OTHER.filled(reason=obstacle.text), len(free)
    name = obstacle.said.device or next(iter(free), None)
    return replace(obstacle.said, device=name), len(free)


def rights_of_start(
    passage: Passage, caller: Caller, book: Book, *, queued: tuple[Allocation, ...] | None = None
) -> Rights:
    """Return what *caller* has; *queued* is its place, where it has taken that already."""
    locks = book.locks_on(passage.keys)
    return Rights(
        keys=passage.keys,
        own=frozenset(each.device for each in locks if _own(each, passage, caller, book)),
        started=_started(passage, caller, book),
        queued=queued,
        yields_to=None if caller.pod is not None else _first_other(passage, caller, book),
    )


def in_the_way(verdicts: Mapping[DeviceName, Verdict]) -> Mapping[DeviceName, str]:
    """Return the devices that are not to be handed over, each with the reason.

    It is in use, or nothing may go on until it is known whether it is.
    """
    found: dict[DeviceName, str] = {}
    for name, verdict in verdicts.items():
        if verdict.final:
            found[name] = f"it is unknown whether {name} is free: {verdict.reason}"
        elif verdict.freedom is Freedom.IN_USE:
            found[name] = f"{name} is {verdict.reason}"
    return found


def arrive(draft: Draft, passage: Passage, caller: Caller) -> None:
    """Write down a start that the book has no Allocation for, while the checkpoint is silent.

    Kubelet starts a container on what it has allocated to its pod alone. So this is as good as an
    Allocate: older Allocations of the same ids are over, and this one waits behind their locks.
    """
    if not _allocations_of(passage, draft.book):
        draft.allocate(passage.resource, passage.devices, pod=caller.pod)
        settle(draft)


def enter(draft: Draft, passage: Passage, caller: Caller, evidence: str) -> Obstacle | None:
    """Let *caller* pass: take its locks and write the start down; or return what it waits for.

    *evidence* says what the kernel showed and goes into the history. An entry in the checkpoint
    re-creates an Allocation that the book does not have: after a reboot kubelet replays its old
    answer, and an Allocate may have been answered without a commit.
    """
    allocation = _enrol(draft, passage, caller)
    settle(draft)
    book = draft.book
    obstacle = why_not_yet(rights_of_start(passage, caller, book, queued=(allocation,)), book)
    obstacle = obstacle or _first_by_what_is_owed(draft, allocation, passage, caller)
    if obstacle is not None:
        return obstacle
    for lock in book.locks_on(passage.keys):
        draft.note(lock, evidence)
    draft.activate(allocation)
    return None


def _first_by_what_is_owed(
    draft: Draft, allocation: Allocation, passage: Passage, caller: Caller
) -> Obstacle | None:
    """Return who is before *caller* once what is owed is recorded, which then is recorded now.

    A start that overtakes it could wait for it later, and be waited for.
    """
    book = draft.foreseen()
    if book is draft.book:
        return None
    pod = book.allocations.get(allocation.id, allocation).pod  # what is owed may name it
    named = caller if caller.pod or pod is None else replace(caller, pods=(pod,))
    obstacle = why_not_yet(rights_of_start(passage, named, book, queued=(allocation,)), book)
    if obstacle is not None:
        draft.pay()  # who it waits for is in the book then, or the disk is to blame
    return obstacle


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
    # Where its pod is not known, it can only be this very start's.
    only = None if caller.remembered else _only(passage, book)
    return only is not None and only.pod is None and only.id == lock.allocation


def _started(passage: Passage, caller: Caller, book: Book) -> frozenset[HardwareKey]:
    """Return what *caller*'s pod has started on; nothing where that is not certain."""
    if caller.pod is None:
        only = _only(passage, book)
        mine = [only] if only is not None and _fits(only, caller) else []
    else:
        mine = book.holdings.of_pod(caller.pod)
    return frozenset().union(*(book.started(each) for each in mine))


def _first_other(passage: Passage, caller: Caller, book: Book) -> Allocation | None:
    only = _only(passage, book)
    own = caller.allocation if only is None else only.id
    others = (each for each in book.holdings.contending(passage.keys) if each.id != own)
    return min(others, key=book.holdings.rank, default=None)


def _only(passage: Passage, book: Book) -> Allocation | None:
    """Return the one live Allocation of exactly these devices; None where there are others."""
    same = _allocations_of(passage, book)
    return same[0] if len(same) == 1 else None


def _allocations_of(passage: Passage, book: Book) -> list[Allocation]:
    naming = book.holdings.naming(passage.resource, passage.devices)
    same = (each for each in naming if each.ids == set(passage.devices) and each.claim is None)
    return sorted(same, key=book.holdings.rank)


def locked_devices(book: Book, keys: frozenset[HardwareKey]) -> tuple[DeviceName, ...]:
    """Return the devices whose locks exclude *keys*, under any resource name."""
    return tuple(lock.device for lock in book.locks_on(keys))


def is_held_from(pod: PodUid | None, book: Book, keys: frozenset[HardwareKey]) -> bool:
    """Tell whether another than *pod* has *keys* as far as the book knows; its pod may be over.

    Where a lock is being released, kubelet has said so already.
    """
    if pod is None:
        return True
    held = (lock for lock in book.locks_on(keys) if lock.state is LockState.HELD)
    return any(lock.pod != pod for lock in held)
