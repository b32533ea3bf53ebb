"""The metrics of memory: of the daemon, and of the processes that hold devices."""

import math
from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from holdfast.model.ids import DeviceName
from holdfast.model.node.memory import Memory
from holdfast.telemetry.gauges import Current


class MemoryMetrics:
    """Shows the last values. Unknown is NaN; zero would mean that no memory may be used."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        gauge = partial(Gauge, registry=registry)
        current = partial(Current, registry=registry)
        self._limit = gauge(
            "holdfast_memory_limit_bytes",
            "The daemon's memory limit: the tightest limit of its cgroup and all visible parent "
            "cgroups, or the node's memory. NaN: unknown.",
        )
        self._usage = gauge(
            "holdfast_memory_usage_bytes",
            "Memory that the daemon's cgroup uses, without file cache. NaN: unknown.",
        )
        self._resident = gauge(
            "holdfast_memory_resident_bytes",
            "Resident memory of the daemon's process. NaN: unknown.",
        )
        self._share = gauge(
            "holdfast_memory_limit_used_ratio",
            "Share of the memory limit that is used, 0 to 1; the daemon warns at 0.85.",
        )
        self._holders = {
            "limit": current(
                "holdfast_holder_memory_limit_bytes",
                "The tightest memory limit of the device's holder that has the least headroom.",
                ["resource", "device"],
            ),
            "usage": current(
                "holdfast_holder_memory_usage_bytes",
                "Memory that the same holder's cgroup uses, without file cache.",
                ["resource", "device"],
            ),
            "headroom": current(
                "holdfast_holder_memory_headroom_bytes",
                "Memory that the same holder can still use before it reaches a limit or the node's "
                "memory is full.",
                ["resource", "device"],
            ),
        }
        for known in (self._limit, self._usage, self._resident):
            known.set(math.nan)

    def show_own(self, memory: Memory, *, resident: int | None, share: float) -> None:
        """Show the daemon's own memory."""
        self._limit.set(_number(memory.limit))
        self._usage.set(_number(memory.usage))
        self._resident.set(_number(resident))
        self._share.set(share)

    def show_holders(self, tightest: Mapping[DeviceName, Memory]) -> None:
        """Show the memory of the holder with the least headroom, for each device.

        Series of devices that have no holder are removed.
        """
        numbers = {
            (name.resource, name.id): {
                "limit": memory.limit,
                "usage": memory.usage,
                "headroom": memory.headroom,
            }
            for name, memory in tightest.items()
        }
        for what, gauge in self._holders.items():
            gauge.show({labels: _number(each[what]) for labels, each in numbers.items()})


def _number(value: int | None) -> float:
    return math.nan if value is None else value
