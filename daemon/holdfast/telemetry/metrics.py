"""Every metric, in one place; labels are from closed sets, durations in seconds."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.locks import LockState, Move

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
            "Steps taken to end orphans, by outcome.",
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
        self._registrations = Gauge(
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
        self._questions = Gauge(
            "holdfast_kubelet_questions",
            "Complete answers of kubelet's to which pods it counts.",
            registry=registry,
        )
        self._memory_limit = Gauge(
            "holdfast_memory_limit_bytes",
            "What this process may use: the machine's memory or the tightest cgroup's, of all "
            "ancestors that can be seen.",
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
        self._registrations.labels(resource).set(registrations)

    def show_holders(self, count: int) -> None:
        """Show how many processes hold something."""
        self._holders.set(count)

    def show_lane(self, lane: str, seconds: float) -> None:
        """Show how long the last call on a lane took."""
        self._lanes.labels(lane).set(seconds)

    def show_questions(self, count: int) -> None:
        """Show how many questions kubelet answered."""
        self._questions.set(count)

    def show_memory_limit(self, limit: int) -> None:
        """Show how many bytes of memory this process may use."""
        self._memory_limit.set(limit)

    def show_ready(self, checks: Mapping[str, bool]) -> None:
        """Show which readiness checks pass."""
        for name, passes in checks.items():
            self._ready.labels(name).set(passes)
