"""Every metric, on one registry; labels are from closed sets, durations in seconds."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import holdfast
from holdfast.allocation.outcomes import PASSES, Outcome
from holdfast.model.nvidia.gpu import GpuEvent, GpuEventKind
from holdfast.model.nvidia.xids import rule_of
from holdfast.telemetry.kubelet import KubeletMetrics
from holdfast.telemetry.locks import LockMetrics
from holdfast.telemetry.memory import MemoryMetrics
from holdfast.telemetry.node import NodeMetrics

_WAITS = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 25.0)


class Metrics:
    """The metrics of one daemon, by noun; docs/metrics.md has the table of all."""

    def __init__(self) -> None:
        """Register everything with a registry of its own."""
        registry = self.registry = CollectorRegistry()
        self.locks = LockMetrics(registry)
        self.kubelet = KubeletMetrics(registry)
        self.memory = MemoryMetrics(registry)
        self.node = NodeMetrics(registry, version=holdfast.__version__)
        self._gate = Histogram(
            "holdfast_gate_wait_seconds",
            "How long container starts waited at the gate, by how it ended.",
            ["outcome"],
            buckets=_WAITS,
            registry=registry,
        )
        self._refusals = Counter(
            "holdfast_gate_refusals",
            "Container starts that the gate refused, by reason; kubelet tries again.",
            ["reason"],
            registry=registry,
        )
        for outcome in Outcome:  # so that the first one is an increase
            (self._gate if outcome in PASSES else self._refusals).labels(outcome.value)
        self._waiting = Gauge(
            "holdfast_gate_waiting",
            "Container starts that wait at the gate now.",
            registry=registry,
        )
        self._steps = Counter(
            "holdfast_reclaim_steps",
            "Steps taken to end orphans, to reset and check their devices, and to end a living "
            "pod's leaking sandbox (step sandbox), by outcome.",
            ["step", "outcome"],
            registry=registry,
        )
        self._gpu_events = Counter(
            "holdfast_gpu_events",
            "Events of GPUs by kind, by Xid, and by what clears it; ignored: nothing has to.",
            ["kind", "xid", "clears"],
            registry=registry,
        )

    def passed_gate(self, outcome: Outcome, seconds: float) -> None:
        """Count the end of one wait at the gate."""
        self._gate.labels(outcome.value).observe(seconds)
        if outcome not in PASSES:
            self._refusals.labels(outcome.value).inc()

    def show_waiting(self, count: int) -> None:
        """Show how many starts wait at the gate."""
        self._waiting.set(count)

    def reclaimed(self, step: str, outcome: str) -> None:
        """Count one step of a reclaim."""
        self._steps.labels(step, outcome).inc()

    def heard(self, event: GpuEvent, condemns: bool) -> None:
        """Count an event of a GPU; Xids that nobody knows are one, for they may be garbage."""
        xid, clears = "", "ignored"
        if event.kind is GpuEventKind.XID:
            rule = rule_of(event.xid)
            xid = str(event.xid) if rule.known else "unknown"
            clears = rule.cure.name.lower() if condemns else clears
        self._gpu_events.labels(event.kind.value, xid, clears).inc()
