"""What an API server does to the objects of DRA: fields that it drops, and objects it refuses.

The limits and texts that `tests/golden` has a recording of are held against it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import UTC, datetime
from typing import Any

TAINTS = "DRADeviceTaints"
COUNTERS = "DRAPartitionableDevices"
SHARES = "DRAConsumableCapacity"

GATES: Mapping[int, frozenset[str]] = {
    34: frozenset(),
    35: frozenset(),
    36: frozenset({TAINTS, COUNTERS, SHARES}),
    37: frozenset({TAINTS, COUNTERS, SHARES}),
}
"""The feature gates that are on by default, by the minor version of Kubernetes."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)
_AMOUNT = re.compile(r"(\d+)([A-Za-z]*)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    unit: 1 << 10 * (power + 1) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_EFFECTS = ("NoExecute", "NoSchedule")
_KINDS = ("bool", "int", "string", "version")
_MOST_DEVICES, _MOST_ADVANCED, _MOST_TAINTS, _MOST_TAINTS_BEFORE = 128, 64, 16, 4
_MOST_ATTRIBUTES, _MOST_SETS, _MOST_COUNTERS, _MOST_CONSUMED = 32, 8, 32, 2
_MOST_LABEL, _MOST_POOL, _MOST_IDENTIFIER, _MOST_VALUE = 63, 253, 32, 64
"""Bytes; `_MOST_VALUE` is for what an attribute has as a string or a version."""


class InvalidError(Exception):
    """An object is not valid; the message says which field."""


class Rules:
    """The rules of one version of Kubernetes with its gates as they are by default, or as given."""

    def __init__(self, minor: int = 36, gates: Iterable[str] | None = None) -> None:
        """Be Kubernetes 1.*minor*."""
        self.minor = minor
        self.gates = GATES[minor] if gates is None else frozenset(gates)

    def without_dropped(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return *sent* without what belongs to gates that are off, and with what a server sets."""
        if sent.get("kind") != "ResourceSlice":
            return sent
        spec = sent.get("spec", {})
        if COUNTERS not in self.gates:
            spec.pop("sharedCounters", None)
        for device in spec.get("devices", ()):
            if TAINTS not in self.gates:
                device.pop("taints", None)
            if COUNTERS not in self.gates:
                device.pop("consumesCounters", None)
            if SHARES not in self.gates:
                device.pop("allowMultipleAllocations", None)
                for capacity in device.get("capacity", {}).values():
                    capacity.pop("requestPolicy", None)
            for taint in device.get("taints", ()):
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                taint.setdefault("timeAdded", now)
        return sent

    def check(self, made: Mapping[str, Any]) -> None:
        """Raise InvalidError for a ResourceSlice that the API does not allow."""
        if made.get("kind") == "ResourceSlice":
            for problem in self._problems(made.get("spec", {})):
                raise InvalidError(problem)

    def check_change(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Raise InvalidError where a field was changed that cannot be."""
        if after.get("kind") == "ResourceSlice":
            for path in (("pool", "name"), ("driver",), ("nodeName",)):
                was, now = before["spec"], after["spec"]
                for part in path:
                    was, now = was.get(part), now.get(part)
                if was != now:
                    field = ".".join(("spec", *path))
                    raise InvalidError(_invalid(field, now, "field is immutable"))

    def _problems(self, spec: Mapping[str, Any]) -> Iterator[str]:
        yield from _name_problems("spec.driver", spec.get("driver", ""), _MOST_LABEL)
        yield from _pool_problems(spec.get("pool", {}))
        fields = [field for field in _NODE_FIELDS if spec.get(field)]
        if len(fields) != 1:
            wanted = ", ".join(f"`{field}`" for field in _NODE_FIELDS)
            told = f"{{{', '.join(fields)}}}"
            yield _invalid("spec", told, f"exactly one of {wanted} is required")
        devices, counters = spec.get("devices") or (), spec.get("sharedCounters") or ()
        if devices and counters and self.minor >= 35:
            yield _invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
        advanced = any(each.get("taints") or each.get("consumesCounters") for each in devices)
        yield from _too_many("spec.devices", devices, _MOST_ADVANCED if advanced else _MOST_DEVICES)
        names = [each.get("name", "") for each in devices]
        for place, each in enumerate(devices):
            field = f"spec.devices[{place}]"
            if names[place] in names[:place]:
                yield f"{field}.name: Duplicate value: {_quoted(names[place])}"
            yield from self._device_problems(field, each)
            if self.minor == 34:
                yield from _reference_problems(field, each, counters)
        yield from _counter_problems(counters)

    def _device_problems(self, field: str, device: Mapping[str, Any]) -> Iterator[str]:
        yield from _label_problems(f"{field}.name", device.get("name", ""))
        yield from _attribute_problems(
            field, device.get("attributes") or {}, device.get("capacity") or {}
        )
        taints = device.get("taints") or ()
        most = _MOST_TAINTS_BEFORE if self.minor == 34 else _MOST_TAINTS
        yield from _too_many(f"{field}.taints", taints, most)
        for place, taint in enumerate(taints):
            yield from self._taint_problems(f"{field}.taints[{place}]", taint)
        consumed = device.get("consumesCounters") or ()
        yield from _too_many(f"{field}.consumesCounters", consumed, _MOST_CONSUMED)
        yield from _capacity_problems(field, device)

    def _taint_problems(self, field: str, taint: Mapping[str, Any]) -> Iterator[str]:
        if not taint.get("key"):
            yield f"{field}.key: Required value"
        value = taint.get("value", "")
        if _bytes(value) > _MOST_LABEL:
            yield _invalid(f"{field}.value", value, f"must be no more than {_MOST_LABEL} bytes")
        if not _LABEL_VALUE.fullmatch(value):
            yield _invalid(f"{field}.value", value, "must be the value of a label")
        effects = (*_EFFECTS, "None") if self.minor > 34 else _EFFECTS
        yield from _unsupported(f"{field}.effect", taint.get("effect", ""), effects)


def _pool_problems(pool: Mapping[str, Any]) -> Iterator[str]:
    field, name = "spec.pool.name", pool.get("name", "")
    yield from _too_long(field, name, _MOST_POOL)
    for part in name.split("/"):  # a driver may have several pools on a node
        yield from _name_problems(field, part, _MOST_POOL)
    if (count := pool.get("resourceSliceCount", 0)) < 1:
        yield _invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if (number := pool.get("generation", 0)) < 0:
        yield _invalid("spec.pool.generation", number, "must be greater than or equal to zero")


def _attribute_problems(
    field: str, attributes: Mapping[str, Any], capacity: Mapping[str, Any]
) -> Iterator[str]:
    if (count := len(attributes) + len(capacity)) > _MOST_ATTRIBUTES:
        why = f"the total number of attributes and capacities must not exceed {_MOST_ATTRIBUTES}"
        yield _invalid(field, count, why)
    for name, value in attributes.items():
        yield from _identifier_problems(f"{field}.attributes", name)
        yield from _value_problems(f"{field}.attributes[{name}]", value)
    for name, value in capacity.items():
        yield from _identifier_problems(f"{field}.capacity", name)
        if not _QUANTITY.fullmatch(amount := str(value.get("value", ""))):
            yield _invalid(f"{field}.capacity[{name}].value", amount, "must be a quantity")


def _identifier_problems(field: str, name: str) -> Iterator[str]:
    """Yield what is wrong with ``domain/identifier``, or an identifier alone."""
    domain, _, identifier = name.rpartition("/")
    yield from _too_long(field, domain, _MOST_LABEL)
    yield from _too_long(field, identifier, _MOST_IDENTIFIER)
    if not _IDENTIFIER.fullmatch(identifier):
        yield _invalid(field, identifier, "must be a C identifier")


def _value_problems(field: str, value: Mapping[str, Any]) -> Iterator[str]:
    if len(value) != 1:
        yield _invalid(field, value, "exactly one value must be specified")
    for kind, content in value.items():
        yield from _unsupported(field, kind, _KINDS)
        if kind in {"string", "version"}:
            yield from _too_long(f"{field}.{kind}", content, _MOST_VALUE)
        if kind == "version" and not _VERSION.fullmatch(content):
            why = "must be a string compatible with semver.org spec 2.0.0"
            yield _invalid(f"{field}.version", content, why)


def _capacity_problems(field: str, device: Mapping[str, Any]) -> Iterator[str]:
    for name, capacity in (device.get("capacity") or {}).items():
        at = f"{field}.capacity[{name}].requestPolicy"
        policy = capacity.get("requestPolicy")
        if policy is not None and not device.get("allowMultipleAllocations"):
            yield f"{at}: Forbidden: allowMultipleAllocations must be true"
        elif policy is not None:
            yield from _policy_problems(at, policy, amount_of(capacity["value"]))


def _policy_problems(field: str, policy: Mapping[str, Any], most: int) -> Iterator[str]:
    values = [amount_of(each) for each in policy.get("validValues") or ()]
    bounds = policy.get("validRange")
    if values and bounds:
        why = "only one of validValues and validRange may be set"
        yield f"{field}.validRange: Forbidden: {why}"
    if not (values or bounds):
        return
    if "default" not in policy:
        yield f"{field}.default: Required value"
        return
    default = amount_of(policy["default"])
    if values and (default not in values or values != sorted(set(values)) or values[-1] > most):
        why = "must be in order, within the capacity, and have the default"
        yield _invalid(f"{field}.validValues", policy["validValues"], why)
    if bounds:
        least, highest = amount_of(bounds["min"]), amount_of(bounds.get("max", str(most)))
        if not least <= highest <= most or not least <= default <= highest:
            why = "must be in order, within the capacity, and have the default"
            yield _invalid(f"{field}.validRange", bounds, why)


def _counter_problems(sets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _too_many("spec.sharedCounters", sets, _MOST_SETS)
    for place, each in enumerate(sets):
        field, counters = f"spec.sharedCounters[{place}]", each.get("counters", {})
        yield from _label_problems(f"{field}.name", each.get("name", ""))
        if not counters:
            yield f"{field}.counters: Required value"
        yield from _too_many(f"{field}.counters", counters, _MOST_COUNTERS)
        for name in counters:
            yield from _label_problems(f"{field}.counters", name)


def _reference_problems(
    field: str, device: Mapping[str, Any], sets: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield which counters of *device* are not in its slice; from 1.35 on they are in another."""
    for place, use in enumerate(device.get("consumesCounters") or ()):
        if all(each.get("name") != use["counterSet"] for each in sets):
            why = "must reference a counterSet defined in the ResourceSlice sharedCounters"
            at = f"{field}.consumesCounters[{place}].counterSet"
            yield _invalid(at, use["counterSet"], why)


def _label_problems(field: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{field}: Required value"
    if _bytes(name) > _MOST_LABEL:
        yield _invalid(field, name, f"must be no more than {_MOST_LABEL} characters")
    if not _LABEL.fullmatch(name):
        yield _invalid(field, name, "must be a lowercase RFC 1123 label")


def _name_problems(field: str, name: str, most: int) -> Iterator[str]:
    if not name:
        yield f"{field}: Required value"
    yield from _too_long(field, name, most)
    if not _SUBDOMAIN.fullmatch(name):
        yield _invalid(field, name, "must be a lowercase RFC 1123 subdomain")


def _too_many(field: str, items: Sized, most: int) -> Iterator[str]:
    if len(items) > most:
        yield f"{field}: Too many: {len(items)}: must have at most {most} items"


def _too_long(field: str, text: str, most: int) -> Iterator[str]:
    if _bytes(text) > most:
        yield f"{field}: Too long: may not be more than {most} bytes"


def _unsupported(field: str, value: str, known: Iterable[str]) -> Iterator[str]:
    if value not in (known := sorted(known)):
        told = ", ".join(map(_quoted, known))
        yield f"{field}: Unsupported value: {_quoted(value)}: supported values: {told}"


def _invalid(field: str, value: object, why: str) -> str:
    return f"{field}: Invalid value: {_quoted(value)}: {why}"


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bytes(text: str) -> int:
    return len(text.encode())


def amount_of(quantity: str) -> int:
    """Return a whole amount, such as that of ``80Gi``."""
    match = _AMOUNT.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no whole amount")
    return int(match[1]) * _UNITS[match[2]]
