"""The standing of a device: which pods may be given it, and if none, why and until when.

Everything that tells kubelet, the scheduler or a person of a device reads its `Standing`. What
decides in the middle of a commit asks `why_withheld` and `belongs_to`, of which standings are made.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.book.book import Allocation, Book, DeviceLock, LockState, Phase
from holdfast.model.book.marks import Quarantine
from holdfast.model.book.messages import (
    BlockReason,
    FilledMessage,
    Message,
    ending,
    of_lock,
    sentence,
)
from holdfast.model.cards import CardNames, is_replica, overlap, same_functions, whole_of
from holdfast.model.devices import Device, Inventory, pci_addresses
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView


class FreeFor(Enum):
    """Which pods may be given a device now."""

    ANY = "any"
    """Any pod, or any claim."""
    OWNER = "owner"
    """The pods that have it: their containers may start again."""
    NONE = "none"


class Standing(Struct, frozen=True, kw_only=True, dict=True):
    """What holds of one device at one moment.

    `device` is None when the hardware is gone. `listed`: it is under this name by the settings as
    they are; otherwise a pod or claim has the name from before, or it is a shared card as a whole.
    `by_claims`: the scheduler hands it out, by DRA, and not kubelet.

    `lock` is the lock that excludes it, under any name: see `Book.lock_on`.
    `owner` names who has that lock, and `said` is what people read about it. `since` is when the
    lock was first seen in its state, and `kept_since` since when the device is `kept`, or is not:
    both by this daemon, in seconds since the boot. `kept`: its lock keeps it from others without
    those who hand it out knowing. `inherited`: it was kept when the daemon started. `overdue`: kept
    for longer than those who hand it out are to wait before they hear of it.

    `needed`: a pod that kubelet counts, or will count, has the device or waits for it under this
    name. `awaited`: it is not known yet which pod that is. `emptied`: it is known, and the last
    process of each such pod has ended since we registered with kubelet. `granted`: kubelet gave it
    to a pod under this name, which has it or waits for it. `counted`: kubelet counts the pod of the
    lock. `crowded` says that as many pods share its card by other replicas as may. `withheld` is
    why a person withholds it from new pods, and `quarantined` the device of this hardware by whose
    name it was quarantined.
    `uncommitted`: the ledger has not been able to record a start for as long as is waited.
    `obstacle` is what was last seen to keep it from its next pod. `unstarted`: a pod that kubelet
    gave it to, under this name, is yet to start on it.
    """

    name: DeviceName
    device: Device | None
    listed: bool
    by_claims: bool
    lock: DeviceLock | None
    owner: str
    said: FilledMessage | None
    since: float
    kept: bool
    kept_since: float
    inherited: bool
    overdue: bool
    needed: bool
    awaited: bool
    emptied: bool
    granted: bool
    counted: bool
    crowded: str
    withheld: str
    quarantined: DeviceName | None
    drained: bool
    uncommitted: bool
    obstacle: BlockReason | None
    unstarted: bool = False

    @property
    def state(self) -> LockState:
        """Return the state of its lock."""
        return LockState.FREE if self.lock is None else self.lock.state

    @property
    def healthy(self) -> bool:
        """Tell whether the hardware can be used, whoever has it."""
        return self.device is not None and self.device.healthy

    @property
    def leaving(self) -> str:
        """Return why no new pod is given it, although one may keep it; empty: it is given."""
        return (self.device.leaving if self.device is not None else "") or self.crowded

    @property
    def named(self) -> bool:
        """Tell whether pods have it, or wait for it, by this very name."""
        return self.granted or (self.lock is not None and self.lock.device == self.name)

    @property
    def fault(self) -> str:
        """Return what is wrong with the hardware; empty for nothing."""
        if self.device is None:
            return f"{self.name} is not there any more"
        return "; ".join(fault.text for fault in self.device.faults)

    @property
    def kept_by(self) -> str:
        """Return who has it, and what was seen of that; empty for a device that nobody has."""
        return "" if self.said is None else sentence(self.said)

    @cached_property
    def offered(self) -> bool:
        """Tell whether kubelet is shown the device as Healthy.

        Reluctant on purpose: Unhealthy for the seconds between two pods makes kubelet refuse the
        second one for good, and Unhealthy under a pod that has the device makes it refuse its
        re-admission. Only what no second pod is to have is withheld with its pod's last process:
        kubelet gives it on with the next admission.
        """
        if not self.healthy:
            return False
        if self.needed:
            return not (self.leaving and self.emptied)
        if self.withheld or self.leaving or self.uncommitted:
            return False
        lock = self.lock
        if lock is None:
            return True
        if lock.device != self.name or lock.claim is not None:
            return False
        if lock.state is LockState.HELD:
            # No pod has it by this id: its pod has it by a former plugin's, or has just ended.
            return not self.counted
        return lock.state is LockState.RELEASING and not self.overdue

    @property
    def refusal(self) -> str:
        """Return why Allocate refuses it; empty: it does not.

        Kubelet gives a device to a second pod only when it counts the first one no more; but more
        containers of a pod that is just admitted may be given what its init containers have.
        """
        return "" if self.awaited else self.leaving

    @property
    def withheld_as(self) -> str:
        """Return in one word what keeps it from new claims; empty: nothing does."""
        if self.quarantined:
            return LockState.QUARANTINED.value
        if self.overdue:
            return self.state.value
        if self.drained:
            return "drain"
        if self.leaving:
            return "leaving"
        return "uncommitted" if self.uncommitted else ""

    @cached_property
    def idle(self) -> bool:
        """Tell whether nobody has it or waits for it, and nothing keeps it from a new pod."""
        withheld = self.withheld or self.crowded or self.uncommitted
        return self.listed and not (self.lock or self.needed or self.granted or withheld)

    @cached_property
    def free_for(self) -> FreeFor:
        """Return which pods may be given it now."""
        if not self.healthy:
            return FreeFor.NONE
        if self.state is not LockState.FREE:
            return FreeFor.OWNER if self.state is LockState.HELD else FreeFor.NONE
        withheld = self.withheld or self.leaving or self.uncommitted
        return FreeFor.NONE if withheld else FreeFor.ANY

    @cached_property
    def until(self) -> str:
        """Return what has to happen before a new pod is given it; empty: nothing."""
        if self.device is None:
            return "the hardware is there again"
        if self.device.faults:
            return "the device is healthy again"
        if self.said is not None:
            return ending(self.said, self.owner)
        if self.quarantined:
            return f"a person runs `holdfast unquarantine {self.quarantined}`"
        if self.drained:
            return "a person runs `holdfast undrain`"
        if self.crowded:
            return "a pod on another share of the same hardware has ended"
        if self.leaving:
            return "the settings keep the device under this name"
        return "the ledger can be written again" if self.uncommitted else ""


class Standings(Struct, frozen=True, kw_only=True, dict=True):
    """The standing of every device: in the order of the inventory, and then what is not in it.

    `by_claims` are the resources that the scheduler hands out by DRA, those without devices too.
    `names` are those that shared cards have. `left` are those that were for no new pod: once they
    are gone, with the last pod, kubelet may not have heard of it yet. At `changes_at` one changes
    although nothing else does.
    """

    by_name: Mapping[DeviceName, Standing] = field(default_factory=dict)
    by_claims: frozenset[ResourceName] = frozenset()
    names: CardNames = CardNames()
    left: frozenset[DeviceName] = frozenset()
    changes_at: float = math.inf

    def __iter__(self) -> Iterator[Standing]:
        return iter(self.by_name.values())

    def get(self, name: DeviceName) -> Standing | None:
        """Return the standing of the device called *name*; None where there is none."""
        return self.by_name.get(name)

    def refusal(self, name: DeviceName) -> str:
        """Return why Allocate refuses the device called *name* to a new pod; empty: it does not."""
        each = self.by_name.get(name)
        if each is not None and (each.listed or each.named):
            return each.refusal
        return _SHARED_OTHERWISE if name in self.left else ""

    def of(self, resource: ResourceName) -> tuple[Standing, ...]:
        """Return those of the devices that are *resource* by the settings as they are."""
        return self._listed.get(resource, ())

    @cached_property
    def listed(self) -> tuple[Standing, ...]:
        """Return those of the devices that the node has by the settings as they are."""
        return tuple(each for each in self.by_name.values() if each.listed)

    @cached_property
    def _listed(self) -> dict[ResourceName, tuple[Standing, ...]]:
        return grouped((each.name.resource, each) for each in self.listed)


_SHARED_OTHERWISE = "the settings share its hardware in another way now"

_MOST_SETTLING = 3.0
"""Seconds for which a device may be kept before the scheduler hears of it: unlike Unhealthy devices
of a device plugin, a tainted one fails no pod that is on its way."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """All that the standings are made of; times in seconds, `now` since the boot.

    `emptied` are the pods whose last process has ended since we registered with kubelet.
    `by_claims` are the resources that the scheduler hands out by DRA. `inherited` is the fence of
    the last move before the daemon started. The ledger has failed for `uncommitted_for`. Kubelet
    hears of what is kept after `withhold_after`.
    """

    book: Book
    inventory: Inventory
    view: KubeletView = KubeletView()
    emptied: frozenset[PodUid] = frozenset()
    by_claims: frozenset[ResourceName] = frozenset()
    obstacles: Mapping[DeviceName, BlockReason] = field(default_factory=dict)
    inherited: int = 0
    uncommitted_for: float = 0.0
    withhold_after: float = 0.0
    now: float = 0.0

    def patience(self, *, by_claims: bool) -> float:
        """Return after how many seconds whoever allots a kept device hears of it."""
        return min(self.withhold_after, _MOST_SETTLING) if by_claims else self.withhold_after


def standings(facts: NodeFacts, before: Standings) -> Standings:
    """Return the standing of every device; those that are as they were *before* are the same."""
    found: dict[DeviceName, Standing] = {}
    listed = {device.name: device for device in facts.inventory.devices}
    crowded = _crowded(facts)
    may_idle = not (facts.book.marks or facts.uncommitted_for)
    for name, device in (*listed.items(), *_others(facts, listed)):
        known, full = before.get(name), "" if device is None else _any_of(device.keys, crowded)
        is_listed = name in listed
        if may_idle and is_listed and not full and known and _is_still_idle(known, device, facts):
            found[name] = known
        else:
            found[name] = _standing(facts, name, device, known, listed=is_listed, crowded=full)
    leaving = {name for name, each in before.by_name.items() if each.leaving}
    return Standings(
        by_name=found,
        by_claims=facts.by_claims,
        names=facts.inventory.names,
        left=before.left | leaving,
        changes_at=min(
            (
                each.kept_since + facts.patience(by_claims=each.by_claims)
                for each in found.values()
                if each.kept and not each.overdue
            ),
            default=math.inf,
        ),
    )


def _is_still_idle(known: Standing, device: Device | None, facts: NodeFacts) -> bool:
    """Tell whether nobody has *device*, as when its *known* standing was made: that one stays.

    On a large node this is so of most, and to make each again would take ten times as long.
    """
    name = known.name
    return (
        known.idle
        and device is not None
        and known.device == device
        and known.by_claims is (name.resource in facts.by_claims)
        and not facts.book.holdings.concern(name, device.keys)
        and not facts.view.pods_with(name)
    )


def _others(
    facts: NodeFacts, listed: Mapping[DeviceName, Device]
) -> Iterator[tuple[DeviceName, Device | None]]:
    """Yield what the inventory does not list: what pods have all the same, and shared cards.

    Hardware that is gone is there as None, and not as if it had never been. A card that was shared
    by more pods, or by fewer, is there: its pod is admitted again after a reboot.
    """
    inventory, book = facts.inventory, facts.book
    had = {*book.locks, *_waited_for(book)}
    for name in sorted(had - listed.keys()):
        device = inventory.get(name)
        leaving = device and (device.leaving or _SHARED_OTHERWISE)
        yield name, device and replace(device, leaving=leaving)
    for card in inventory.shared_cards:
        if card.name not in had:
            yield card.name, card


def _standing(
    facts: NodeFacts,
    name: DeviceName,
    device: Device | None,
    before: Standing | None,
    *,
    listed: bool,
    crowded: str,
) -> Standing:
    """Return the standing of the device; the one from *before* where it is the same."""
    book, now = facts.book, facts.now
    given = [  # by kubelet to pods
        each for each in book.holdings.naming(name.resource, [name.id]) if each.claim is None
    ]
    pods, awaited = _needing(name, given, facts.view)
    own = book.locks.get(name)
    keys = device.keys if device is not None else frozenset() if own is None else own.keys
    lock = book.lock_on(keys)
    by_claims = name.resource in facts.by_claims
    kept = lock is not None and _is_kept(name, lock, device, book, by_claims=by_claims)
    went_on = before if before is not None and before.kept is kept else None
    inherited = (
        kept
        and lock is not None
        and (lock.fence <= facts.inherited or (went_on is not None and went_on.inherited))
    )
    mark = why_withheld(book, keys)
    patience = facts.patience(by_claims=by_claims)
    kept_since = now if went_on is None else went_on.kept_since
    latest = Standing(
        name=name,
        device=device,
        listed=listed,
        by_claims=by_claims,
        lock=lock,
        owner="" if lock is None else book.owner(lock),
        said=None if lock is None else _said(name, lock, facts),
        since=before.since if before is not None and _is_same(before.lock, lock) else now,
        kept=kept,
        kept_since=kept_since,
        inherited=inherited,
        # After a restart the scheduler has been told; a kubelet that starts again is given time.
        overdue=kept and ((by_claims and inherited) or now - kept_since > patience),
        needed=awaited or bool(pods),
        awaited=awaited,
        emptied=not awaited and pods <= facts.emptied,
        granted=bool(given) or _is_granted(own),
        unstarted=any(each.phase is Phase.PENDING for each in given),
        counted=lock is not None and lock.pod is not None and facts.view.counts(lock.pod),
        crowded="" if by_claims else crowded,  # the scheduler counts the shares of claims
        withheld="" if mark is None else f"{mark}; {mark.message.value.then}",
        quarantined=next((each.device for each in quarantines_on(book, keys)), None),
        drained=book.marks.drain is not None,
        uncommitted=facts.uncommitted_for > patience,
        obstacle=None if lock is None else facts.obstacles.get(lock.device),
    )
    return before if before is not None and before == latest else latest


def _said(name: DeviceName, lock: DeviceLock, facts: NodeFacts) -> FilledMessage:
    blocked = facts.obstacles.get(lock.device)
    said = of_lock(name, lock, blocked, facts.book)
    return replace(said, message=Message.HAS) if lock.state is LockState.HELD else said


def _is_same(one: DeviceLock | None, other: DeviceLock | None) -> bool:
    """Tell whether neither is a lock, or both are one that has been in its state throughout."""
    if one is None or other is None:
        return one is other
    return (one.device, one.state, one.since) == (other.device, other.state, other.since)


def _is_kept(
    name: DeviceName, lock: DeviceLock, device: Device | None, book: Book, *, by_claims: bool
) -> bool:
    """Tell whether *lock* keeps the device away from those who ask for it, unknown to who allots.

    What is HELD the scheduler knows by itself of a claim that has this very device, and kubelet of
    a pod that has it by this name. A claim that has a card in another way, as it was offered
    before, is unknown to the scheduler, and so may be one that kubelet has forgotten.
    """
    if lock.state is not LockState.HELD:
        return True
    if not by_claims:
        return lock.claim is not None or lock.device != name
    if lock.claim is None:
        return True
    claim = book.claims.get(lock.claim)
    forgotten = claim is not None and claim.forgotten
    return forgotten or (device is not None and lock.keys.isdisjoint(device.keys))


def _needing(
    name: DeviceName, given: Iterable[Allocation], view: KubeletView
) -> tuple[frozenset[PodUid | None], bool]:
    """Return the pods that kubelet counts and that have *name*, and whether one yet unknown has.

    *given* is what kubelet gave to pods of it; None is a pod that is yet unknown.
    While kubelet's checkpoint cannot be read, every pod whose Allocation has not ended may be one.
    """
    ours = frozenset(each.pod for each in given)
    return view.pods_with(name) if view.readable else ours, None in ours


def _crowded(facts: NodeFacts) -> Mapping[HardwareKey, str]:
    """Return which replicas no further pod may have, each with the reason.

    Pods keep the replicas above a number that was lowered. For each of these a lower one is given
    to nobody, so that no pod comes to a card which more pods share than may. The first that are
    free are given; of those that pods have, none is for a second pod while the others are enough.
    """
    book = facts.book
    had = {key for lock in book.locks.values() for key in lock.keys if is_replica(key)}
    had |= {key for each in book.allocations.values() for key in each.keys if is_replica(key)}
    found: dict[HardwareKey, str] = {}
    for whole, keys in facts.inventory.replicas.items():
        taken = {key for key in had if whole_of(key) == whole}
        most, now = len(keys), len(taken)
        why = f"{now} shares of the same hardware are in use, and the settings allow {most}"
        free = [key for key in keys if key not in taken]
        found |= dict.fromkeys(free[max(0, most - now) :], why)
        if now > most:
            found |= dict.fromkeys(taken, why)
    return found


def _any_of(keys: frozenset[HardwareKey], told: Mapping[HardwareKey, str]) -> str:
    return next((told[key] for key in keys if key in told), "")


def _is_granted(own: DeviceLock | None) -> bool:
    return own is not None and own.claim is None and own.state is not LockState.FOREIGN


def _waited_for(book: Book) -> Iterator[DeviceName]:
    """Yield the names of all devices that pods were given by the device plugin."""
    for each in book.allocations.values():
        if each.claim is None:
            yield from (name for name, _ in each.names())


def quarantines_on(book: Book, keys: frozenset[HardwareKey]) -> tuple[Quarantine, ...]:
    """Return every quarantine of hardware of *keys*.

    What is quarantined is broken as a whole card, as each of its parts and as a PCI function.
    """
    if not book.marks.quarantines:
        return ()
    places = book.holdings.places
    return tuple(
        each for each in book.marks.quarantines.values() if overlap(each.keys, keys, places)
    )


def why_withheld(
    book: Book, keys: frozenset[HardwareKey], started: frozenset[HardwareKey] = frozenset()
) -> FilledMessage | None:
    """Return why a start on *keys* has to wait for a person, or None when it has not.

    *started* is the hardware that a container of the same pod has started on before. A pod that
    runs is not stopped by either mark: its containers may start again on what they had, and under
    a drain the rest of its containers may follow.
    """
    for each in quarantines_on(book, keys - started):
        return Message.QUARANTINED.filled(each.device, reason=str(each.mark))
    drain = None if started else book.marks.drain
    return None if drain is None else Message.DRAINING.filled(reason=str(drain))


def belongs_to(lock: DeviceLock, book: Book, keys: frozenset[HardwareKey] = frozenset()) -> str:
    """Return why *lock* keeps others from its device, naming who has it.

    *keys* are what is asked for. Where one of them is the same hardware under the name that another
    driver has for it, the text says so.
    """
    places, owner = book.holdings.places, book.holder(lock)
    same_at = ", ".join(pci_addresses(same_functions(lock.keys, keys, places)))
    device = f"{lock.device} (the same hardware: {same_at})" if same_at else str(lock.device)
    if lock.state is LockState.FOREIGN:
        return f"{device} is in use by something holdfast did not grant it to: {lock.evidence}"
    if lock.state is LockState.HELD:
        return f"{device} is held by {owner}"
    return f"{device} is not free of {owner} yet ({lock.state.value}): {lock.evidence}"
