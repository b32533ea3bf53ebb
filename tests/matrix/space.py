"""What the settings accept, on which nodes: the axes, and combinations of their values.

The axes come from the settings' own types: each choice, truth and duration of the schema is one,
with all its values or with some that differ. Of text, numbers and lists any that the type allows is
drawn, beside some that are here.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Literal, get_args, get_origin

from msgspec import Struct

from holdfast.model.tpu.generations import GENERATIONS
from holdfast.settings import Settings, known_paths
from holdfast.settings import plain as defaults
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.types import Duration, Interval
from matrix import drawn

GPU, SHARED, TPU = "nvidia.com/gpu", "nvidia.com/gpu.shared", "google.com/tpu"
VF, MACHINE = "example.com/vf", "example.com/gpu-vm"
_SMALL = "nvidia.com/mig-1g.10gb"
DRA = "dra"
Choice = dict[str, Any]
"""A value for each axis, by its name: the path of a key, or what begins with ``node.``."""

FIXED: Mapping[str, str] = {
    "stateDir": "the stage's",
    "host": "the stage's",
    "http": "the stage has no port",
    "kubelet.pluginDir": "the stage's",
    "kubelet.podResourcesSocket": "the stage's",
    "kubelet.registerTimeout": "says only how long a slow machine may take",
    "cdi.specDir": "the stage's",
    "labels.folder": "the stage's",
    "gpu.driverRoot": "the axis node.root",
    "gpu.driverRootOnHost": "the axis node.root",
    "gpu.devRoot": "the stage's device files are in one place",
    "gpu.callTimeout": "says only how long a slow machine may take",
    "tpu.generation": "has to be that of the hardware",
    "tpu.envFile": "a file of the machine's image",
    "named": "the axis node.by, and changes of labels",
    "allocate.commitTimeout": "says only how long a slow disk may take",
    "dra.nodeName": "the stage's",
    "dra.kubeletRoot": "the stage's",
    "dra.claimState": "the stage's",
    "dra.serviceAccount": "the stage's",
    "liveness.loopStall": "the stage has no port",
}
"""Keys and sections that are no axes, and why."""

_SHORT = ("200ms", "1s", "0.000001ms", 1e-9)
LONG = "1" + "0" * 300
"""Never over, in more digits than a number has."""
_TIMES: Mapping[str, tuple[str | float, ...]] = {
    "allocate.pendingTimeout": ("60s", "30s", LONG),
    "dra.unprepareWait": ("120s", "0s", LONG),
    "drift.beat": ("60s", "1s", LONG),
    "drift.settle": ("30s", "0s", LONG),
    "gate.wait": ("500ms", "0s", "5s"),
    "gate.callerLookup": ("1s", "0s", LONG),
    "gpu.memoryDeadline": ("60s", "0s", LONG),
    "gpu.healthQuiet": ("60s", "0s", LONG),
    "kubelet.question.idleInterval": ("200ms", "2s", LONG),
    "kubelet.question.minInterval": ("50ms", "0s", "1s"),
    "kubelet.question.settle": ("50ms", "0s", "1s"),
    "kubelet.question.timeout": ("2s", "5s", LONG),
    "reclaim.evidenceAge": ("1s", "5s", LONG),
    "reclaim.foreignScan": ("60s", "200ms", LONG),
    "reclaim.killGrace": ("10s", "0s", LONG),
    "reclaim.leakGrace": ("10s", "0s", LONG),
    "reclaim.letGoGrace": ("30s", "0s", LONG),
    "reclaim.orphanGrace": ("30s", "0s", LONG),
    "reclaim.resetTimeout": ("30s", "5s", LONG),
    "reclaim.retry.first": ("5s", "200ms"),
    "reclaim.retry.last": ("300s", "5s", LONG),
    "reclaim.sandboxGrace": ("900s", "0s", LONG),
    "reclaim.termGrace": ("10s", "0s", LONG),
    "reclaim.unseenGrace": ("300ms", "0s"),
    "withholdAfter": ("30s", "0s", "2s", LONG, 1e300),
}
"""Durations of which the others' values would only make each combination slow, or say nothing."""


def _sharing(*names: str, rename: str = "") -> list[dict[str, Any]]:
    more = {"rename": rename} if rename else {}
    return [{"name": name, "replicas": 3, **more} for name in names]


def _rule(resource: str = "", **rest: Any) -> dict[str, Any]:
    match = {key: rest.pop(key) for key in ("uuid", "index", "pci", "model") if key in rest}
    return {"match": match, **({"resource": resource} if resource else {}), **rest}


_OTHERS: Mapping[str, tuple[Any, ...]] = {
    "tpu.topology": ("2x4",),
    "tpu.acceleratorType": ("v5litepod-8",),
    "tpu.workerId": (0, 1),
    "tpu.workerHostnames": (["a", "b"],),
    "gpu.deviceListStrategy": (["volume-mounts"], ["cdi-cri"], ["cdi-annotations"]),
    "gpu.cdiDisableHooks": (["all"],),
    "gpu.cdiFeatureFlags": (["disable-ipc-discoverer"], ["disable-nvsandboxutils"]),
    "gpu.disableHealthChecks": ("all", "79"),
    "gpu.enableHealthChecks": ("all", "31"),
    "sharing.timeSlicing.resources": (
        _sharing(GPU),
        _sharing(GPU, _SMALL),
        _sharing(GPU, rename=SHARED),
        _sharing(_SMALL, rename=f"{_SMALL}.shared"),
    ),
    "pools": (
        [{"resourceName": VF, "devices": ["1234:*"]}],
        [{"resourceName": VF, "addresses": ["0000:40:*"]}, {"resourceName": VF, "classes": ["99"]}],
        [{"resourceName": VF, "classes": ["0108"]}],
        [{"resourceName": VF, "devices": ["1234:*"], "api": DRA}],
        [
            {"resourceName": VF, "classes": ["0108"]},
            {"resourceName": MACHINE, "devices": ["10de:2330"], "api": DRA},
        ],
        [{"resourceName": MACHINE, "devices": ["10de:2330"]}],
    ),
    "devices": (
        [_rule(index="0", exclude=True)],
        [_rule(GPU, uuid="*")],
        [_rule("example.com/gpu", index=0, uuid="*")],
        [_rule(model="* MIG *"), _rule("nvidia.com/h100", model="*H100*", uuid="*")],
        [_rule(pci="0000:00:05.0", exclude=True), _rule("example.com/one", pci="0000:00:06.0")],
        [_rule(pci="*", reclaimMode="observe", reset="never", ignoreHealth=True)],
        [_rule(pci="*", reclaimMode="terminate", reset="afterForcedRelease")],
        [
            _rule("example.com/gpu", uuid="*", api=DRA),
            _rule("example.com/c", pci="*:05.0", api=DRA),
        ],
        [_rule("example.com/gpu", uuid="*", api="device-plugin")],
    ),
}
"""What by chance no value would say, of keys that are text, numbers or lists.

Beside the default, any value that the key's type allows is drawn as well.
"""
DRAWN = "drawn"
"""Stands in an axis for what is drawn for each choice anew."""

WHOLE: tuple[str, ...] = ()
EMPTY = ("empty",)
SEVEN, MIXED = ("1g.10gb",) * 7, ("3g.40gb", "2g.20gb", "1g.10gb")
MEDIA, PART = ("1g.10gb+me",), ("1c.3g.40gb",)
"""How a GPU is divided by MIG: its slices' profiles; EMPTY: MIG mode, and no slice."""
_NODES: Mapping[str, tuple[Any, ...]] = {
    "node.tpus": (
        ("", 0),
        ("v5e", 4),
        ("v5e", 1),
        *((name, max(each.chips_per_host)) for name, each in GENERATIONS.items()),
    ),
    "node.gpus": (
        (),
        (WHOLE, WHOLE),
        (WHOLE,),
        (SEVEN, SEVEN),
        (MIXED,),
        (WHOLE, SEVEN),
        (MEDIA,),
        (PART, WHOLE),
        (EMPTY, WHOLE),
        (MIXED, SEVEN, WHOLE),
    ),
    "node.functions": ("", "whole", "virtual", "gpu"),
    "node.numbers": ("", "turned"),
    "node.sandbox": ("", "gvisor", "leaks"),
    "node.root": ("settings", "operator", "environment", "container"),
    "node.by": ("file", "nvidia", "document", "ways"),
}
"""The hardware, how pods run on it, where its driver is, and which file brings the settings.

`node.functions`: two PCI functions, two virtual functions of one card, or a GPU that is on VFIO.
`node.numbers`: which IOMMU groups and indexes of GPUs the node's hardware has; both are orders.
`node.sandbox`: programs run in gVisor's sandboxes; of one that leaks, pods' sandboxes outlive them.
`node.by`: our file, one of NVIDIA's, a named document of ours, or all the ways of `matrix.ways`.
"""


class Refused(Struct, frozen=True, kw_only=True):
    """A value that cannot work beside what it says *also*, and the key that has to be named."""

    path: str
    value: Any
    key: str
    also: Choice = {}


WRONG = (
    Refused(path="gate.wait", value="27s", key="gate.wait"),
    Refused(path="gate.poll", value="0s", key="gate.poll"),
    Refused(path="gate.wiat", value="1s", key="gate.wiat"),
    Refused(path="tpu.resourceName", value="tpu", key="tpu.resourceName"),
    Refused(path="gpu.migStrategy", value="some", key="gpu.migStrategy"),
    Refused(path="devices", value=[{"match": {}}], key="devices[0].match"),
    Refused(
        path="devices",
        value=[{"match": {"uuid": "*"}, "exclude": True, "resource": "example.com/x"}],
        key="devices[0]",
    ),
    Refused(path="history.perDevice", value=0, key="history.perDevice"),
    Refused(
        path="sharing.timeSlicing.resources",
        value=[{"name": TPU, "replicas": 2}],
        key="sharing.timeSlicing.resources[0].name",
    ),
    Refused(
        path="sharing.timeSlicing.resources",
        value=[{"name": GPU, "replicas": 1000}],
        key="sharing.timeSlicing.resources[0].replicas",
    ),
    Refused(path="kubelet.socketPrefix", value="kubelet", key="kubelet.socketPrefix"),
    Refused(path="dra.driverName", value="Its", key="dra.driverName", also={"tpu.api": DRA}),
    Refused(
        path="devices",
        value=[_rule("example.com/gpu", uuid="*")],
        key="devices[0].api",
        also={"gpu.api": DRA},
    ),
    Refused(
        path="devices",
        value=[_rule(GPU, uuid="*", api="device-plugin")],
        key="devices[0].api",
        also={"gpu.api": DRA, "tpu.api": DRA},
    ),
    Refused(
        path="pools",
        value=[
            {"resourceName": VF, "devices": ["1234:*"], "api": DRA},
            {"resourceName": VF, "classes": ["0108"]},
        ],
        key="pools",
    ),
)


_OFTEN = (
    "devices",
    "events.enabled",
    "gpu.api",
    "gpu.deviceListStrategy",
    "gpu.migStrategy",
    "labels.enabled",
    "pools",
    "sharing.timeSlicing.renameByDefault",
    "sharing.timeSlicing.resources",
    "tpu.api",
)
"""What decides which devices there are, and how they are told: seldom plain."""


def axes() -> dict[str, tuple[Any, ...]]:
    """Return every axis with its values, the plainest first; DRAWN stands for any other."""
    found = dict(_NODES)
    for path, kind in known_paths().items():
        if any(path == each or path.startswith(f"{each}.") for each in FIXED):
            continue
        found[path] = _values(path, kind)
    return found


def _values(path: str, kind: object) -> tuple[Any, ...]:
    if kind is bool:
        return (False, True) if path not in {"tpu.enabled", "gpu.enabled"} else (True, False)
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Duration):
        return _TIMES.get(path) or (_SHORT if issubclass(kind, Interval) else ("100ms", "0s"))
    default: Any = defaults(Settings())
    for name in path.split("."):
        default = default[name]
    plain_ = list(default) if isinstance(default, tuple) else default
    return plain_, *_OTHERS.get(path, ()), DRAWN


def _any(path: str, value: Any, chance: random.Random) -> Any:
    return drawn.value(path, chance) if value is DRAWN else value


_Pair = tuple[tuple[str, int], tuple[str, int]]


def by_pairs(chance: random.Random) -> Iterator[Choice]:
    """Yield choices without end, each with many pairs of values that none before it had."""
    space = axes()
    names = list(space)
    left: set[_Pair] = {
        ((one, first), (other, second))
        for one, other in combinations(names, 2)
        for first in range(len(space[one]))
        for second in range(len(space[other]))
    }
    order = {name: place for place, name in enumerate(names)}
    while True:
        made: dict[str, int] = {}
        if left:
            made |= dict(chance.choice(sorted(left)))
        for name in chance.sample(names, len(names)):
            if name in made:
                continue
            values = chance.sample(range(len(space[name])), len(space[name]))
            made[name] = max(values, key=lambda value: _new(left, order, made, name, value))
        left -= set(combinations(sorted(made.items(), key=lambda each: order[each[0]]), 2))
        yield {name: _any(name, space[name][value], chance) for name, value in made.items()}


def _new(
    left: set[_Pair], order: Mapping[str, int], made: Mapping[str, int], name: str, value: int
) -> int:
    """Return how many pairs *value* adds."""
    me = (name, value)
    return sum(
        ((each, me) if order[each[0]] < order[name] else (me, each)) in left
        for each in made.items()
    )


def at_random(chance: random.Random, keep: float = 0.7) -> Choice:
    """Return a choice of which most settings are plain: such a one can be read by a person."""
    often = dict.fromkeys(_OFTEN, 0.5)
    return {
        name: _any(name, chance.choice(values), chance)
        if name.startswith("node.") or chance.random() > often.get(name, keep)
        else values[0]
        for name, values in axes().items()
    }


def usable(choice: Choice) -> Choice:
    """Return *choice* without what the settings refuse by name."""
    made = dict(choice)
    if made["reclaim.mode"] == "observe":
        made["reclaim.leakedSandbox"] = "report"
    if made["kubelet.question.minInterval"] == "1s":
        made["kubelet.question.idleInterval"] = "2s"
    if made["tpu.workerId"] and made["tpu.workerHostnames"]:
        made["tpu.workerHostnames"] = ["a", "b"]
    if not (made["tpu.enabled"] or made["gpu.enabled"] or made["pools"]):
        made["tpu.enabled"] = True
    # A document that is refused prevents no start.
    if made["node.by"] in {"document", "ways"} and drawn.refusal(tree(made)) is not None:
        made["node.by"] = "file"
    return made


def plain() -> Choice:
    """Return the plainest value of each axis."""
    return {name: values[0] for name, values in axes().items()}


def in_document(choice: Choice) -> list[str]:
    """Return the keys that a named document has: all that it can have, if it has any."""
    by_document = choice["node.by"] == "document"
    paths = [path for path in choice if by_document and not path.startswith("node.")]
    return [path for path in paths if take_up(path) is not TakeUp.POD]


def told(choice: Choice) -> dict[str, Any]:
    """Return what of *choice* is not plain: what a person has to read."""
    first = plain()
    return {name: value for name, value in choice.items() if value != first[name]}


def is_set(path: str, value: Any) -> bool:
    """Tell whether the settings say *value*: it is not of the node, and not their silence."""
    return not path.startswith("node.") and value is not None


def tree(choice: Choice) -> dict[str, Any]:
    """Return the keys of *choice* as a configuration file has them, those of the node left out."""
    made: dict[str, Any] = {}
    for path, value in choice.items():
        if not is_set(path, value):
            continue
        *sections, last = path.split(".")
        section = made
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = value
    return made
