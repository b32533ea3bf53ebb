"""Metrics whose values are kept elsewhere."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge


class Current:
    """A gauge with exactly the series of the last update; older series are removed."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        """Register the gauge without any series."""
        self._gauge = Gauge(name, text, labels, registry=registry)
        self._shown: frozenset[tuple[str, ...]] = frozenset()

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Show *values*, by label values, and remove all other series."""
        # Not cleared first: a scrape on another thread would find nothing for a moment.
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        for labels in self._shown.difference(values):
            self._gauge.remove(*labels)
        self._shown = frozenset(values)


class Total:
    """A counter whose total is kept elsewhere."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        """Register the counter."""
        self._counter = Counter(name, text, labels, registry=registry)
        self._labelled = bool(labels)
        self._seen: dict[tuple[str, ...], int] = {}

    def reached(self, total: int, *labels: str) -> None:
        """Raise the counter to *total*; a smaller total than before means a restart from zero."""
        before = self._seen.get(labels, 0)
        counter = self._counter.labels(*labels) if self._labelled else self._counter
        counter.inc(total - before if total >= before else total)
        self._seen[labels] = total
