"""Collects the facts of the readiness checks from what the parts publish."""

from holdfast.app.watches.proof import PATIENCE
from holdfast.app.wiring.parts import Parts
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import Registration
from holdfast.model.node.readiness import Check, Known, ReadinessFacts, judge_readiness

_SLACK = 60.0
"""More than the deadlines of all lanes that a scan needs: a later result means it hangs."""


def readiness(parts: Parts) -> tuple[Check, ...]:
    """Return every check, with its reason."""
    return judge_readiness(_facts(parts))


def registrations(parts: Parts) -> dict[ResourceName, Registration]:
    """Return each resource's registration, including those that kubelet does not know yet."""
    known = parts.registrar.registrations.value
    return dict.fromkeys(parts.offering.offers.value.devices, Registration()) | dict(known)


def drivers(parts: Parts) -> dict[str, Registration]:
    """Return the registration of the DRA driver by its name, where there is one."""
    dra = parts.dra
    return {} if dra is None else {dra.driver: dra.registrar.registration.value}


def _facts(parts: Parts) -> ReadinessFacts:
    inventory = parts.scanner.inventory.value
    offered = tuple(parts.offering.offers.value.devices)
    view, watcher, look, settings = (
        parts.reader.view.value,
        parts.watcher,
        parts.look,
        parts.settings,
    )
    last = look.last_scan
    return ReadinessFacts(
        now=parts.clock.monotonic(),
        resources=offered,
        kubelet=registrations(parts),
        sockets=parts.watches.sockets.known(offered),
        checkpoint_readable=view.readable,
        # A node that never had a pod with devices has no checkpoint yet: no reason to stay unready.
        checkpoint_missing=parts.folder.state.value.checkpoint is None,
        checkpoint_problem=view.problem,
        ledger=Known(at=parts.ledger.proven_at, patience=PATIENCE, problem=parts.ledger.problem),
        ledger_failing_since=parts.ledger.failing_since,
        lanes={name: lane.stuck_since for name, lane in parts.host.lanes.items()},
        resets=parts.resetter.stuck,
        hardware=Known(
            at=parts.scanner.looked_at,
            patience=2 * settings.discovery.rescan + _SLACK,
            problem=parts.scanner.problem,
        ),
        devices=len(inventory.devices),
        require_devices=settings.readiness.require_devices,
        specs=parts.specs.published.problem,
        configuration=parts.live.refused,
        document=parts.live.document,
        node_label=parts.live.unread(),
        labels=parts.watches.labels.problem,
        looked=watcher.looked.is_set(),
        watch=Known(
            at=watcher.compared_at,
            patience=2 * settings.reclaim.poll + _SLACK,
            problem=watcher.problem,
        ),
        sight=look.full_gaps or (last.gaps if last is not None else ()),
        sighted=look.full_scan_at,
        lacks=parts.lacks,
        idle_rules=inventory.idle_rules,
        vendors=tuple(check for each in parts.sources for check in each.checks()),
        dra=() if parts.dra is None else tuple(parts.dra.checks()),
    )
