"""What a running daemon does about a key that has changed: `take_up` has the table of all keys."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from holdfast.settings.hardware import Api
from holdfast.settings.sections import Settings
from holdfast.settings.types import plain


class TakeUp(StrEnum):
    """How a changed key is taken up; of several that changed the latest here decides."""

    LIVE = "live"
    """At once: nothing restarts, and no stream ends."""
    RESTART = "restart"
    """The daemon restarts in the same process: locks stay, and it registers with kubelet again."""
    POD = "pod"
    """Only by another pod, because mounts or probes are made by it."""


_TABLE: Mapping[str, TakeUp] = {
    "allocate": TakeUp.LIVE,
    "devices": TakeUp.LIVE,
    "devices[].api": TakeUp.RESTART,
    "discovery": TakeUp.LIVE,
    "drift": TakeUp.LIVE,
    "dra.evictLost": TakeUp.LIVE,
    "dra.unprepareWait": TakeUp.LIVE,
    "gate": TakeUp.LIVE,
    "gpu.callTimeout": TakeUp.LIVE,
    "gpu.disableHealthChecks": TakeUp.LIVE,
    "gpu.displays": TakeUp.LIVE,
    "gpu.enableHealthChecks": TakeUp.LIVE,
    "gpu.healthBeat": TakeUp.LIVE,
    "gpu.healthQuiet": TakeUp.LIVE,
    "gpu.look": TakeUp.LIVE,
    "gpu.memoryDeadline": TakeUp.LIVE,
    "gpu.memorySlackMib": TakeUp.LIVE,
    "gpu.monitors": TakeUp.LIVE,
    "gpu.rescan": TakeUp.LIVE,
    "gpu.sharedDevicesAllocationPolicy": TakeUp.LIVE,
    "history": TakeUp.LIVE,
    "host": TakeUp.POD,
    "http": TakeUp.POD,
    "kubelet.pluginDir": TakeUp.POD,
    "kubelet.podResourcesSocket": TakeUp.POD,
    "kubelet.poll": TakeUp.LIVE,
    "kubelet.question": TakeUp.LIVE,
    "kubelet.registerTimeout": TakeUp.LIVE,
    "labels": TakeUp.LIVE,
    "liveness": TakeUp.LIVE,
    "log": TakeUp.LIVE,
    "readiness": TakeUp.LIVE,
    "reclaim": TakeUp.LIVE,
    "sharing.timeSlicing.failRequestsGreaterThanOne": TakeUp.LIVE,
    "stateDir": TakeUp.POD,
    "withholdAfter": TakeUp.LIVE,
}
"""Of keys and sections, those of a list's entries with ``[]``; the longest that a key begins with
counts. All others: RESTART."""


def take_up(path: str) -> TakeUp:
    """Return how a change of the key at *path* is taken up."""
    while path and path not in _TABLE:
        path = path.rpartition(".")[0] if not path.endswith("[]") else path[:-2]
    return _TABLE.get(path, TakeUp.RESTART)


def changed(before: Settings, after: Settings) -> tuple[str, ...]:
    """Return the path of each key that differs, in the order of the settings."""
    paths = tuple(_changed(plain(before), plain(after), ""))
    names = {each.resource for each in (*before.devices, *after.devices) if each.resource}
    # What serves claims is there from the start or not at all.
    if before.has_dra() == after.has_dra() and all(
        _apis(before, name) == _apis(after, name) for name in names
    ):
        return paths
    return tuple("devices[].api" if path == "devices" else path for path in paths)


def _apis(settings: Settings, resource: str) -> frozenset[Api]:
    """Return the APIs of *resource*'s devices, or those that they have without a rule for them."""
    api = settings.api_of(resource)
    return settings.apis() if api is None else frozenset({api})


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, old in before.items():
        new = after[name]
        if isinstance(old, dict):  # a section, which both have
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}"
