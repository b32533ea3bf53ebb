"""Which devices a scheduler knows: those of complete pools, with their taints and attributes."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from simulated.cluster.store import Object

_EQUALS = re.compile(r'device\.(?:driver|attributes\["([^"]+)"\]\.(\w+)) == (?:"([^"]*)"|(\d+))')
_IN = re.compile(r'(!\()?"(\w+)" in device\.attributes\["([^"]+)"\]\)?')
_HAS = re.compile(r'has\(device\.attributes\["([^"]+)"\]\.(\w+)\)')
KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})


class Candidate(Struct, frozen=True, kw_only=True):
    """A device of a pool that is complete, and the node that has it."""

    driver: str
    pool: str
    node: str
    device: Mapping[str, Any]

    @property
    def id(self) -> tuple[str, str, str]:
        """Return what a result of an allocation names."""
        return self.driver, self.pool, self.device["name"]

    @property
    def is_shared(self) -> bool:
        """Tell whether several claims may have it."""
        return bool(self.device.get("allowMultipleAllocations"))

    @property
    def capacity(self) -> Mapping[str, Any]:
        """Return its capacities, by the names that claims use."""
        found: Mapping[str, Any] = self.device.get("capacity", {})
        return found

    @property
    def counters(self) -> Counter[tuple[str, ...]]:
        """Return what it consumes of the counters of its pool."""
        return Counter(
            {
                (self.driver, self.pool, use["counterSet"], name): int(amount["value"])
                for use in self.device.get("consumesCounters", ())
                for name, amount in use["counters"].items()
            }
        )


def candidates(slices: Iterable[Object]) -> list[Candidate]:
    """Return the devices of every pool whose newest slices are all there."""
    return [
        Candidate(
            driver=spec["driver"],
            pool=spec["pool"]["name"],
            node=spec["nodeName"],
            device=device,
        )
        for specs in _pools(slices)
        for spec in specs
        for device in spec.get("devices", ())
    ]


def counters_of(slices: Iterable[Object]) -> Counter[tuple[str, ...]]:
    """Return the counters of every pool while nothing is taken."""
    left: Counter[tuple[str, ...]] = Counter()
    for specs in _pools(slices):
        for spec in specs:
            for counters in spec.get("sharedCounters", ()):
                for name, amount in counters["counters"].items():
                    key = (spec["driver"], spec["pool"]["name"], counters["name"], name)
                    left[key] = int(amount["value"])
    return left


def _pools(slices: Iterable[Object]) -> list[list[Object]]:
    """Return the newest slices of each pool that has them all."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for each in slices:
        spec = each["spec"]
        pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    newest = map(_newest, pools.values())
    return [each for each in newest if len(each) == each[0]["pool"]["resourceSliceCount"]]


def _newest(specs: Sequence[Object]) -> list[Object]:
    generation = max(each["pool"]["generation"] for each in specs)
    return [each for each in specs if each["pool"]["generation"] == generation]


def taints(each: Candidate, effects: frozenset[str]) -> list[Object]:
    return [taint for taint in each.device.get("taints", ()) if taint["effect"] in effects]


def untolerated(taints: Iterable[Object], tolerations: Sequence[Object]) -> bool:
    return any(not any(_tolerates(each, taint) for each in tolerations) for taint in taints)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect", taint["effect"]) != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return bool(toleration.get("key", taint["key"]) == taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (
        taint["key"],
        taint.get("value", ""),
    )


def selects(expression: str, each: Candidate) -> bool:
    """Tell whether the CEL *expression* is true: ``has``, ``in`` and ==, joined by &&.

    As in CEL, what comes after a part that is false is not looked at, and to compare an attribute
    that a device does not have is an error.
    """
    return all(_is_true(part.strip(), each) for part in expression.split("&&"))


def _is_true(part: str, each: Candidate) -> bool:
    if (match := _HAS.fullmatch(part)) is not None:
        return _attribute(each, *match.groups()) is not None
    if (match := _IN.fullmatch(part)) is not None:
        negated, name, domain = match.groups()
        return (_attribute(each, domain, name) is not None) is not bool(negated)
    match = _EQUALS.fullmatch(part)
    if match is None:
        raise ValueError(f"this scheduler does not know the expression {part!r}")
    domain, name, text, number = match.groups()
    found = each.driver if name is None else _attribute(each, domain, name)
    if found is None:
        raise KeyError(f"{each.device['name']} has no attribute {domain}/{name}")
    return found == (int(number) if number is not None else text)


def _attribute(each: Candidate, domain: str, name: str) -> object:
    """Return the value of an attribute; names without a domain are of the driver's."""
    attributes = each.device.get("attributes", {})
    found = attributes.get(f"{domain}/{name}")
    if found is None and domain == each.driver:
        found = attributes.get(name)
    return None if found is None else next(iter(found.values()))
