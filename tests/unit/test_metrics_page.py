"""docs/metrics.md has exactly the metrics that the daemon has, with their types and labels."""

import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import pytest

from fakes.exposed import exposed_metrics
from holdfast.allocation.entry import PASSES, EntryOutcome
from holdfast.model.book.book import LockState, Phase
from holdfast.model.book.claims import ClaimPhase
from holdfast.model.book.drift import Drift
from holdfast.model.devices import FaultKind
from holdfast.model.dra.outcomes import ApiOutcome, PrepareOutcome, UnprepareOutcome
from holdfast.model.nvidia.gpu import GpuEventKind
from holdfast.model.nvidia.xids import Cure
from holdfast.model.reclaim.ending import ReclaimStep

_PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
_ROW = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)
_ROWS = {name: (kind, labels, text) for name, kind, labels, text in _ROW.findall(_PAGE)}


def test_the_page_and_the_daemon_have_the_same_metrics_with_the_same_types_and_labels() -> None:
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, (kind, labels, _) in _ROWS.items()
    }

    assert told == {name: (kind, labels) for name, kind, labels in exposed_metrics()}
    assert len(_ROW.findall(_PAGE)) == len(_ROWS)


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("holdfast_devices", LockState),
        ("holdfast_device_faults", FaultKind),
        ("holdfast_allocations", Phase),
        ("holdfast_gate_refusals_total", set(EntryOutcome) - PASSES),
        ("holdfast_gate_wait_seconds", PASSES),
        ("holdfast_claims", set(ClaimPhase) - {ClaimPhase.OVER}),
        ("holdfast_claim_prepare_seconds", PrepareOutcome),
        ("holdfast_claim_unprepare_seconds", UnprepareOutcome),
        ("holdfast_api_requests_total", ApiOutcome),
        ("holdfast_drift", Drift),
        ("holdfast_hardware_events_total", GpuEventKind),
        ("holdfast_reclaim_steps_total", set(ReclaimStep) - {ReclaimStep.WAIT}),
    ],
)
def test_the_page_names_every_value_of_a_label_from_a_closed_set(
    metric: str, values: Iterable[Enum]
) -> None:
    told = set(re.findall(r"`([^`]+)`", _ROWS[metric][2]))

    assert {str(each.value) for each in values} <= told


def test_the_page_names_every_class_of_what_clears_an_event() -> None:
    told = set(re.findall(r"`([^`]+)`", _ROWS["holdfast_hardware_events_total"][2]))

    assert {cure.name.lower() for cure in Cure} | {"ignored"} <= told
