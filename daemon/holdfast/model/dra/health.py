"""How devices are: the taints that the scheduler reads, and the health that a pod shows."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.book.book import LockState
from holdfast.model.book.messages import Message, sentence, together
from holdfast.model.book.standing import Standing, Standings
from holdfast.model.devices import FaultKind
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.resourceslice import Taint, label
from holdfast.model.ids import DeviceName

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
HELD, UNHEALTHY = "held", "unhealthy"
"""The names of the taints' keys, below the driver's own name."""


def taints(driver: str, standing: Standing, *, evict_lost: bool = False) -> tuple[Taint, ...]:
    """Return the taints of a device; *evict_lost*: hardware that is gone ends its pods."""
    found = []
    if held := standing.withheld_as:
        found.append(Taint(key=f"{driver}/{HELD}", value=held, effect=NO_SCHEDULE))
    if standing.device is not None and standing.device.faults:
        kinds = [each.kind for each in standing.device.faults]
        lost = FaultKind.GONE in kinds
        found.append(
            Taint(
                key=f"{driver}/{UNHEALTHY}",
                value=(FaultKind.GONE if lost else kinds[0]).value,
                effect=NO_EXECUTE if lost and evict_lost else NO_SCHEDULE,
            )
        )
    return tuple(found)


def worst_taints(each: Iterable[tuple[Taint, ...]]) -> tuple[Taint, ...]:
    """Return the taints of devices that are given together: of each key the first, the worst."""
    found: dict[str, Taint] = {}
    for taint in (taint for one in each for taint in one):
        known = found.setdefault(taint.key, taint)
        if known.effect == NO_SCHEDULE and taint.effect == NO_EXECUTE:
            found[taint.key] = taint
    return tuple(found.values())


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """One device of the pool, by its name in ResourceSlices.

    `message` says who has it or what is wrong with it; empty for a device that is free and well.
    """

    name: str
    healthy: bool
    message: str = ""


def healths(
    advertised: Iterable[AdvertisedDevice], standings: Standings
) -> tuple[DeviceHealth, ...]:
    """Return the health of everything *advertised*, and of what is gone and still has a lock."""
    found = {each.name: _health(each, standings) for each in advertised}
    for standing in standings:
        if standing.by_claims and standing.device is None:
            name = label(standings.names.whole(standing.name))
            healthy, message = _one(standing.name, standing)
            found.setdefault(name, DeviceHealth(name=name, healthy=healthy, message=message))
    return tuple(found[name] for name in sorted(found))


def _health(told: AdvertisedDevice, standings: Standings) -> DeviceHealth:
    """Return the health of devices that are given together: that of the worst of them.

    Of one that is shared it is that of the best: what keeps one share is nothing to the others.
    """
    found = [_one(name, standings.get(name)) for name in told.devices]
    healthy = (any if told.shared else all)(well for well, _ in found)
    message = together(message for _, message in found)
    return DeviceHealth(name=told.name, healthy=healthy, message=message)


def _one(name: DeviceName, standing: Standing | None) -> tuple[bool, str]:
    """Tell whether a pod that has the device can use it, and what is to be said of it."""
    if standing is None or standing.device is None:
        owner = "" if standing is None else standing.owner
        missing = Message.MISSING_HELD if owner else Message.MISSING
        return False, sentence(missing.filled(name, owner=owner))
    if standing.fault:
        return False, sentence(Message.FAULT.filled(name, reason=standing.fault))
    if standing.lock is not None:
        return standing.state is LockState.HELD, standing.kept_by
    return True, standing.withheld
