"""All metrics, on one registry. Label values are from closed sets, durations in seconds."""

import time
from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import holdfast
from holdfast.allocation.entry import PASSES, EntryOutcome
from holdfast.model.book.book import DeviceLock, LockState, Move
from holdfast.model.dra.outcomes import ApiOutcome, PrepareOutcome, UnprepareOutcome
from holdfast.model.ids import DeviceName
from holdfast.runtime.supervisor import Stalls
from holdfast.telemetry.gauges import Gauges

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
_WAITS = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 25.0)
_LASTING = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 604800.0)


class Metrics:
    """The metrics of one daemon; docs/metrics.md lists them all.

    What stands is in `gauges`. What happens is counted here when it does.
    """

    def __init__(self, stalls: Stalls | None = None) -> None:
        """Register all metrics on a new registry; without *stalls* no loop is timed."""
        registry = self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        now = time.time()
        build = gauge("holdfast_build_info", "Always 1; the label has the version.", ["version"])
        build.labels(holdfast.__version__).set(1)
        gauge(
            "holdfast_start_time_seconds", "When the daemon started, in seconds since the epoch."
        ).set(now)
        # Read when somebody asks, so that a loop which is blocked at that moment shows.
        gauge(
            "holdfast_event_loop_stall_seconds",
            "The longest time in the last one to two minutes for which the event loop did one "
            "thing or got no CPU, so that everything else waited.",
        ).set_function((stalls or Stalls()).longest)
        self.gauges = Gauges(started=now)
        registry.register(self.gauges)
        self.locks = LockMetrics(registry)
        self.claims = ClaimMetrics(registry)
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
        for outcome in EntryOutcome:  # so that the first event is an increase from 0
            (self._gate if outcome in PASSES else self._refusals).labels(outcome.value)
        self._steps = counter(
            "holdfast_reclaim_steps",
            "Steps to end leftover processes, to reset and check devices, and to end the leaking "
            "sandbox of a running pod (step sandbox), by outcome.",
            ["step", "outcome"],
        )
        self._hardware_events = counter(
            "holdfast_hardware_events",
            "Events of the hardware by kind, code, and what clears them (ignored: no effect).",
            ["kind", "code", "clears"],
        )
        self._calls = histogram(
            "holdfast_kubelet_call_seconds",
            "How long kubelet's calls took, by call and gRPC status code.",
            ["resource", "call", "code"],
            buckets=_FAST,
        )
        self._commit = histogram(
            "holdfast_ledger_commit_seconds",
            "How long commits to the ledger took, with fsync.",
            buckets=_FAST,
        )
        self._reloads = counter(
            "holdfast_configuration_reloads",
            "Changes of the configuration since the start, by outcome: live (applied at "
            "once), refused (it cannot be used, or not yet).",
            ["outcome"],
        )
        for change in ("live", "refused"):
            self._reloads.labels(change)

    def committed(self, moves: tuple[Move, ...], seconds: float) -> None:
        """Count a commit to the ledger with its moves; *seconds*: how long writing it took."""
        self._commit.observe(seconds)
        self.locks.moved(moves)

    def passed_gate(self, outcome: EntryOutcome, seconds: float) -> None:
        """Count one container start that passed or was refused; *seconds*: how long it waited."""
        self._gate.labels(outcome.value).observe(seconds)
        if outcome not in PASSES:
            self._refusals.labels(outcome.value).inc()

    def reclaimed(self, step: str, outcome: str) -> None:
        """Count one reclaim step."""
        self._steps.labels(step, outcome).inc()

    def happened(self, kind: str, code: str, clears: str) -> None:
        """Count an event of the hardware: its kind, its code, and what clears it."""
        self._hardware_events.labels(kind, code, clears).inc()

    def called(self, resource: str, call: str, code: str, seconds: float) -> None:
        """Count one of kubelet's calls."""
        self._calls.labels(resource, call, code).observe(seconds)

    def reloaded(self, outcome: str) -> None:
        """Count one change of the configuration."""
        self._reloads.labels(outcome).inc()


class LockMetrics:
    """Counts lock state changes, and how long locks were in each state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        self._moves = Counter(
            "holdfast_lock_moves",
            "State changes of locks, by state before and after.",
            ["before", "after"],
            registry=registry,
        )
        self._lasted = Histogram(
            "holdfast_lock_state_seconds",
            "How long locks were in a state, recorded when they leave it.",
            ["state"],
            buckets=_LASTING,
            registry=registry,
        )
        self._entered: dict[DeviceName, float] = {}

    def know(self, locks: Iterable[DeviceLock]) -> None:
        """Take over when each lock in the ledger entered its state."""
        self._entered = {lock.device: lock.since for lock in locks}

    def moved(self, moves: Iterable[Move]) -> None:
        """Count state changes of locks."""
        for move in moves:
            if move.before is move.after:  # a note
                continue
            self._moves.labels(move.before.value, move.after.value).inc()
            since = self._entered.pop(move.device, None)
            if since is not None:
                self._lasted.labels(move.before.value).observe(max(0.0, move.at - since))
            if move.after is not LockState.FREE:
                self._entered[move.device] = move.at


class ClaimMetrics:
    """Counts kubelet's calls about claims, and what the API server is asked and told."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=(*_WAITS, 40.0))
        self._prepare = histogram(
            "holdfast_claim_prepare_seconds",
            "How long kubelet waited for each claim to be prepared, by outcome.",
            ["outcome"],
        )
        self._unprepare = histogram(
            "holdfast_claim_unprepare_seconds",
            "How long kubelet waited for each claim to be over, by outcome.",
            ["outcome"],
        )
        self._writes = counter(
            "holdfast_resource_slice_writes",
            "Writes of ResourceSlices to the API server, by outcome.",
            ["outcome"],
        )
        self._requests = counter(
            "holdfast_api_requests", "Requests to the API server, by outcome.", ["outcome"]
        )
        self._notices = counter(
            "holdfast_notices",
            "Events about a pod or the node, and the node's condition, by whether they were "
            "written.",
            ["about", "outcome"],
        )
        for prepared in PrepareOutcome:  # so that the first event is an increase from 0
            self._prepare.labels(prepared.value)
        for unprepared in UnprepareOutcome:
            self._unprepare.labels(unprepared.value)
        for asked in ApiOutcome:
            self._requests.labels(asked.value)
        for outcome in ("written", "failed"):
            self._writes.labels(outcome)
            for about in ("pod", "node", "condition"):
                self._notices.labels(about, outcome)

    def prepared(self, outcome: PrepareOutcome, seconds: float) -> None:
        """Count one claim's Prepare; *seconds*: how long it took."""
        self._prepare.labels(outcome.value).observe(seconds)

    def unprepared(self, outcome: UnprepareOutcome, seconds: float) -> None:
        """Count one claim's Unprepare; *seconds*: how long it took."""
        self._unprepare.labels(outcome.value).observe(seconds)

    def wrote_slice(self, written: bool) -> None:
        """Count one write of a ResourceSlice."""
        self._writes.labels("written" if written else "failed").inc()

    def wrote_notice(self, about: str, written: bool) -> None:
        """Count one try to write an Event about a pod or the node, or the node's condition."""
        self._notices.labels(about, "written" if written else "failed").inc()

    def asked_server(self, outcome: ApiOutcome) -> None:
        """Count one request to the API server."""
        self._requests.labels(outcome.value).inc()
