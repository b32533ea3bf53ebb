"""The metrics of the daemon on its node: lanes, scans, holders, the ledger, readiness, drift."""

import math
import time
from collections import Counter as Counted
from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.book.drift import Drift
from holdfast.runtime.stalls import Stalls
from holdfast.telemetry.gauges import Current

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)


class NodeMetrics:
    """Shows the state of the daemon itself."""

    def __init__(self, registry: CollectorRegistry, *, version: str, stalls: Stalls) -> None:
        """Register everything with *registry*; *stalls* are those of the daemon's loop."""
        gauge = partial(Gauge, registry=registry)
        current = partial(Current, registry=registry)
        histogram = partial(Histogram, registry=registry)
        build = gauge("holdfast_build_info", "Always 1; the label has the version.", ["version"])
        build.labels(version).set(1)
        started = gauge(
            "holdfast_start_time_seconds", "When the daemon started, in seconds since the epoch."
        )
        started.set(time.time())
        stall = gauge(
            "holdfast_event_loop_stall_seconds",
            "The longest time in the last one to two minutes for which the event loop did one "
            "thing or got no CPU, so that everything else waited.",
        )
        # Read when somebody asks, so that a loop which is blocked at that moment shows.
        stall.set_function(stalls.longest)
        self._ready = current(
            "holdfast_ready",
            "1 for a readiness check that passes, 0 for one that fails.",
            ["check"],
        )
        self._lanes = current(
            "holdfast_lane_seconds",
            "How long the last call of each lane (a thread for blocking calls) took.",
            ["lane"],
        )
        self._lanes_stuck = current(
            "holdfast_lane_stuck_seconds",
            "How long the lane's call has been past its deadline; 0 if it is not.",
            ["lane"],
        )
        self._scan_seconds = gauge(
            "holdfast_scan_seconds", "How long the last scan of all processes took."
        )
        self._scan_gaps = gauge(
            "holdfast_scan_gaps",
            "Number of things that the last scan of all processes could not see.",
        )
        self._scan_age = gauge(
            "holdfast_scan_age_seconds",
            "How long ago the last scan of all processes was; NaN before the first.",
        )
        self._scan_age.set(math.nan)
        self._holders = current(
            "holdfast_holders", "Known processes that hold a device.", ["resource"]
        )
        self._commit = histogram(
            "holdfast_ledger_commit_seconds",
            "How long commits to the ledger took, with fsync.",
            buckets=_FAST,
        )
        self._failing = gauge(
            "holdfast_ledger_failing_seconds",
            "How long no write to the ledger has succeeded; 0 while writes succeed.",
        )
        self._reloads = Counter(
            "holdfast_configuration_reloads",
            "Changes of the configuration since the start, by outcome: live (applied at "
            "once), refused (it cannot be used).",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("live", "refused"):  # so that the first is an increase from 0
            self._reloads.labels(outcome)
        self._drift = gauge(
            "holdfast_drift",
            "Current disagreements between the ledger, kubelet and the kernel, by kind.",
            ["kind"],
        )

    def committed(self, seconds: float) -> None:
        """Record one commit."""
        self._commit.observe(seconds)

    def reloaded(self, outcome: str) -> None:
        """Count one change of the configuration."""
        self._reloads.labels(outcome).inc()

    def show_ledger(self, *, failing_for: float) -> None:
        """Show how many seconds no write has succeeded."""
        self._failing.set(failing_for)

    def show_ready(self, checks: Mapping[str, bool]) -> None:
        """Show which readiness checks pass."""
        self._ready.show({(name,): passes for name, passes in checks.items()})

    def show_lanes(self, latency: Mapping[str, float], stuck_for: Mapping[str, float]) -> None:
        """Show how long each lane's last call took, and how long one is past its deadline."""
        self._lanes.show({(name,): seconds for name, seconds in latency.items()})
        self._lanes_stuck.show({(name,): seconds for name, seconds in stuck_for.items()})

    def show_scan(self, *, seconds: float, gaps: int, age: float) -> None:
        """Show the duration, the gaps and the age of the last scan of all processes."""
        self._scan_seconds.set(seconds)
        self._scan_gaps.set(gaps)
        self._scan_age.set(age)

    def show_holders(self, counts: Mapping[str, int]) -> None:
        """Show how many processes hold devices, by resource."""
        self._holders.show({(resource,): count for resource, count in counts.items()})

    def show_drift(self, kinds: Iterable[str]) -> None:
        """Show how many disagreements of each kind there are."""
        counts = Counted(kinds)
        for kind in Drift:
            self._drift.labels(kind.value).set(counts[kind.value])
