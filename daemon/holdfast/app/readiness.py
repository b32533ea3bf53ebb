"""The readiness checks: each says what it saw, from facts the parts publish."""

import time

from holdfast.app.parts import Parts
from holdfast.kubelet.checkpoint import FileId
from holdfast.model.gpu import DriverState
from holdfast.telemetry.probes import Check


def readiness(parts: Parts) -> tuple[Check, ...]:
    """Return every check, with its reason where it fails or where it proves less than it could."""
    return (
        *_registrations(parts),
        _books(parts),
        _ledger(parts),
        *_lanes(parts),
        _resets(parts),
        _hardware(parts),
        *_gpus(parts),
        _specs(parts),
        _looked(parts),
        _sight(parts),
    )


def _registrations(parts: Parts) -> list[Check]:
    checks = []
    states = parts.registrar.registrations.value
    for resource in parts.scanner.inventory.value.resources:
        state = states.get(resource)
        passes = state is not None and state.registered and state.streams > 0
        reason = "not registered yet" if state is None else state.problem
        if not passes and not reason:
            reason = "kubelet has no stream open"
        checks.append(Check(name=f"registered {resource}", passes=passes, reason=reason))
    return checks


def _books(parts: Parts) -> Check:
    view = parts.accounts.view.value
    # A node that never had a pod with devices has no checkpoint yet: no reason to stay unready.
    missing = FileId.of(parts.folder.checkpoint) is None
    reason = "" if view.readable and not view.problem else view.problem
    return Check(name="kubelet's checkpoint", passes=view.readable or missing, reason=reason)


def _ledger(parts: Parts) -> Check:
    since = parts.ledger.failing_since
    reason = "" if since is None else f"no commit for {time.monotonic() - since:.0f} s"
    return Check(name="ledger", passes=since is None, reason=reason)


def _lanes(parts: Parts) -> list[Check]:
    checks = []
    for name, lane in parts.host.lanes.items():
        since = lane.stuck_since
        reason = "" if since is None else f"stuck for {time.monotonic() - since:.0f} s"
        checks.append(Check(name=f"lane {name}", passes=since is None, reason=reason))
    return checks


def _resets(parts: Parts) -> Check:
    stuck = parts.resetter.stuck
    return Check(name="resets of devices", passes=not stuck, reason=stuck)


def _hardware(parts: Parts) -> Check:
    devices = len(parts.scanner.inventory.value.devices)
    reason = parts.scanner.problem or ("no devices on this node" if not devices else "")
    return Check(name="hardware", passes=not parts.scanner.problem, reason=reason)


def _specs(parts: Parts) -> Check:
    """Tell whether names lead anywhere; without them new containers get their nodes by path."""
    problem = parts.specs.published.problem
    return Check(name="CDI specs", passes=not problem, reason=problem)


def _gpus(parts: Parts) -> list[Check]:
    """Tell where NVIDIA's driver stands, on a node whose kernel has it or ever had."""
    if parts.gpus is None:
        return []
    source = parts.gpus.source
    reading = source.reading.value
    if reading.state is DriverState.ABSENT and not source.ever_read:
        return []
    passes = reading.state is DriverState.READY
    problems = source.facts.value.layout.problems
    reason = reading.reason or "; ".join(problems)
    return [Check(name="nvidia driver", passes=passes, reason=reason)]


def _looked(parts: Parts) -> Check:
    problem = parts.watcher.problem
    looked = parts.watcher.looked.is_set()
    return Check(
        name="first look",
        passes=looked and not problem,
        reason=problem or ("" if looked else "no full look at the node yet"),
    )


def _sight(parts: Parts) -> Check:
    """Tell what the last scan could not see; less is proven then, but nothing stops."""
    scan = parts.look.last_scan
    gaps = scan.gaps if scan is not None else ()
    if not gaps:
        return Check(name="every holder can be seen", passes=True)
    return Check(name="every holder can be seen", passes=False, reason=gaps[0])
