"""The gauges: one table of what is read off the daemon and its node, and shown at a scrape."""

import math
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.model.book.book import Book, LockState, Phase
from holdfast.model.book.claims import ClaimPhase, phase_of
from holdfast.model.book.drift import Drift
from holdfast.model.book.standing import Standings
from holdfast.model.devices import FaultKind, Inventory
from holdfast.model.ids import DeviceName
from holdfast.model.kubelet import Registration
from holdfast.model.node.memory import Memory, OwnMemory

Series = Mapping[tuple[str, ...], float]
"""Numbers by the values of labels."""

_LOCKED = tuple(state for state in LockState if state is not LockState.FREE)
_CLAIMED = tuple(phase for phase in ClaimPhase if phase is not ClaimPhase.OVER)


class Readings(Struct, frozen=True, kw_only=True):
    """How the daemon and its node stand at `now`, in seconds since the epoch.

    `looked`: the hardware was scanned, so an empty inventory means that there are no devices.
    `drivers` are the registrations of DRA drivers. `holders` counts them by resource; `tightest` is
    the memory of each device's holder that has the least headroom. `drift` has the kinds of the
    disagreements that stand. Every other number is a count, or in seconds.
    """

    now: float = 0.0
    inventory: Inventory = Inventory()
    book: Book = field(default_factory=Book)
    standings: Standings = Standings()
    looked: bool = False
    checks: Mapping[str, bool] = {}
    registrations: Mapping[str, Registration] = {}
    drivers: Mapping[str, Registration] = {}
    questions: int = 0
    starts_waiting: int = 0
    slices_failing_for: float = 0.0
    ledger_failing_for: float = 0.0
    lanes_took: Mapping[str, float] = {}
    lanes_stuck_for: Mapping[str, float] = {}
    scan_seconds: float = 0.0
    scan_gaps: int = 0
    scan_age: float = math.nan
    holders: Mapping[str, int] = {}
    tightest: Mapping[DeviceName, Memory] = {}
    own_memory: OwnMemory = OwnMemory()
    drift: tuple[str, ...] = ()


class Measure(Struct, frozen=True):
    """One metric: its name, what it says of the readings by its labels, whether it only grows."""

    name: str
    help: str
    of: Callable[[Readings], float | Series]
    labels: tuple[str, ...] = ()
    grows: bool = False


class Gauges(Collector):
    """Shows the latest readings to whoever collects metrics, on any thread."""

    def __init__(self, *, started: float) -> None:
        """Begin without any; what grows does so since *started* (seconds since the epoch)."""
        self._started = started
        self._readings: Readings | None = None

    def show(self, readings: Readings) -> None:
        """Show *readings* from now on."""
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the table as it is now."""
        readings = self._readings  # one of them for all, whatever is published meanwhile
        for each in MEASURES:
            found = each.of(readings or Readings())
            series = found if isinstance(found, Mapping) else {(): found}
            if each.labels and readings is None:
                series = {}  # nothing was read yet, which is not the same as none
            if each.grows:
                counter = CounterMetricFamily(each.name, each.help, labels=each.labels)
                for labels, value in series.items():
                    counter.add_metric(labels, value, created=self._started)
                yield counter
            else:
                gauge = GaugeMetricFamily(each.name, each.help, labels=each.labels)
                for labels, value in series.items():
                    gauge.add_metric(labels, value)
                yield gauge


def _known(value: float | None) -> float:
    """Return NaN for what is not known; zero would mean that no memory may be used."""
    return math.nan if value is None else value


def _by_name(values: Mapping[str, float]) -> Series:
    return {(name,): value for name, value in values.items()}


def _states(of: Readings) -> Series:
    found: Counted[tuple[str, ...]] = Counted(
        {(each, state.value): 0 for each in of.inventory.resources for state in LockState}
    )
    for each in of.standings.listed:
        found[each.name.resource, each.state.value] += 1
    return found


def _unhealthy(of: Readings) -> Series:
    unhealthy = Counted(each.name.resource for each in of.standings.listed if not each.healthy)
    return {(each,): unhealthy[each] for each in of.inventory.resources}


def _faults(of: Readings) -> Series:
    found = Counted(
        (device.name.resource, kind)
        for device in of.inventory.devices
        for kind in {fault.kind for fault in device.faults}
    )
    resources = of.inventory.resources
    return {(each, kind.value): found[each, kind] for each in resources for kind in FaultKind}


def _no_devices(of: Readings) -> float:
    # A driver that may still load counts as no devices: it may never come.
    return of.looked and not (of.inventory.devices or of.inventory.left_out)


def _oldest_locks(of: Readings) -> Series:
    locks = of.book.locks.values()
    return {
        (state.value,): _age(of, (each.since for each in locks if each.state is state))
        for state in _LOCKED
    }


def _age(of: Readings, since: Iterator[float]) -> float:
    """Return for how long the oldest has been; 0 if there is none."""
    return max(0.0, of.now - min(since, default=of.now))


def _counted(found: Iterable[Enum], every: Iterable[Enum]) -> Series:
    """Return how often each of *every* was found, zeros included."""
    counts = Counted(found)
    return {(each.value,): counts[each] for each in every}


def _claims(of: Readings) -> Series:
    return _counted((phase_of(of.book, each) for each in of.book.claims.values()), _CLAIMED)


def _registrations(of: Readings) -> dict[str, Registration]:
    return {**of.registrations, **of.drivers}


def _holders_memory(value: Callable[[Memory], int | None]) -> Callable[[Readings], Series]:
    return lambda of: {
        (name.resource, name.id): _known(value(memory)) for name, memory in of.tightest.items()
    }


_RESOURCE = ("resource",)
_HELD = ("resource", "device")

MEASURES: tuple[Measure, ...] = (
    Measure(
        "holdfast_devices", "Devices by resource and lock state.", _states, ("resource", "state")
    ),
    Measure(
        "holdfast_devices_unhealthy",
        "Devices whose hardware cannot be used.",
        _unhealthy,
        _RESOURCE,
    ),
    Measure(
        "holdfast_device_faults",
        "Devices with a fault, by kind of fault; a device can have several.",
        _faults,
        ("resource", "fault"),
    ),
    Measure("holdfast_no_devices", "1 if the hardware scan found no device, else 0.", _no_devices),
    Measure(
        "holdfast_lock_oldest_seconds",
        "How long the oldest lock of a state has been in it; 0 if there is none.",
        _oldest_locks,
        ("state",),
    ),
    Measure(
        "holdfast_allocations",
        "Current Allocations: pending (no container started yet) and active.",
        lambda of: _counted((each.phase for each in of.book.allocations.values()), Phase),
        ("phase",),
    ),
    Measure(
        "holdfast_draining",
        "1 while the node is drained by hand, else 0.",
        lambda of: of.book.marks.drain is not None,
    ),
    Measure(
        "holdfast_quarantined_by_hand",
        "Devices that a person quarantined.",
        lambda of: len(of.book.marks.quarantines),
    ),
    Measure(
        "holdfast_quarantined_by_hand_oldest_seconds",
        "How long ago the oldest quarantine by hand began; 0 if there is none.",
        lambda of: _age(of, (each.mark.at for each in of.book.marks.quarantines.values())),
    ),
    Measure(
        "holdfast_gate_waiting",
        "Container starts that wait for their devices now.",
        lambda of: of.starts_waiting,
    ),
    Measure(
        "holdfast_claims", "Claims that have or wait for devices, by phase.", _claims, ("phase",)
    ),
    Measure(
        "holdfast_resource_slices_failing_seconds",
        "How long the ResourceSlices could not be written or read; 0 while they can.",
        lambda of: of.slices_failing_for,
    ),
    Measure(
        "holdfast_holders",
        "Known processes that hold a device.",
        lambda of: _by_name({**dict.fromkeys(of.inventory.resources, 0), **of.holders}),
        _RESOURCE,
    ),
    Measure(
        "holdfast_holder_memory_limit_bytes",
        "The tightest memory limit of the device's holder that has the least headroom.",
        _holders_memory(lambda memory: memory.limit),
        _HELD,
    ),
    Measure(
        "holdfast_holder_memory_usage_bytes",
        "Memory that the same holder's cgroup uses, without file cache.",
        _holders_memory(lambda memory: memory.usage),
        _HELD,
    ),
    Measure(
        "holdfast_holder_memory_headroom_bytes",
        "Memory that the same holder can still use before it reaches a limit or the node's "
        "memory is full.",
        _holders_memory(lambda memory: memory.headroom),
        _HELD,
    ),
    Measure(
        "holdfast_kubelet_registered",
        "1 while the resource or the DRA driver is registered with kubelet, else 0.",
        lambda of: _by_name({name: it.registered for name, it in _registrations(of).items()}),
        _RESOURCE,
    ),
    Measure(
        "holdfast_kubelet_streams",
        "Open ListAndWatch streams.",
        lambda of: _by_name({name: it.streams for name, it in of.registrations.items()}),
        _RESOURCE,
    ),
    Measure(
        "holdfast_kubelet_registrations",
        "Registrations that kubelet accepted since the daemon started.",
        lambda of: _by_name({name: it.registrations for name, it in _registrations(of).items()}),
        _RESOURCE,
        grows=True,
    ),
    Measure(
        "holdfast_kubelet_questions",
        "Complete answers of kubelet to the question which pods it has.",
        lambda of: of.questions,
        grows=True,
    ),
    Measure(
        "holdfast_drift",
        "Current disagreements between the ledger, kubelet and the kernel, by kind.",
        lambda of: _counted(map(Drift, of.drift), Drift),
        ("kind",),
    ),
    Measure(
        "holdfast_ready",
        "1 for a readiness check that passes, 0 for one that fails.",
        lambda of: _by_name(of.checks),
        ("check",),
    ),
    Measure(
        "holdfast_lane_seconds",
        "How long the last call of each lane (a thread for blocking calls) took.",
        lambda of: _by_name(of.lanes_took),
        ("lane",),
    ),
    Measure(
        "holdfast_lane_stuck_seconds",
        "How long the lane's call has been past its deadline; 0 if it is not.",
        lambda of: _by_name(of.lanes_stuck_for),
        ("lane",),
    ),
    Measure(
        "holdfast_scan_seconds",
        "How long the last scan of all processes took.",
        lambda of: of.scan_seconds,
    ),
    Measure(
        "holdfast_scan_gaps",
        "Number of things that the last scan of all processes could not see.",
        lambda of: of.scan_gaps,
    ),
    Measure(
        "holdfast_scan_age_seconds",
        "How long ago the last scan of all processes was; NaN before the first.",
        lambda of: of.scan_age,
    ),
    Measure(
        "holdfast_ledger_failing_seconds",
        "How long no write to the ledger has succeeded; 0 while writes succeed.",
        lambda of: of.ledger_failing_for,
    ),
    Measure(
        "holdfast_memory_limit_bytes",
        "The daemon's memory limit: the tightest limit of its cgroup and all visible parent "
        "cgroups, or the node's memory. NaN: unknown.",
        lambda of: _known(of.own_memory.memory.limit),
    ),
    Measure(
        "holdfast_memory_usage_bytes",
        "Memory that the daemon's cgroup uses, without file cache. NaN: unknown.",
        lambda of: _known(of.own_memory.memory.usage),
    ),
    Measure(
        "holdfast_memory_resident_bytes",
        "Resident memory of the daemon's process. NaN: unknown.",
        lambda of: _known(of.own_memory.resident),
    ),
    Measure(
        "holdfast_memory_limit_used_ratio",
        "Share of the memory limit that is used, 0 to 1; the daemon warns at 0.85.",
        lambda of: of.own_memory.share,
    ),
)
"""Every metric of what stands; those of what happens are in `metrics`."""
