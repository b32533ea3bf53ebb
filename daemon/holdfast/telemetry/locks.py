"""The metrics of devices and their locks: how many are where, since when, and for how long."""

from collections import Counter as Counted
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.book.book import Book, Phase
from holdfast.model.book.locks import DeviceLock, LockState, Move
from holdfast.model.devices import FaultKind, Inventory
from holdfast.model.ids import DeviceName
from holdfast.telemetry.gauges import Current

_LASTING = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 604800.0)
_LOCKED = tuple(state for state in LockState if state is not LockState.FREE)


class LockMetrics:
    """Shows the book and the inventory, and counts moves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        self._devices = Current(
            "holdfast_devices",
            "Devices by resource and by the state of their lock.",
            ["resource", "state"],
            registry=registry,
        )
        self._unhealthy = Current(
            "holdfast_devices_unhealthy",
            "Devices whose hardware cannot be used.",
            ["resource"],
            registry=registry,
        )
        self._faults = Current(
            "holdfast_device_faults",
            "Devices that have a fault of the kind; one may have several.",
            ["resource", "fault"],
            registry=registry,
        )
        self._no_devices = Gauge(
            "holdfast_no_devices",
            "1 where the hardware was looked at and there is no device to offer.",
            registry=registry,
        )
        self._moves = Counter(
            "holdfast_lock_moves",
            "Moves of locks by the states left and entered.",
            ["before", "after"],
            registry=registry,
        )
        self._lasted = Histogram(
            "holdfast_lock_state_seconds",
            "How long locks were in a state, told when they leave it.",
            ["state"],
            buckets=_LASTING,
            registry=registry,
        )
        self._oldest = Gauge(
            "holdfast_lock_oldest_seconds",
            "For how long the longest of the locks in a state has been in it; 0 without any.",
            ["state"],
            registry=registry,
        )
        self._allocations = Gauge(
            "holdfast_allocations",
            "Live Allocations: pending (the gate not passed) and active.",
            ["phase"],
            registry=registry,
        )
        self._draining = Gauge(
            "holdfast_draining", "1 while the node is drained by hand.", registry=registry
        )
        self._marks = Gauge(
            "holdfast_quarantined_by_hand",
            "Devices that a person withholds from new pods.",
            registry=registry,
        )
        self._marks_oldest = Gauge(
            "holdfast_quarantined_by_hand_oldest_seconds",
            "For how long the first of them has been withheld; 0 without any.",
            registry=registry,
        )
        self._entered: dict[DeviceName, float] = {}

    def know(self, locks: Iterable[DeviceLock]) -> None:
        """Take over since when the locks of the ledger are where they are."""
        self._entered = {lock.device: lock.since for lock in locks}

    def moved(self, moves: Iterable[Move]) -> None:
        """Count moves of locks."""
        for move in moves:
            self._moves.labels(move.before.value, move.after.value).inc()
            if move.before is move.after:
                continue
            since = self._entered.pop(move.device, None)
            if since is not None:
                self._lasted.labels(move.before.value).observe(max(0.0, move.at - since))
            if move.after is not LockState.FREE:
                self._entered[move.device] = move.at

    def show(self, inventory: Inventory, book: Book, *, looked: bool, now: float) -> None:
        """Show how things stand at *now* (seconds since the epoch).

        *looked*: the hardware was looked at, so that no devices are none.
        """
        self._show_devices(inventory, book)
        # What is not read yet is none so far: the driver may never come.
        self._no_devices.set(looked and not inventory.devices)
        for state in _LOCKED:
            since = [lock.since for lock in book.locks.values() if lock.state is state]
            self._oldest.labels(state.value).set(max(0.0, now - min(since, default=now)))
        phases = Counted(each.phase for each in book.allocations.values())
        for phase in Phase:
            self._allocations.labels(phase.value).set(phases[phase])
        self._draining.set(book.marks.drain is not None)
        marked = [each.mark.at for each in book.marks.quarantines.values()]
        self._marks.set(len(marked))
        self._marks_oldest.set(max(0.0, now - min(marked, default=now)))

    def _show_devices(self, inventory: Inventory, book: Book) -> None:
        resources = inventory.resources
        states: Counted[tuple[str, ...]] = Counted(
            {(each, state.value): 0 for each in resources for state in LockState}
        )
        faults: Counted[tuple[str, ...]] = Counted(
            {(each, kind.value): 0 for each in resources for kind in FaultKind}
        )
        unhealthy: Counted[tuple[str, ...]] = Counted({(each,): 0 for each in resources})
        for device in inventory.devices:
            resource, lock = device.name.resource, book.lock_on(device.keys)
            states[resource, (lock.state if lock else LockState.FREE).value] += 1
            unhealthy[resource,] += not device.healthy
            faults.update({(resource, fault.kind.value) for fault in device.faults})
        self._devices.show(states)
        self._faults.show(faults)
        self._unhealthy.show(unhealthy)
