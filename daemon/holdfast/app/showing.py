"""Brings what happens and how things stand into the metrics; it looks at nothing itself."""

import time
from collections import Counter

from holdfast.app.parts import Parts
from holdfast.model.locks import LockState
from holdfast.telemetry.metrics import Metrics


def observe(parts: Parts, metrics: Metrics) -> None:
    """Have *metrics* hear of what happens."""
    parts.ledger.commit_seconds = metrics.committed
    parts.ledger.moved = metrics.moved
    parts.gate.observe = lambda outcome, seconds: metrics.passed_gate(outcome.value, seconds)
    if parts.gpus is not None:
        parts.gpus.health.observe = metrics.heard
    parts.reclaimer.observe = lambda step, outcome: metrics.reclaimed(step.value, outcome)
    parts.resetter.observe = metrics.reclaimed
    parts.leaks.observe = lambda outcome: metrics.reclaimed("sandbox", outcome)


def show(parts: Parts, metrics: Metrics) -> None:
    """Show in *metrics* how things stand now."""
    inventory, book = parts.scanner.inventory.value, parts.ledger.book.value
    counts: Counter[tuple[str, LockState]] = Counter(
        {(resource, state): 0 for resource in inventory.resources for state in LockState}
    )
    for device in inventory.devices:
        lock = book.lock_on(device.keys)
        counts[device.name.resource, lock.state if lock else LockState.FREE] += 1
    metrics.count_devices(counts)
    looked = parts.scanner.looked_at is not None
    metrics.show_no_devices(none=looked and not inventory.devices)
    for resource in inventory.resources:
        metrics.count_unhealthy(
            resource, sum(not device.healthy for device in inventory.of(resource))
        )
    for resource, state in parts.registrar.registrations.value.items():
        metrics.show_registration(
            resource, streams=state.streams, registrations=state.registrations
        )
    metrics.show_allocations(book.allocations.values())
    for name, lane in parts.host.lanes.items():
        since = lane.stuck_since
        stuck_for = 0.0 if since is None else time.monotonic() - since
        metrics.show_lane(name, lane.latency, stuck_for=stuck_for)
    if (scan := parts.look.last_scan) is not None:
        metrics.show_scan(seconds=scan.seconds, gaps=len(scan.gaps))
    metrics.show_holders(sum(map(len, parts.kernel.holders.values())))
    metrics.show_questions(parts.accounts.view.value.questions)
    metrics.show_marks(book.marks)
    metrics.show_drift(each.kind for each in parts.drift.standing)
