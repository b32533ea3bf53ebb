"""The metrics: what is shown for what happened, in the words of Prometheus."""

import re

from prometheus_client import generate_latest

from holdfast.model.book import Allocation, Phase
from holdfast.model.gpu import GpuEvent, GpuEventKind
from holdfast.model.ids import BootId, DeviceId, DeviceName, ResourceName
from holdfast.model.locks import LockState, Move
from holdfast.model.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.memory import Memory
from holdfast.telemetry.metrics import Metrics

_TPU = ResourceName("google.com/tpu")


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


def test_devices_are_counted_by_resource_and_state() -> None:
    metrics = Metrics()

    metrics.count_devices({(_TPU, LockState.HELD): 3, (_TPU, LockState.FREE): 1})

    assert 'holdfast_devices{resource="google.com/tpu",state="held"} 3.0' in _shown(metrics)


def test_a_move_is_counted_by_where_it_came_from_and_went() -> None:
    metrics = Metrics()
    move = Move(
        at=0.0,
        device=DeviceName(_TPU, DeviceId("x")),
        fence=1,
        before=LockState.FREE,
        after=LockState.HELD,
        pod=None,
        evidence="",
    )

    metrics.moved([move, move])

    assert 'holdfast_lock_moves_total{after="held",before="free"} 2.0' in _shown(metrics)


def test_allocations_are_shown_by_phase_also_when_there_are_none() -> None:
    metrics = Metrics()
    metrics.show_allocations([_allocation(1, Phase.PENDING), _allocation(2, Phase.PENDING)])
    before = _shown(metrics)

    metrics.show_allocations([])

    assert 'holdfast_allocations{phase="pending"} 2.0' in before
    assert 'holdfast_allocations{phase="active"} 0.0' in before
    assert 'holdfast_allocations{phase="pending"} 0.0' in _shown(metrics)


def test_a_total_counted_elsewhere_never_falls_even_when_its_count_starts_over() -> None:
    metrics = Metrics()

    for count in (2, 5, 5, 1):
        metrics.show_registration(_TPU, streams=1, registrations=count)
        metrics.show_questions(count)

    shown = _shown(metrics)
    assert 'holdfast_kubelet_registrations_total{resource="google.com/tpu"} 6.0' in shown
    assert "holdfast_kubelet_questions_total 6.0" in shown
    assert 'holdfast_kubelet_streams{resource="google.com/tpu"} 1.0' in shown


def test_a_lane_shows_how_long_it_has_been_overdue() -> None:
    metrics = Metrics()

    metrics.show_lane("scan", 0.25, stuck_for=12.0)
    metrics.show_lane("ledger", 0.5)

    shown = _shown(metrics)
    assert 'holdfast_lane_seconds{lane="scan"} 0.25' in shown
    assert 'holdfast_lane_stuck_seconds{lane="scan"} 12.0' in shown
    assert 'holdfast_lane_stuck_seconds{lane="ledger"} 0.0' in shown


def test_a_limit_that_is_not_known_is_not_shown_as_none_at_all() -> None:
    assert "holdfast_memory_limit_bytes NaN" in _shown(Metrics())


def test_every_call_wait_step_and_check_shows_with_its_labels() -> None:
    metrics = Metrics()

    metrics.called(_TPU, "Allocate", "OK", 0.001)
    metrics.passed_gate("unverified", 0.5)
    metrics.reclaimed("term", "sent")
    metrics.committed(0.001)
    metrics.count_unhealthy(_TPU, 2)
    metrics.show_holders(4)
    metrics.memory.show_own(Memory(total=64 << 20), resident=None, share=0.5)
    metrics.show_scan(seconds=0.02, gaps=1)
    metrics.show_ready({"ledger": True, "lane scan": False})

    shown = _shown(metrics)
    for line in (
        'holdfast_kubelet_call_seconds_count{call="Allocate",code="OK",resource="google.com/tpu"} 1.0',
        'holdfast_gate_wait_seconds_count{outcome="unverified"} 1.0',
        'holdfast_reclaim_steps_total{outcome="sent",step="term"} 1.0',
        "holdfast_ledger_commit_seconds_count 1.0",
        'holdfast_devices_unhealthy{resource="google.com/tpu"} 2.0',
        "holdfast_holders 4.0",
        "holdfast_memory_limit_bytes 6.7108864e+07",
        "holdfast_scan_seconds 0.02",
        "holdfast_scan_gaps 1.0",
        'holdfast_ready{check="ledger"} 1.0',
        'holdfast_ready{check="lane scan"} 0.0',
    ):
        assert line in shown


def test_what_is_withheld_by_hand_is_shown_also_when_nothing_is() -> None:
    metrics = Metrics()
    metrics.show_marks(Marks())
    assert "holdfast_draining 0.0" in _shown(metrics)
    mark = Mark(asker=Asker(uid=0, pid=1), at=0.0)
    device = DeviceName(_TPU, DeviceId("x"))
    quarantine = Quarantine(device=device, keys=frozenset(), mark=mark)
    metrics.show_marks(Marks(drain=mark).with_quarantine(quarantine))
    assert "holdfast_draining 1.0" in _shown(metrics)
    assert "holdfast_quarantined_by_hand 1.0" in _shown(metrics)


def test_events_of_gpus_are_counted_by_what_clears_them() -> None:
    metrics = Metrics()
    for xid, condemns in [(48, True), (48, True), (31, False), (4711, True), (4712, True)]:
        metrics.heard(GpuEvent(kind=GpuEventKind.XID, uuid="GPU-1", xid=xid), condemns)
    metrics.heard(GpuEvent(kind=GpuEventKind.SINGLE_BIT_ECC, uuid="GPU-1"), condemns=False)
    shown = _shown(metrics)
    for labels, count in [
        ('clears="reset",kind="xid",xid="48"', 2),
        ('clears="ignored",kind="xid",xid="31"', 1),
        ('clears="reset",kind="xid",xid="unknown"', 2),
        ('clears="ignored",kind="single-bit-ecc",xid=""', 1),
    ]:
        assert f"holdfast_gpu_events_total{{{labels}}} {count}.0" in shown
