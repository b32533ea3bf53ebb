"""Reads off the parts how they stand: readiness checks, and readings for the gauges."""

import math
from collections import Counter
from itertools import chain

from holdfast.app.wiring.assembly import Assembly
from holdfast.model.node.readiness import ReadinessCheck, check_openly
from holdfast.telemetry.gauges import Readings


def readings(parts: Assembly, checks: tuple[ReadinessCheck, ...]) -> Readings:
    """Return how things stand now, with the readiness *checks* made just before."""
    core, dra, look = parts.core, parts.dra, parts.discovery.look
    now = core.clock.monotonic()
    memory, lanes = parts.watches.memory, core.host.lanes
    users = {
        (device.resource, each.process)
        for device, found in parts.discovery.use.holders.items()
        for each in found
    }
    return Readings(
        now=core.clock.wall(),
        inventory=core.inventory.value,
        book=core.ledger.book.value,
        standings=core.standings.now(),
        looked=parts.discovery.scanner.looked_at is not None,
        checks={check.name: check.passes for check in checks},
        registrations={str(name): it for name, it in parts.allocation.registrar.states.items()},
        drivers={} if dra is None else {dra.driver: dra.registrar.registration.value},
        questions=core.view.value.questions,
        starts_waiting=parts.allocation.gate.entry.count,
        slices_failing_for=_since(None if dra is None else dra.publisher.failing_since, now),
        ledger_failing_for=_since(core.ledger.failing_since, now),
        lanes_took={name: lane.latency for name, lane in lanes.items()},
        lanes_stuck_for={name: _since(lane.stuck_since, now) for name, lane in lanes.items()},
        scan_seconds=look.full_scan_seconds,
        scan_gaps=len(look.full_gaps),
        scan_age=math.nan if look.full_scan_at is None else now - look.full_scan_at,
        holders=Counter(str(resource) for resource, _ in users),
        tightest=memory.tightest,
        own_memory=memory.own,
        drift=tuple(each.kind for each in parts.watches.drift.standing),
    )


def _since(moment: float | None, now: float) -> float:
    return 0.0 if moment is None else max(0.0, now - moment)


def readiness(parts: Assembly) -> tuple[ReadinessCheck, ...]:
    """Return every check, with its reason."""
    return (
        *parts.allocation.registrar.checks(),
        *(() if parts.dra is None else parts.dra.checks()),
        *parts.watches.sockets.checks(),
        *parts.kubelet.reader.checks(),
        *parts.watches.proof.checks(),
        *parts.core.host.checks(parts.core.clock.monotonic()),
        *parts.reclaim.resetter.checks(),
        *parts.discovery.scanner.checks(required=parts.core.settings.readiness.require_devices),
        *parts.discovery.specs.checks(),
        *parts.watches.labels.checks(),
        *chain.from_iterable(source.checks() for source in parts.discovery.sources),
        *parts.reclaim.watcher.checks(),
        *parts.discovery.look.checks(),
        check_openly("privileges", "; ".join(parts.lacks.value)),
        *parts.core.live.checks(),
    )
