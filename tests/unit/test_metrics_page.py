"""docs/metrics.md has exactly the metrics that the daemon has, with their types and labels."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.exposed import exposed_metrics
from holdfast.model.book.book import LockState
from holdfast.model.devices import Inventory
from holdfast.model.ids import ResourceName
from holdfast.model.nvidia.gpu import GpuEventKind
from holdfast.model.nvidia.xids import Cure
from holdfast.model.reclaim.ending import ReclaimStep
from holdfast.telemetry.gauges import Readings
from holdfast.telemetry.metrics import Metrics

_PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
_ROW = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)
_ROWS = {name: (kind, labels, text) for name, kind, labels, text in _ROW.findall(_PAGE)}


def test_the_page_and_the_daemon_have_the_same_metrics_with_the_same_types_and_labels() -> None:
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, (kind, labels, _) in _ROWS.items()
    }

    has = {name: (kind, labels) for name, kind, labels in exposed_metrics()}
    assert told == has, "docs/metrics.md needs a row for each metric"
    assert len(_ROW.findall(_PAGE)) == len(_ROWS)


def test_each_metric_is_asked_for_by_its_name_in_a_test(repository: Path) -> None:
    folders = [repository / "tests" / each for each in ("unit", "contract", "integration")]
    texts = "".join(path.read_text("utf-8") for each in folders for path in each.rglob("*.py"))
    lacking = [
        name for name, _, _ in exposed_metrics() if not re.search(rf"{name}(_count|_sum)?\b", texts)
    ]
    assert not lacking, "tests/unit/test_metrics.py needs a case for each"


_OPEN = {"resource", "version", "le"}
"""Labels whose values are from no closed set."""
_RARE: Mapping[str, set[str]] = {
    "holdfast_hardware_events_total": {str(each.value) for each in GpuEventKind},
    "holdfast_kubelet_call_seconds": set(),
    "holdfast_lock_moves_total": set(),
    "holdfast_lock_state_seconds": {each.value for each in LockState} - {LockState.FREE.value},
    "holdfast_reclaim_steps_total": {each.value for each in ReclaimStep} - {ReclaimStep.WAIT.value},
}
"""Counts without series before the first event, as most would never have one; and some values."""


def _at_first() -> Mapping[str, set[str]]:
    """Return the values of labels that each metric has before anything has happened."""
    metrics = Metrics()
    metrics.gauges.show(Readings(inventory=Inventory(resources=(ResourceName("google.com/tpu"),))))
    return {
        family.name + ("_total" if family.type == "counter" else ""): {
            value
            for sample in family.samples
            for label, value in sample.labels.items()
            if label not in _OPEN
        }
        for family in metrics.registry.collect()
    }


def test_what_is_counted_is_there_before_the_first_so_that_it_is_an_increase() -> None:
    counts = {name for name, (kind, labels, _) in _ROWS.items() if kind != "gauge" and labels}
    resources = {name for name in counts if _ROWS[name][1] == "`resource`"}

    assert {name for name in counts if not _at_first()[name]} == _RARE.keys() | resources


@pytest.mark.parametrize("metric", _ROWS)
def test_the_page_names_every_value_of_a_label_from_a_closed_set(metric: str) -> None:
    told = set(re.findall(r"`([^`]+)`", _ROWS[metric][2]))

    assert _at_first()[metric] | _RARE.get(metric, set()) <= told


def test_the_page_names_every_class_of_what_clears_an_event() -> None:
    told = set(re.findall(r"`([^`]+)`", _ROWS["holdfast_hardware_events_total"][2]))

    assert {cure.name.lower() for cure in Cure} | {"ignored"} <= told
