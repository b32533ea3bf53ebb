"""All metrics, on one registry. Label values are from closed sets, durations in seconds."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import holdfast
from holdfast.allocation.starts import PASSES, StartOutcome
from holdfast.runtime.stalls import Stalls
from holdfast.telemetry.claims import ClaimMetrics
from holdfast.telemetry.kubelet import KubeletMetrics
from holdfast.telemetry.locks import LockMetrics
from holdfast.telemetry.memory import MemoryMetrics
from holdfast.telemetry.node import NodeMetrics

_WAITS = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 25.0)


class Metrics:
    """The metrics of one daemon; docs/metrics.md lists them all."""

    def __init__(self, stalls: Stalls | None = None) -> None:
        """Register all metrics on a new registry; without *stalls* no loop is timed."""
        registry = self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.locks = LockMetrics(registry)
        self.kubelet = KubeletMetrics(registry)
        self.claims = ClaimMetrics(registry)
        self.memory = MemoryMetrics(registry)
        self.node = NodeMetrics(registry, version=holdfast.__version__, stalls=stalls or Stalls())
        self._gate = histogram(
            "holdfast_gate_wait_seconds",
            "How long container starts waited for their devices, by outcome.",
            ["outcome"],
            buckets=_WAITS,
        )
        self._refusals = counter(
            "holdfast_gate_refusals",
            "Refused container starts by reason; kubelet tries each again.",
            ["reason"],
        )
        for outcome in StartOutcome:  # so that the first event is an increase from 0
            (self._gate if outcome in PASSES else self._refusals).labels(outcome.value)
        self._waiting = gauge(
            "holdfast_gate_waiting", "Container starts that wait for their devices now."
        )
        self._steps = counter(
            "holdfast_reclaim_steps",
            "Steps to end leftover processes, to reset and check devices, and to end the leaking "
            "sandbox of a running pod (step sandbox), by outcome.",
            ["step", "outcome"],
        )
        self._gpu_events = counter(
            "holdfast_gpu_events",
            "GPU events by kind, Xid, and what clears them (ignored: the event has no effect).",
            ["kind", "xid", "clears"],
        )

    def passed_gate(self, outcome: StartOutcome, seconds: float) -> None:
        """Count one container start that passed or was refused; *seconds*: how long it waited."""
        self._gate.labels(outcome.value).observe(seconds)
        if outcome not in PASSES:
            self._refusals.labels(outcome.value).inc()

    def show_waiting(self, count: int) -> None:
        """Show how many container starts wait."""
        self._waiting.set(count)

    def reclaimed(self, step: str, outcome: str) -> None:
        """Count one reclaim step."""
        self._steps.labels(step, outcome).inc()

    def happened(self, kind: str, code: str, clears: str) -> None:
        """Count an event of the hardware: its kind, its code, and what clears it."""
        self._gpu_events.labels(kind, code, clears).inc()
