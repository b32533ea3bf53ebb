"""The metrics of devices and their locks."""

from collections import Counter as Counted
from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.book.book import Book, Phase
from holdfast.model.book.locks import DeviceLock, LockState, Move
from holdfast.model.devices import FaultKind, Inventory
from holdfast.model.ids import DeviceName
from holdfast.telemetry.gauges import Current

_LASTING = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 604800.0)
_LOCKED = tuple(state for state in LockState if state is not LockState.FREE)


class LockMetrics:
    """Shows the book and the inventory, and counts lock state changes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        gauge = partial(Gauge, registry=registry)
        current = partial(Current, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._devices = current(
            "holdfast_devices", "Devices by resource and lock state.", ["resource", "state"]
        )
        self._unhealthy = current(
            "holdfast_devices_unhealthy", "Devices whose hardware cannot be used.", ["resource"]
        )
        self._faults = current(
            "holdfast_device_faults",
            "Devices with a fault, by kind of fault; a device can have several.",
            ["resource", "fault"],
        )
        self._no_devices = gauge(
            "holdfast_no_devices", "1 if the hardware scan found no device, else 0."
        )
        self._moves = counter(
            "holdfast_lock_moves",
            "State changes of locks, by state before and after.",
            ["before", "after"],
        )
        self._lasted = histogram(
            "holdfast_lock_state_seconds",
            "How long locks were in a state, recorded when they leave it.",
            ["state"],
            buckets=_LASTING,
        )
        self._oldest = gauge(
            "holdfast_lock_oldest_seconds",
            "How long the oldest lock of a state has been in it; 0 if there is none.",
            ["state"],
        )
        self._allocations = gauge(
            "holdfast_allocations",
            "Current Allocations: pending (no container started yet) and active.",
            ["phase"],
        )
        self._draining = gauge("holdfast_draining", "1 while the node is drained by hand, else 0.")
        self._marks = gauge("holdfast_quarantined_by_hand", "Devices that a person quarantined.")
        self._marks_oldest = gauge(
            "holdfast_quarantined_by_hand_oldest_seconds",
            "How long ago the oldest quarantine by hand began; 0 if there is none.",
        )
        self._entered: dict[DeviceName, float] = {}
        self._shown: tuple[Inventory, Book] | None = None

    def know(self, locks: Iterable[DeviceLock]) -> None:
        """Take over when each lock in the ledger entered its state."""
        self._entered = {lock.device: lock.since for lock in locks}

    def moved(self, moves: Iterable[Move]) -> None:
        """Count state changes of locks."""
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
        """Show the state at *now* (seconds since the epoch).

        *looked*: the hardware was scanned, so an empty inventory means that there are no devices.
        """
        if self._shown is None or self._shown[0] is not inventory or self._shown[1] is not book:
            self._shown = inventory, book
            self._show_devices(inventory, book)
        # A driver that may still load counts as no devices: it may never come.
        self._no_devices.set(looked and not (inventory.devices or inventory.left_out))
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
