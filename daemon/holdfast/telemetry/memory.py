"""The metrics of memory: the daemon's own against its limit, and of who holds devices."""

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from holdfast.model.ids import DeviceName
from holdfast.model.node.memory import Memory
from holdfast.telemetry.gauges import Current


class MemoryMetrics:
    """Shows what was read last. Unknown is NaN: zero would say that nothing may be used."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        self._limit = Gauge(
            "holdfast_memory_limit_bytes",
            "What this process may use: the machine's memory or the tightest cgroup's, of all "
            "ancestors that can be seen. NaN: not known.",
            registry=registry,
        )
        self._usage = Gauge(
            "holdfast_memory_usage_bytes",
            "What this process's cgroup uses, without file cache. NaN: not known.",
            registry=registry,
        )
        self._resident = Gauge(
            "holdfast_memory_resident_bytes",
            "What this process itself has in memory. NaN: not known.",
            registry=registry,
        )
        self._share = Gauge(
            "holdfast_memory_limit_used_ratio",
            "How much of its limit this process uses, from 0 to 1; it warns at 0.85.",
            registry=registry,
        )
        self._holders = {
            "limit": Current(
                "holdfast_holder_memory_limit_bytes",
                "Of the process that holds the device and has the least headroom: the tightest "
                "memory limit around it.",
                ["resource", "device"],
                registry=registry,
            ),
            "usage": Current(
                "holdfast_holder_memory_usage_bytes",
                "Of the same process: what its cgroup uses, without file cache.",
                ["resource", "device"],
                registry=registry,
            ),
            "headroom": Current(
                "holdfast_holder_memory_headroom_bytes",
                "Of the same process: how much more it can use before any limit around it, or the "
                "node's end, is reached.",
                ["resource", "device"],
                registry=registry,
            ),
        }
        for gauge in (self._limit, self._usage, self._resident):
            gauge.set(math.nan)

    def show_own(self, memory: Memory, *, resident: int | None, share: float) -> None:
        """Show this process's own memory."""
        self._limit.set(_number(memory.limit))
        self._usage.set(_number(memory.usage))
        self._resident.set(_number(resident))
        self._share.set(share)

    def show_holders(self, tightest: Mapping[DeviceName, Memory]) -> None:
        """Show, for each device that is held, who of its holders has the least headroom.

        What is held by nobody any more is not shown any more: devices come and go.
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
