"""Every metric, in one place; labels are from closed sets, durations in seconds."""

from collections import Counter as Counted
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.book import Allocation, Phase
from holdfast.model.drift import Drift
from holdfast.model.gpu import GpuEvent, GpuEventKind
from holdfast.model.locks import LockState, Move
from holdfast.model.marks import Marks
from holdfast.model.xids import rule_of
from holdfast.telemetry.memory import MemoryMetrics

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
_SLOW = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 25.0)


class Metrics:
    """The metrics of one daemon, on its own registry."""

    def __init__(self) -> None:
        """Register everything with a registry of its own."""
        registry = self.registry = CollectorRegistry()
        self._devices = Gauge(
            "holdfast_devices",
            "Devices by resource and by the state of their lock.",
            ["resource", "state"],
            registry=registry,
        )
        self._unhealthy = Gauge(
            "holdfast_devices_unhealthy",
            "Devices whose hardware cannot be used.",
            ["resource"],
            registry=registry,
        )
        self._moves = Counter(
            "holdfast_lock_moves",
            "Moves of locks by the states left and entered.",
            ["before", "after"],
            registry=registry,
        )
        self._calls = Histogram(
            "holdfast_kubelet_call_seconds",
            "Kubelet's calls by name and status code.",
            ["resource", "call", "code"],
            buckets=_FAST,
            registry=registry,
        )
        self._gate = Histogram(
            "holdfast_gate_wait_seconds",
            "How long container starts waited at the gate, by how it ended.",
            ["outcome"],
            buckets=_SLOW,
            registry=registry,
        )
        self._steps = Counter(
            "holdfast_reclaim_steps",
            "Steps taken to end orphans, to reset and check their devices, and to end a living "
            "pod's leaking sandbox (step sandbox), by outcome.",
            ["step", "outcome"],
            registry=registry,
        )
        self._commit = Histogram(
            "holdfast_ledger_commit_seconds",
            "How long durable commits took.",
            buckets=_FAST,
            registry=registry,
        )
        self._streams = Gauge(
            "holdfast_kubelet_streams",
            "Open ListAndWatch streams.",
            ["resource"],
            registry=registry,
        )
        self._registrations = _Total(
            "holdfast_kubelet_registrations",
            "Registrations that kubelet accepted since the daemon started.",
            ["resource"],
            registry=registry,
        )
        self._holders = Gauge(
            "holdfast_holders", "Processes known to have a device in use.", registry=registry
        )
        self._lanes = Gauge(
            "holdfast_lane_seconds",
            "How long the last call on each lane took.",
            ["lane"],
            registry=registry,
        )
        self._lanes_stuck = Gauge(
            "holdfast_lane_stuck_seconds",
            "How long each lane has been past its deadline; 0 while it is not.",
            ["lane"],
            registry=registry,
        )
        self._questions = _Total(
            "holdfast_kubelet_questions",
            "Complete answers of kubelet's to which pods it counts.",
            registry=registry,
        )
        self._allocations = Gauge(
            "holdfast_allocations",
            "Live Allocations: pending (the gate not passed) and active.",
            ["phase"],
            registry=registry,
        )
        self._scan_seconds = Gauge(
            "holdfast_scan_seconds",
            "How long the last look through the processes took.",
            registry=registry,
        )
        self._scan_gaps = Gauge(
            "holdfast_scan_gaps",
            "What the last look through the processes could not see; 0 when it saw everything.",
            registry=registry,
        )
        self._drift = Gauge(
            "holdfast_drift",
            "Disagreements that stand between the ledger, kubelet's books and the kernel, by kind.",
            ["kind"],
            registry=registry,
        )
        self._draining = Gauge(
            "holdfast_draining", "1 while the node is drained by hand.", registry=registry
        )
        self._quarantines = Gauge(
            "holdfast_quarantined_by_hand",
            "Devices that a person withholds from new pods.",
            registry=registry,
        )
        self._gpu_events = Counter(
            "holdfast_gpu_events",
            "Events of GPUs by kind, by Xid, and by what clears it; ignored: nothing has to.",
            ["kind", "xid", "clears"],
            registry=registry,
        )
        self.memory = MemoryMetrics(registry)
        self._no_devices = Gauge(
            "holdfast_no_devices",
            "1 where the hardware was looked at and there is no device to offer.",
            registry=registry,
        )
        self._ready = Gauge(
            "holdfast_ready",
            "1 for each readiness check that passes.",
            ["check"],
            registry=registry,
        )

    def count_devices(self, counts: Mapping[tuple[str, LockState], int]) -> None:
        """Show how many devices of each resource have a lock in each state."""
        for (resource, state), count in counts.items():
            self._devices.labels(resource, state.value).set(count)

    def count_unhealthy(self, resource: str, count: int) -> None:
        """Show how many devices of *resource* cannot be used."""
        self._unhealthy.labels(resource).set(count)

    def moved(self, moves: Iterable[Move]) -> None:
        """Count moves of locks."""
        for move in moves:
            self._moves.labels(move.before.value, move.after.value).inc()

    def called(self, resource: str, call: str, code: str, seconds: float) -> None:
        """Count one of kubelet's calls."""
        self._calls.labels(resource, call, code).observe(seconds)

    def passed_gate(self, outcome: str, seconds: float) -> None:
        """Count the end of one wait at the gate."""
        self._gate.labels(outcome).observe(seconds)

    def reclaimed(self, step: str, outcome: str) -> None:
        """Count one step of a reclaim."""
        self._steps.labels(step, outcome).inc()

    def committed(self, seconds: float) -> None:
        """Count one durable commit."""
        self._commit.observe(seconds)

    def show_registration(self, resource: str, *, streams: int, registrations: int) -> None:
        """Show where a resource stands with kubelet."""
        self._streams.labels(resource).set(streams)
        self._registrations.reached(registrations, resource)

    def show_holders(self, count: int) -> None:
        """Show how many processes hold something."""
        self._holders.set(count)

    def show_lane(self, lane: str, seconds: float, *, stuck_for: float = 0.0) -> None:
        """Show how long the last call on a lane took, and for how long one is overdue."""
        self._lanes.labels(lane).set(seconds)
        self._lanes_stuck.labels(lane).set(stuck_for)

    def show_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Show how many Allocations there are in each phase."""
        counts = Counted(each.phase for each in allocations)
        for phase in Phase:
            self._allocations.labels(phase.value).set(counts[phase])

    def show_scan(self, *, seconds: float, gaps: int) -> None:
        """Show what the last look through the processes took, and could not see."""
        self._scan_seconds.set(seconds)
        self._scan_gaps.set(gaps)

    def show_questions(self, count: int) -> None:
        """Show how many questions kubelet answered."""
        self._questions.reached(count)

    def show_drift(self, kinds: Iterable[str]) -> None:
        """Show how many disagreements of each kind stand."""
        counts = Counted(kinds)
        for kind in Drift:
            self._drift.labels(kind.value).set(counts[kind.value])

    def show_marks(self, marks: Marks) -> None:
        """Show what is withheld by hand."""
        self._draining.set(marks.drain is not None)
        self._quarantines.set(len(marks.quarantines))

    def heard(self, event: GpuEvent, condemns: bool) -> None:
        """Count an event of a GPU; Xids that nobody knows are one, for they may be garbage."""
        xid, clears = "", "ignored"
        if event.kind is GpuEventKind.XID:
            rule = rule_of(event.xid)
            xid = str(event.xid) if rule.known else "unknown"
            clears = rule.cure.name.lower() if condemns else clears
        self._gpu_events.labels(event.kind.value, xid, clears).inc()

    def show_no_devices(self, *, none: bool) -> None:
        """Show whether the node has nothing to offer."""
        self._no_devices.set(none)

    def show_ready(self, checks: Mapping[str, bool]) -> None:
        """Show which readiness checks pass."""
        for name, passes in checks.items():
            self._ready.labels(name).set(passes)


class _Total:
    """A counter of something that is counted elsewhere."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._counter = Counter(name, text, labels, registry=registry)
        self._labelled = bool(labels)
        self._seen: dict[tuple[str, ...], int] = {}

    def reached(self, total: int, *labels: str) -> None:
        """Show that there have been *total*; fewer than before are a new count from zero."""
        before = self._seen.get(labels, 0)
        counter = self._counter.labels(*labels) if self._labelled else self._counter
        counter.inc(total - before if total >= before else total)
        self._seen[labels] = total
