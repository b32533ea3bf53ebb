"""Brings what happens and how things stand into the metrics; it looks at nothing itself."""

import math

from holdfast.app.answers.readiness import drivers, registrations
from holdfast.app.wiring.parts import Parts
from holdfast.model.book.locks import Move
from holdfast.telemetry.metrics import Metrics


def observe(parts: Parts, metrics: Metrics) -> None:
    """Have *metrics* hear of what happens."""
    metrics.locks.know(parts.ledger.book.value.locks.values())
    parts.ledger.commit_seconds = metrics.node.committed
    parts.gate.observe = metrics.passed_gate
    parts.reclaimer.observe = lambda step, outcome: metrics.reclaimed(step.value, outcome)
    parts.resetter.observe = metrics.reclaimed
    parts.leaks.observe = lambda outcome: metrics.reclaimed("sandbox", outcome)
    if (dra := parts.dra) is not None:
        dra.door.preparing.observe = metrics.claims.prepared
        dra.door.unpreparing.observe = metrics.claims.unprepared
        dra.publisher.observe = metrics.claims.wrote_slice
        for server in dra.servers:
            server.observe = metrics.claims.asked_server
    if (events := parts.events) is not None:
        events.notices.observe = metrics.claims.told
        events.server.observe = metrics.claims.asked_server

    def moved(moves: tuple[Move, ...]) -> None:
        metrics.locks.moved(moves)
        if events is not None:
            events.notices.moved(moves)

    parts.ledger.moved = moved


def show(parts: Parts, metrics: Metrics) -> None:
    """Show in *metrics* how things stand now."""
    inventory, book = parts.scanner.inventory.value, parts.ledger.book.value
    now = parts.clock.monotonic()
    looked = parts.scanner.looked_at is not None
    metrics.locks.show(inventory, book, looked=looked, now=parts.clock.wall())
    metrics.kubelet.show(
        registrations(parts),
        drivers=drivers(parts),
        questions=parts.reader.view.value.questions,
    )
    failing = None if parts.dra is None else parts.dra.publisher.failing_since
    metrics.claims.show(book, slices_failing_for=_since(failing, now))
    metrics.show_waiting(parts.gate.starts.count)
    metrics.node.show_lanes(
        {name: lane.latency for name, lane in parts.host.lanes.items()},
        {name: _since(lane.stuck_since, now) for name, lane in parts.host.lanes.items()},
    )
    look = parts.look
    seen_at = look.full_scan_at
    metrics.node.show_scan(
        seconds=look.full_scan_seconds,
        gaps=len(look.full_gaps),
        age=math.nan if seen_at is None else now - seen_at,
    )
    holders: dict[str, int] = dict.fromkeys(inventory.resources, 0)
    for device, found in parts.kernel.holders.items():
        holders[device.resource] = holders.get(device.resource, 0) + len(found)
    metrics.node.show_holders(holders)
    metrics.node.show_drift(each.kind for each in parts.watches.drift.standing)


def show_ledger(parts: Parts, metrics: Metrics) -> None:
    """Show in *metrics* for how long the ledger fails; oftener than the rest, for it is urgent."""
    since = _since(parts.ledger.failing_since, parts.clock.monotonic())
    metrics.node.show_ledger(failing_for=since)


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else max(0.0, now - moment)
