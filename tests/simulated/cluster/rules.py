"""What an API server does to the objects of DRA: fields that it drops, and objects it refuses."""

import re
from collections.abc import Iterable, Iterator, Mapping
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
_MOST_DEVICES, _MOST_ADVANCED = 128, 64
_MOST_ATTRIBUTES, _MOST_TEXT = 32, 64
_MOST_SETS, _MOST_COUNTERS, _MOST_CONSUMED = 8, 32, 2


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
        """Raise Invalid for a ResourceSlice that the API does not allow."""
        if made.get("kind") == "ResourceSlice":
            for problem in self._problems(made.get("spec", {})):
                raise InvalidError(problem)

    def check_change(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Raise Invalid where a field was changed that cannot be."""
        if after.get("kind") == "ResourceSlice":
            for field in ("driver", "nodeName"):
                if before["spec"].get(field) != after["spec"].get(field):
                    raise InvalidError(f"spec.{field}: Invalid value: field is immutable")

    def _problems(self, spec: Mapping[str, Any]) -> Iterator[str]:
        if not _SUBDOMAIN.fullmatch(spec.get("driver", "")) or len(spec["driver"]) > 63:
            yield "spec.driver: Invalid value"
        pool = spec.get("pool", {})
        if not 0 < len(pool.get("name", "")) <= 253:
            yield "spec.pool.name: Invalid value"
        if pool.get("resourceSliceCount", 0) < 1 or pool.get("generation", 0) < 0:
            yield "spec.pool: Invalid value"
        if sum(bool(spec.get(field)) for field in _NODE_FIELDS) != 1:
            yield "spec: Invalid value: exactly one node field is required"
        devices, counters = spec.get("devices") or (), spec.get("sharedCounters") or ()
        if devices and counters and self.minor >= 35:
            yield "spec: Invalid value: devices and sharedCounters are mutually exclusive"
        advanced = any(each.get("taints") or each.get("consumesCounters") for each in devices)
        if len(devices) > (_MOST_ADVANCED if advanced else _MOST_DEVICES):
            yield "spec.devices: Too many"
        names = [each.get("name", "") for each in devices]
        if len(set(names)) != len(names):
            yield "spec.devices: Duplicate value"
        for place, each in enumerate(devices):
            for problem in self._device_problems(each):
                yield f"spec.devices[{place}].{problem}"
        yield from _counter_problems(counters)

    def _device_problems(self, device: Mapping[str, Any]) -> Iterator[str]:
        if not _is_label(device.get("name", "")):
            yield "name: Invalid value"
        yield from _attribute_problems(device.get("attributes") or {}, device.get("capacity") or {})
        taints = device.get("taints") or ()
        if len(taints) > (4 if self.minor == 34 else 16):
            yield "taints: Too many"
        for taint in taints:
            known = {"NoSchedule", "NoExecute"} | ({"None"} if self.minor > 34 else set())
            if taint.get("effect") not in known:
                yield "taints.effect: Unsupported value"
            value = taint.get("value", "")
            if len(value) > 63 or not _LABEL_VALUE.fullmatch(value) or not taint.get("key"):
                yield "taints: Invalid value"
        if len(device.get("consumesCounters") or ()) > _MOST_CONSUMED:
            yield "consumesCounters: Too many"
        yield from _capacity_problems(device)


def _attribute_problems(
    attributes: Mapping[str, Any], capacity: Mapping[str, Any]
) -> Iterator[str]:
    if len(attributes) + len(capacity) > _MOST_ATTRIBUTES:
        yield "attributes: Too many"
    for name in (*attributes, *capacity):
        domain, _, identifier = name.rpartition("/")
        if len(domain) > 63 or len(identifier) > 32 or not _IDENTIFIER.fullmatch(identifier):
            yield f"attributes[{name}]: Invalid value"
    for name, value in attributes.items():
        if len(value) != 1:
            yield f"attributes[{name}]: exactly one value must be specified"
        for kind, content in value.items():
            yield from _value_problems(name, kind, content)
    for name, value in capacity.items():
        if not _QUANTITY.fullmatch(str(value.get("value", ""))):
            yield f"capacity[{name}]: Invalid value"


def _capacity_problems(device: Mapping[str, Any]) -> Iterator[str]:
    for name, capacity in (device.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy")
        if policy is not None and not device.get("allowMultipleAllocations"):
            yield f"capacity[{name}].requestPolicy: allowMultipleAllocations must be true"
        elif policy is not None:
            for problem in _policy_problems(policy, amount_of(capacity["value"])):
                yield f"capacity[{name}].requestPolicy.{problem}"


def _policy_problems(policy: Mapping[str, Any], most: int) -> Iterator[str]:
    values = [amount_of(each) for each in policy.get("validValues") or ()]
    bounds = policy.get("validRange")
    if values and bounds:
        yield "validRange: only one of validValues and validRange may be set"
    if not (values or bounds):
        return
    if "default" not in policy:
        yield "default: Required value"
        return
    default = amount_of(policy["default"])
    if values and (default not in values or values != sorted(set(values)) or values[-1] > most):
        yield "validValues: Invalid value"
    if bounds:
        least, highest = amount_of(bounds["min"]), amount_of(bounds.get("max", str(most)))
        if not least <= highest <= most or not least <= default <= highest:
            yield "validRange: Invalid value"


def _counter_problems(sets: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    sets = list(sets)
    if len(sets) > _MOST_SETS:
        yield "spec.sharedCounters: Too many"
    for each in sets:
        if not 0 < len(each.get("counters", {})) <= _MOST_COUNTERS:
            yield "spec.sharedCounters.counters: Too many"
        if not all(map(_is_label, (each.get("name", ""), *each.get("counters", {})))):
            yield "spec.sharedCounters: Invalid value"


def _value_problems(name: str, kind: str, content: object) -> Iterator[str]:
    if kind in {"string", "version"} and len(str(content)) > _MOST_TEXT:
        yield f"attributes[{name}].{kind}: Too long"
    if kind == "version" and not _VERSION.fullmatch(str(content)):
        yield f"attributes[{name}].version: must be a semantic version"
    if kind not in {"string", "int", "bool", "version"}:
        yield f"attributes[{name}].{kind}: Unsupported value"


def amount_of(quantity: str) -> int:
    """Return a whole amount, such as that of ``80Gi``."""
    match = _AMOUNT.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no whole amount")
    return int(match[1]) * _UNITS[match[2]]


def _is_label(text: str) -> bool:
    return 0 < len(text) <= 63 and _LABEL.fullmatch(text) is not None
