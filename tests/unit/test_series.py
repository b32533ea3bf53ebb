"""Prometheus' own library for Python reads from our metrics what it reads from its own."""

import math

import prometheus_client as theirs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from holdfast.telemetry.series import Counter, Gauge, Histogram, Metric, Registry

_TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
_NUMBERS = st.one_of(st.floats(), st.integers(min_value=-(2**53), max_value=2**53))


def _read(page: bytes) -> list[object]:
    return [
        (
            family.name,
            family.documentation,
            family.type,
            [(each.name, each.labels, repr(each.value)) for each in family.samples],
        )
        for family in text_string_to_metric_families(page.decode())
        if not family.name.endswith("_created")
    ]


def _same(ours: Registry, others: theirs.CollectorRegistry) -> None:
    assert _read(ours.page()) == _read(theirs.generate_latest(others))


@given(text=_TEXTS, label=_TEXTS, value=_NUMBERS)
def test_any_label_help_and_value_can_be_read(text: str, label: str, value: float) -> None:
    ours, others = Registry(), theirs.CollectorRegistry()

    Gauge("hf_shown", text, ["a", "b"], registry=ours).set(value, label, "x")
    theirs.Gauge("hf_shown", text, ["a", "b"], registry=others).labels(label, "x").set(value)

    _same(ours, others)


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=20))
def test_any_value_is_counted_in_the_same_buckets(values: list[float]) -> None:
    ours, others = Registry(), theirs.CollectorRegistry()
    limits = (0.0005, 1.0, 604800.0)
    mine = Histogram("hf_took", "How long.", ["call"], buckets=limits, registry=ours)
    other = theirs.Histogram("hf_took", "How long.", ["call"], buckets=limits, registry=others)

    for value in [*values, *limits]:
        mine.observe(value, "c")
        other.labels("c").observe(value)

    _same(ours, others)


def test_metrics_without_labels_are_there_from_the_start_and_series_once_they_begin() -> None:
    ours, others = Registry(), theirs.CollectorRegistry()
    Gauge("hf_plain", "Plain.", registry=ours)
    theirs.Gauge("hf_plain", "Plain.", registry=others)
    Gauge("hf_none", "None.", ["a"], registry=ours)
    theirs.Gauge("hf_none", "None.", ["a"], registry=others)
    Counter("hf_steps_total", "Steps.", registry=ours)
    theirs.Counter("hf_steps", "Steps.", registry=others)
    Counter("hf_events_total", "Events.", ["kind"], registry=ours).add("one", count=0)
    theirs.Counter("hf_events", "Events.", ["kind"], registry=others).labels("one")
    Histogram("hf_all", "All.", buckets=(1.0,), registry=ours)
    theirs.Histogram("hf_all", "All.", buckets=(1.0,), registry=others)
    Histogram("hf_each", "Each.", ["a"], buckets=(1.0,), registry=ours).begin("b")
    theirs.Histogram("hf_each", "Each.", ["a"], buckets=(1.0,), registry=others).labels("b")

    _same(ours, others)


def test_a_gauge_has_exactly_the_series_that_were_last_shown() -> None:
    registry = Registry()
    gauge = Gauge("hf_shown", "Shown.", ["a"], registry=registry)

    gauge.show({("one",): 1, ("two",): 2})
    gauge.show({("two",): 3, ("three",): math.inf})

    assert registry.page().decode().splitlines()[2:] == [
        'hf_shown{a="two"} 3.0',
        'hf_shown{a="three"} +Inf',
    ]


def test_a_total_that_is_kept_elsewhere_never_falls() -> None:
    registry = Registry()
    counter = Counter("hf_questions_total", "Questions.", ["a"], registry=registry)

    for total in (5, 7, 7, 2):
        counter.reached(total, "x")

    assert 'hf_questions_total{a="x"} 9.0\n' in registry.page().decode()


@pytest.mark.parametrize("labels", [(), ("a", "b")])
def test_a_series_has_a_value_for_each_label(labels: tuple[str, ...]) -> None:
    gauge = Gauge("hf_shown", "Shown.", ["a"], registry=Registry())

    with pytest.raises(ValueError, match="hf_shown"):
        gauge.set(1, *labels)
    with pytest.raises(ValueError, match="hf_shown"):
        gauge.show({labels: 1})


@pytest.mark.parametrize("kind", [Gauge, Counter])
def test_no_two_metrics_have_one_name(kind: type[Metric]) -> None:
    registry = Registry()
    Gauge("hf_shown", "Shown.", registry=registry)

    with pytest.raises(ValueError, match="hf_shown"):
        kind("hf_shown", "Shown.", registry=registry)
