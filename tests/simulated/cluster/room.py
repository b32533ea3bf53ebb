"""What a scheduler has left to give out: devices, counters of their pools, and shared capacity."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulated.cluster.candidates import (
    KEEPS_OUT,
    Candidate,
    candidates,
    counters_of,
    taints,
    untolerated,
)
from simulated.cluster.rules import amount_of
from simulated.cluster.store import Object

_Id = tuple[str, str, str]


class Room:
    """What is left beside the allocations of some claims; it shrinks with each that is added."""

    def __init__(self, slices: Sequence[Object], results: Iterable[Object]) -> None:
        """Start from the *slices* and the *results* of every allocation."""
        self._taken: set[_Id] = set()
        """What is given as a whole."""
        self._used: set[_Id] = set()
        """What is given, as a whole or in shares: its counters are consumed."""
        self._consumed: Counter[tuple[_Id, str]] = Counter()
        for each in results:
            if each.get("adminAccess"):
                continue
            id_ = each["driver"], each["pool"], each["device"]
            self._used.add(id_)
            if "shareID" not in each:
                self._taken.add(id_)
            for name, amount in each.get("consumedCapacity", {}).items():
                self._consumed[id_, name] += amount_of(amount)
        self._left = counters_of(slices)
        for candidate in candidates(slices):
            if candidate.id in self._used:
                self._left.subtract(candidate.counters)

    def copy(self) -> "Room":
        """Return the same, to be used up apart from this."""
        other = Room((), ())
        other._taken = set(self._taken)
        other._used = set(self._used)
        other._consumed = self._consumed.copy()
        other._left = self._left.copy()
        return other

    def fits(self, each: Candidate, wanted: Mapping[str, Any]) -> bool:
        """Tell whether a request may be given *each*.

        adminAccess is exempt from what others have, and from neither taints, counters nor capacity
        (allocator_incubating.go of 1.36.2).
        """
        if each.id in self._taken and not wanted.get("adminAccess"):
            return False
        if untolerated(taints(each, KEEPS_OUT), wanted.get("tolerations", ())):
            return False
        # Those of a device are consumed once, by however many it is shared.
        consumes = each.id not in self._used or not each.is_shared
        if consumes and not self._has_counters(each):
            return False
        if each.is_shared:
            consumed = consumed_by(each, wanted)
            return consumed is not None and all(
                self._consumed[each.id, name] + amount <= amount_of(each.capacity[name]["value"])
                for name, amount in consumed.items()
            )
        return True

    def _has_counters(self, each: Candidate) -> bool:
        return all(self._left[key] >= amount for key, amount in each.counters.items())

    def take(self, each: Candidate, wanted: Mapping[str, Any]) -> None:
        """Give *each*, which fits, to a request."""
        if wanted.get("adminAccess"):
            return
        if each.is_shared:
            for name, amount in (consumed_by(each, wanted) or {}).items():
                self._consumed[each.id, name] += amount
        else:
            self._taken.add(each.id)
        if each.id not in self._used:
            self._used.add(each.id)
            self._left.subtract(each.counters)


def consumed_by(each: Candidate, wanted: Mapping[str, Any]) -> dict[str, int] | None:
    """Return what one allocation takes of each capacity; None where the policy forbids it."""
    asked = wanted.get("capacity", {}).get("requests", {})
    if not asked.keys() <= each.capacity.keys():
        return None
    found: dict[str, int] = {}
    for name, capacity in each.capacity.items():
        policy = capacity.get("requestPolicy", {})
        default = amount_of(policy.get("default", capacity["value"]))
        amount = _allowed(amount_of(asked[name]), policy) if name in asked else default
        if amount is None:
            return None
        found[name] = amount
    return found


def _allowed(amount: int, policy: Mapping[str, Any]) -> int | None:
    """Return *amount* as the policy rounds it up, None where it is too much."""
    if values := policy.get("validValues"):
        return min((each for each in map(amount_of, values) if each >= amount), default=None)
    if valid := policy.get("validRange"):
        amount = max(amount, amount_of(valid["min"]))
        return None if "max" in valid and amount > amount_of(valid["max"]) else amount
    return amount
