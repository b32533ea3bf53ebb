"""Why the scheduler is to give a device to no new claim.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#device-taints-and-tolerations
"""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.book.locks import LockState
from holdfast.model.devices import Fault, FaultKind
from holdfast.model.dra.resourceslice import Taint

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
HELD, UNHEALTHY = "held", "unhealthy"
"""The names of the taints' keys, below the driver's own name."""
LEAVING = "leaving"
"""What withholds a device that the settings leave out, or call otherwise, once it is free."""

_WITHHOLDING = frozenset(
    {LockState.RELEASING, LockState.RECLAIMING, LockState.QUARANTINED, LockState.FOREIGN}
)


class TaintFacts(Struct, frozen=True, kw_only=True):
    """What decides whether new claims are given a device.

    `lock` is the state of any lock on its keys. `for_claim`: a claim has that lock, which the
    scheduler knows by itself; an Allocation of the device plugin's it cannot know. `brief`: the
    lock has not withheld the device for long enough to be told. `quarantined` and `drained` are by
    hand. `uncommitted`: the ledger cannot write, so nothing can be prepared.
    """

    faults: tuple[Fault, ...] = ()
    lock: LockState = LockState.FREE
    for_claim: bool = True
    brief: bool = False
    quarantined: bool = False
    drained: bool = False
    leaving: bool = False
    uncommitted: bool = False


def withholds(lock: LockState, *, for_claim: bool) -> bool:
    """Tell whether a lock in that state keeps the device from claims that the scheduler allows."""
    return lock in _WITHHOLDING or (lock is LockState.HELD and not for_claim)


def taints(driver: str, facts: TaintFacts, *, evict_lost: bool = False) -> tuple[Taint, ...]:
    """Return the taints of a device; *evict_lost*: hardware that is gone ends its pods."""
    found = []
    if held := _held(facts):
        found.append(Taint(key=f"{driver}/{HELD}", value=held, effect=NO_SCHEDULE))
    if facts.faults:
        kinds = [each.kind for each in facts.faults]
        lost = FaultKind.GONE in kinds
        found.append(
            Taint(
                key=f"{driver}/{UNHEALTHY}",
                value=(FaultKind.GONE if lost else kinds[0]).value,
                effect=NO_EXECUTE if lost and evict_lost else NO_SCHEDULE,
            )
        )
    return tuple(found)


def together(each: Iterable[tuple[Taint, ...]]) -> tuple[Taint, ...]:
    """Return the taints of devices that are given together: of each key the first, the worst."""
    found: dict[str, Taint] = {}
    for taint in (taint for one in each for taint in one):
        known = found.setdefault(taint.key, taint)
        if known.effect == NO_SCHEDULE and taint.effect == NO_EXECUTE:
            found[taint.key] = taint
    return tuple(found.values())


def _held(facts: TaintFacts) -> str:
    if facts.quarantined:
        return LockState.QUARANTINED.value
    if withholds(facts.lock, for_claim=facts.for_claim) and not facts.brief:
        return facts.lock.value
    if facts.drained:
        return "drain"
    if facts.leaving:
        return LEAVING
    return "uncommitted" if facts.uncommitted else ""
