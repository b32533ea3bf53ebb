"""Metrics that follow something that is counted, or known, elsewhere."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge


class Current:
    """A gauge whose series are exactly what was shown last: what is gone is shown no more."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        """Register it, without any series."""
        self._gauge = Gauge(name, text, labels, registry=registry)
        self._shown: frozenset[tuple[str, ...]] = frozenset()

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Show *values*, by the values of the labels, and nothing else."""
        # Not cleared first: a scrape on another thread would find nothing for a moment.
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        for labels in self._shown.difference(values):
            self._gauge.remove(*labels)
        self._shown = frozenset(values)


class Total:
    """A counter of something that is counted elsewhere."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        """Register it."""
        self._counter = Counter(name, text, labels, registry=registry)
        self._labelled = bool(labels)
        self._seen: dict[tuple[str, ...], int] = {}

    def reached(self, total: int, *labels: str) -> None:
        """Show that there have been *total*; fewer than before are a new count from zero."""
        before = self._seen.get(labels, 0)
        counter = self._counter.labels(*labels) if self._labelled else self._counter
        counter.inc(total - before if total >= before else total)
        self._seen[labels] = total
