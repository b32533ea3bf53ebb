"""The metrics: what is shown for what happened, in the words of Prometheus."""

import ast
import inspect
import re
import time

import pytest
from prometheus_client import generate_latest

import holdfast
from fakes.books import WHOLE, X, device_lock, device_of, drafted, name, silicon
from fakes.standings import standings_of
from holdfast.allocation.entry import EntryOutcome
from holdfast.app.answers.readiness import readings
from holdfast.model.book.book import Allocation, Book, DeviceLock, LockState, Move, Phase
from holdfast.model.book.claims import Wish, end_claim
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.devices import Device, Fault, FaultKind, Inventory
from holdfast.model.dra.outcomes import ApiOutcome, PrepareOutcome, UnprepareOutcome, api_outcome
from holdfast.model.dra.passage import enter
from holdfast.model.ids import (
    BootId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    ResourceName,
)
from holdfast.model.kubelet import Registration
from holdfast.model.node.memory import Memory, OwnMemory
from holdfast.model.nvidia.gpu import GpuEvent, GpuEventKind
from holdfast.model.nvidia.xids import labels_of
from holdfast.telemetry.gauges import Readings
from holdfast.telemetry.metrics import Metrics

_TPU = ResourceName("google.com/tpu")
_CLAIMS = [ClaimRef("team", ClaimUid(f"uid-{number}"), f"claim-{number}") for number in range(2)]


def _shown(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def _allocation(number: int, phase: Phase) -> Allocation:
    return Allocation(
        id=number, resource=_TPU, devices={}, created_at=0.0, boot=BootId("b"), phase=phase
    )


def test_every_metric_is_named_after_the_program_and_explained() -> None:
    families = list(Metrics().registry.collect())

    assert families
    for family in families:
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)
        assert family.documentation.endswith(".")


def _device(id_: str, *faults: FaultKind) -> Device:
    return device_of(
        name(id_, _TPU), id_, faults=tuple(Fault(kind=kind, text="") for kind in faults)
    )


def _lock(id_: str, state: LockState, since: float) -> DeviceLock:
    return device_lock(name(id_, _TPU), id_, state=state, since=since)


def _move(id_: str, before: LockState, after: LockState, at: float) -> Move:
    return Move(
        at=at,
        device=DeviceName(_TPU, DeviceId(id_)),
        fence=1,
        before=before,
        after=after,
        pod=None,
        evidence="",
    )


def _book(*locks: DeviceLock, marks: Marks | None = None) -> Book:
    return Book(locks={lock.device: lock for lock in locks}, marks=marks or Marks())


def _inventory(*devices: Device) -> Inventory:
    return Inventory(resources=(_TPU,), devices=devices)


def _readings(inventory: Inventory, book: Book, *, looked: bool, now: float) -> Readings:
    found = standings_of(book, inventory)
    return Readings(inventory=inventory, book=book, standings=found, looked=looked, now=now)


def test_devices_are_counted_by_resource_state_and_fault() -> None:
    metrics = Metrics()
    inventory = _inventory(_device("a"), _device("b", FaultKind.NO_DRIVER), _device("c"))
    book = _book(_lock("a", LockState.HELD, 0.0))

    metrics.gauges.show(_readings(inventory, book, looked=True, now=0.0))

    shown = _shown(metrics)
    assert 'holdfast_devices{resource="google.com/tpu",state="held"} 1.0' in shown
    assert 'holdfast_devices{resource="google.com/tpu",state="free"} 2.0' in shown
    assert 'holdfast_devices_unhealthy{resource="google.com/tpu"} 1.0' in shown
    assert 'holdfast_device_faults{fault="no-driver",resource="google.com/tpu"} 1.0' in shown
    assert 'holdfast_device_faults{fault="ill",resource="google.com/tpu"} 0.0' in shown


def test_a_resource_that_is_gone_is_counted_no_more() -> None:
    metrics = Metrics()
    metrics.gauges.show(_readings(_inventory(_device("a")), _book(), looked=True, now=0.0))

    metrics.gauges.show(_readings(Inventory(), _book(), looked=True, now=0.0))

    assert "google.com/tpu" not in _shown(metrics)


@pytest.mark.parametrize(
    ("looked", "inventory", "none"),
    [
        (False, Inventory(), 0),
        (True, Inventory(), 1),
        (True, Inventory(unseen=frozenset({_TPU})), 1),
        (True, _inventory(_device("a")), 0),
    ],
)
def test_no_devices_is_told_only_once_the_hardware_was_looked_at(
    looked: bool, inventory: Inventory, none: int
) -> None:
    metrics = Metrics()

    metrics.gauges.show(_readings(inventory, _book(), looked=looked, now=0.0))

    assert f"holdfast_no_devices {none}.0" in _shown(metrics)


def test_a_move_is_counted_by_where_it_came_from_and_went() -> None:
    metrics = Metrics()
    move = _move("x", LockState.FREE, LockState.HELD, 0.0)
    note = _move("x", LockState.HELD, LockState.HELD, 0.0)

    metrics.locks.moved([move, note, move])

    shown = _shown(metrics)
    assert 'holdfast_lock_moves_total{after="held",before="free"} 2.0' in shown
    assert 'holdfast_lock_moves_total{after="held",before="held"}' not in shown


def test_how_long_a_lock_was_in_a_state_is_told_when_it_leaves_it() -> None:
    metrics = Metrics()
    metrics.locks.know([_lock("old", LockState.QUARANTINED, 100.0)])

    metrics.locks.moved([_move("new", LockState.FREE, LockState.HELD, 200.0)])
    metrics.locks.moved([_move("new", LockState.HELD, LockState.HELD, 250.0)])
    metrics.locks.moved([_move("new", LockState.HELD, LockState.RELEASING, 260.0)])
    metrics.locks.moved([_move("new", LockState.RELEASING, LockState.FREE, 262.0)])
    metrics.locks.moved([_move("new", LockState.FREE, LockState.HELD, 999.0)])
    metrics.locks.moved([_move("old", LockState.QUARANTINED, LockState.RECLAIMING, 700.0)])

    shown = _shown(metrics)
    assert 'holdfast_lock_state_seconds_sum{state="held"} 60.0' in shown
    assert 'holdfast_lock_state_seconds_sum{state="releasing"} 2.0' in shown
    assert 'holdfast_lock_state_seconds_sum{state="quarantined"} 600.0' in shown
    assert 'state="free"' not in shown.replace("holdfast_devices", "")


def test_the_oldest_lock_of_each_state_tells_its_age() -> None:
    metrics = Metrics()
    book = _book(_lock("a", LockState.QUARANTINED, 10.0), _lock("b", LockState.QUARANTINED, 30.0))

    metrics.gauges.show(_readings(_inventory(), book, looked=True, now=100.0))

    shown = _shown(metrics)
    assert 'holdfast_lock_oldest_seconds{state="quarantined"} 90.0' in shown
    assert 'holdfast_lock_oldest_seconds{state="held"} 0.0' in shown


def test_allocations_are_shown_by_phase_also_when_there_are_none() -> None:
    metrics = Metrics()
    two = {number: _allocation(number, Phase.PENDING) for number in (1, 2)}
    metrics.gauges.show(_readings(_inventory(), Book(allocations=two), looked=True, now=0.0))
    before = _shown(metrics)

    metrics.gauges.show(_readings(_inventory(), Book(), looked=True, now=0.0))

    assert 'holdfast_allocations{phase="pending"} 2.0' in before
    assert 'holdfast_allocations{phase="active"} 0.0' in before
    assert 'holdfast_allocations{phase="pending"} 0.0' in _shown(metrics)


def test_a_registration_shows_whether_it_holds_its_streams_and_how_often_it_was_accepted() -> None:
    metrics = Metrics()
    metrics.gauges.show(
        Readings(
            registrations={_TPU: Registration(registered=True, streams=1, registrations=6)},
            drivers={"holdfast.dev": Registration(registrations=6)},
            questions=6,
        )
    )

    shown = _shown(metrics)
    assert 'holdfast_kubelet_registrations_total{resource="google.com/tpu"} 6.0' in shown
    assert "holdfast_kubelet_questions_total 6.0" in shown
    assert 'holdfast_kubelet_streams{resource="google.com/tpu"} 1.0' in shown
    assert 'holdfast_kubelet_registered{resource="google.com/tpu"} 1.0' in shown
    assert 'holdfast_kubelet_registered{resource="holdfast.dev"} 0.0' in shown
    assert 'holdfast_kubelet_registrations_total{resource="holdfast.dev"} 6.0' in shown
    assert 'holdfast_kubelet_streams{resource="holdfast.dev"}' not in shown


def test_a_lane_shows_how_long_it_has_been_overdue() -> None:
    metrics = Metrics()

    metrics.gauges.show(
        Readings(
            lanes_took={"scan": 0.25, "ledger": 0.5}, lanes_stuck_for={"scan": 12.0, "ledger": 0.0}
        )
    )

    shown = _shown(metrics)
    assert 'holdfast_lane_seconds{lane="scan"} 0.25' in shown
    assert 'holdfast_lane_stuck_seconds{lane="scan"} 12.0' in shown
    assert 'holdfast_lane_stuck_seconds{lane="ledger"} 0.0' in shown


def test_a_refusal_of_the_gate_is_counted_by_its_reason_and_a_pass_is_none() -> None:
    metrics = Metrics()
    for outcome in EntryOutcome:
        metrics.passed_gate(outcome, 0.5)

    shown = _shown(metrics)
    assert 'holdfast_gate_refusals_total{reason="in-use"} 1.0' in shown
    assert shown.count("holdfast_gate_refusals_total{") == len(EntryOutcome) - 2
    assert 'holdfast_gate_wait_seconds_count{outcome="passed"} 1.0' in shown


def test_every_reason_of_a_refusal_is_there_before_the_first_so_that_it_is_an_increase() -> None:
    assert _shown(Metrics()).count("holdfast_gate_refusals_total{") == len(EntryOutcome) - 2


def test_a_resource_whose_devices_nobody_holds_shows_no_holders() -> None:
    metrics = Metrics()

    metrics.gauges.show(Readings(inventory=_inventory(_device("a"))))

    assert 'holdfast_holders{resource="google.com/tpu"} 0.0' in _shown(metrics)


def test_each_reading_is_taken_off_the_daemon_for_one_that_is_not_shows_as_none() -> None:
    (made,) = (
        {each.arg for each in node.keywords}
        for node in ast.walk(ast.parse(inspect.getsource(readings)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == Readings.__name__
    )
    assert made == set(Readings.__struct_fields__)


def test_before_anything_was_read_no_series_says_that_there_is_none_of_it() -> None:
    metrics = Metrics()
    assert "holdfast_allocations{" not in _shown(metrics)

    metrics.gauges.show(Readings())

    assert 'holdfast_allocations{phase="pending"} 0.0' in _shown(metrics)


def test_a_limit_that_is_not_known_is_not_shown_as_none_at_all() -> None:
    assert "holdfast_memory_limit_bytes NaN" in _shown(Metrics())


def test_the_version_is_a_label_and_the_start_a_time_since_the_epoch() -> None:
    began = time.time()
    registry = Metrics().registry

    version = {"version": holdfast.__version__}
    assert registry.get_sample_value("holdfast_build_info", version) == 1.0
    started = registry.get_sample_value("holdfast_start_time_seconds")
    assert started is not None
    assert began <= started <= time.time()


def test_every_call_wait_step_and_check_shows_with_its_labels() -> None:
    metrics = Metrics()

    metrics.called(_TPU, "Allocate", "OK", 0.001)
    metrics.passed_gate(EntryOutcome.UNVERIFIED, 0.5)
    metrics.reclaimed("term", "sent")
    metrics.committed((), 0.001)
    metrics.gauges.show(
        Readings(
            starts_waiting=3,
            ledger_failing_for=7.0,
            holders={_TPU: 4},
            own_memory=OwnMemory(memory=Memory(total=64 << 20), resident=7, share=0.5),
            scan_seconds=0.02,
            scan_gaps=1,
            scan_age=30.0,
            checks={"ledger": True, "lane scan": False},
            drift=("lost-books", "lost-books"),
        )
    )

    shown = _shown(metrics)
    for line in (
        'holdfast_kubelet_call_seconds_count{call="Allocate",code="OK",resource="google.com/tpu"} 1.0',
        'holdfast_gate_wait_seconds_count{outcome="unverified"} 1.0',
        "holdfast_gate_waiting 3.0",
        'holdfast_reclaim_steps_total{outcome="sent",step="term"} 1.0',
        "holdfast_ledger_commit_seconds_count 1.0",
        "holdfast_ledger_failing_seconds 7.0",
        'holdfast_holders{resource="google.com/tpu"} 4.0',
        "holdfast_memory_limit_bytes 6.7108864e+07",
        "holdfast_memory_resident_bytes 7.0",
        "holdfast_scan_seconds 0.02",
        "holdfast_scan_gaps 1.0",
        "holdfast_scan_age_seconds 30.0",
        "holdfast_memory_limit_used_ratio 0.5",
        'holdfast_drift{kind="lost-books"} 2.0',
        'holdfast_drift{kind="counted-twice"} 0.0',
        'holdfast_ready{check="ledger"} 1.0',
        'holdfast_ready{check="lane scan"} 0.0',
    ):
        assert line in shown


def test_what_is_withheld_by_hand_is_shown_also_when_nothing_is() -> None:
    metrics = Metrics()
    metrics.gauges.show(_readings(_inventory(), _book(), looked=True, now=0.0))
    assert "holdfast_draining 0.0" in _shown(metrics)
    assert "holdfast_quarantined_by_hand_oldest_seconds 0.0" in _shown(metrics)
    mark = Mark(asker=Asker(uid=0, pid=1), at=40.0)
    device = DeviceName(_TPU, DeviceId("x"))
    quarantine = Quarantine(device=device, keys=frozenset(), mark=mark)
    marks = Marks(drain=mark).with_quarantine(quarantine)
    metrics.gauges.show(_readings(_inventory(), _book(marks=marks), looked=True, now=100.0))
    assert "holdfast_draining 1.0" in _shown(metrics)
    assert "holdfast_quarantined_by_hand 1.0" in _shown(metrics)
    assert "holdfast_quarantined_by_hand_oldest_seconds 60.0" in _shown(metrics)


def test_events_of_the_hardware_are_counted_by_what_clears_them() -> None:
    metrics = Metrics()
    for xid, condemns in [(48, True), (48, True), (31, False), (4711, True), (4712, True)]:
        event = GpuEvent(kind=GpuEventKind.XID, uuid="GPU-1", xid=xid)
        metrics.happened(*labels_of(event, condemns=condemns))
    event = GpuEvent(kind=GpuEventKind.SINGLE_BIT_ECC, uuid="GPU-1")
    metrics.happened(*labels_of(event, condemns=False))
    shown = _shown(metrics)
    for labels, count in [
        ('clears="reset",code="48",kind="xid"', 2),
        ('clears="ignored",code="31",kind="xid"', 1),
        ('clears="reset",code="unknown",kind="xid"', 2),
        ('clears="ignored",code="",kind="single-bit-ecc"', 1),
    ]:
        assert f"holdfast_hardware_events_total{{{labels}}} {count}.0" in shown


def test_claims_are_counted_by_phase_and_those_that_are_over_are_not() -> None:
    metrics = Metrics()
    draft = drafted()
    for number, ref in enumerate(_CLAIMS):
        devices = {WHOLE: silicon(**{f"d{number}": f"{number}"})}
        wish = Wish(ref=ref, pods={X: "train"}, devices=devices)
        assert enter(draft, wish, "the kernel shows nobody") is None
    end_claim(draft, _CLAIMS[0].uid, "over")

    metrics.gauges.show(Readings(book=draft.book, slices_failing_for=12.0))

    shown = _shown(metrics)
    assert 'holdfast_claims{phase="prepared"} 1.0' in shown
    assert 'holdfast_claims{phase="unpreparing"} 1.0' in shown
    assert 'holdfast_claims{phase="preparing"} 0.0' in shown
    assert "holdfast_resource_slices_failing_seconds 12.0" in shown


def test_what_became_of_claims_slices_and_requests_is_counted() -> None:
    metrics = Metrics()
    metrics.claims.prepared(PrepareOutcome.WAITING, 40.0)
    metrics.claims.unprepared(UnprepareOutcome.HELD, 0.1)
    metrics.claims.wrote_slice(True)
    metrics.claims.wrote_slice(False)
    metrics.claims.asked_server(ApiOutcome.TIMEOUT)

    shown = _shown(metrics)
    assert 'holdfast_claim_prepare_seconds_sum{outcome="waiting"} 40.0' in shown
    assert 'holdfast_claim_prepare_seconds_count{outcome="refused"} 0.0' in shown
    assert 'holdfast_claim_unprepare_seconds_count{outcome="held"} 1.0' in shown
    assert 'holdfast_resource_slice_writes_total{outcome="written"} 1.0' in shown
    assert 'holdfast_resource_slice_writes_total{outcome="failed"} 1.0' in shown
    assert 'holdfast_api_requests_total{outcome="timeout"} 1.0' in shown


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, ApiOutcome.OK),
        (201, ApiOutcome.OK),
        (300, ApiOutcome.INVALID),
        (400, ApiOutcome.INVALID),
        (401, ApiOutcome.UNAUTHORIZED),
        (403, ApiOutcome.FORBIDDEN),
        (404, ApiOutcome.GONE),
        (409, ApiOutcome.CONFLICT),
        (410, ApiOutcome.GONE),
        (422, ApiOutcome.INVALID),
        (429, ApiOutcome.BUSY),
        (500, ApiOutcome.FAILED),
        (503, ApiOutcome.FAILED),
    ],
)
def test_each_status_of_the_api_server_is_one_of_few_outcomes(
    status: int, outcome: ApiOutcome
) -> None:
    assert api_outcome(status) is outcome


def test_changes_of_the_configuration_are_counted_by_what_came_of_them() -> None:
    metrics = Metrics()
    metrics.reloaded("refused")
    shown = _shown(metrics)
    assert 'holdfast_configuration_reloads_total{outcome="refused"} 1.0' in shown
    assert 'holdfast_configuration_reloads_total{outcome="live"} 0.0' in shown
