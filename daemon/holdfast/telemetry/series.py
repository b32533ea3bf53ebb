"""Counters, gauges and histograms, and the text in which Prometheus reads them.

Prometheus' own library for Python also brings an HTTP server, e-mail and OpenSSL into the process:
an eighth of the daemon's memory. The format is on
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import bisect
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
"""The values of a series' labels, in the order in which its metric names them."""


class Registry:
    """All metrics of one daemon."""

    def __init__(self) -> None:
        """Begin without any."""
        self.metrics: dict[str, Metric] = {}

    def add(self, metric: "Metric") -> None:
        """Add *metric*, whose name nothing else may have."""
        if self.metrics.setdefault(metric.name, metric) is not metric:
            raise ValueError(f"cannot add the metric {metric.name}: there is one already")

    def page(self) -> bytes:
        """Return all metrics as text; any thread may ask."""
        lines = (line for metric in self.metrics.values() for line in metric.lines())
        return "".join(f"{line}\n" for line in lines).encode()


class Metric:
    """What metrics of all types have in common. Any thread may change one."""

    kind: str

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: Registry
    ) -> None:
        """Add the metric to *registry*: its full name, and for people what it is."""
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._lock = threading.Lock()
        registry.add(self)

    def lines(self) -> Iterator[str]:
        """Yield the metric as it is now, line by line."""
        yield f"# HELP {self.name} {_escaped(self.text)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        raise NotImplementedError

    def _key(self, labels: Labels) -> Labels:
        if len(labels) != len(self.labels):
            raise ValueError(f"cannot use {labels} for the labels {self.labels} of {self.name}")
        return labels

    def _line(self, labels: Labels, value: float, suffix: str = "", le: str = "") -> str:
        pairs = [*zip(self.labels, labels, strict=True), *([("le", le)] if le else ())]
        inner = ",".join(f'{name}="{_quoted(text)}"' for name, text in sorted(pairs))
        braces = f"{{{inner}}}" if inner else ""
        return f"{self.name}{suffix}{braces} {_number(value)}"


class Gauge(Metric):
    """A value that goes up and down."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: Registry
    ) -> None:
        """Begin at 0, or with labels without any series."""
        super().__init__(name, text, labels, registry=registry)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def set(self, value: float, *labels: str) -> None:
        """Give the series of *labels* a value."""
        with self._lock:
            self._values[self._key(labels)] = value

    def show(self, values: Mapping[Labels, float]) -> None:
        """Have exactly the series of *values*, and no older ones."""
        found = {self._key(labels): value for labels, value in values.items()}
        with self._lock:
            self._values = found

    def _samples(self) -> Iterator[str]:
        with self._lock:
            values = list(self._values.items())
        return (self._line(labels, value) for labels, value in values)


class Counter(Metric):
    """A total that only grows; its name ends in ``_total``."""

    kind = "counter"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, registry: Registry
    ) -> None:
        """Begin at 0, or with labels without any series."""
        super().__init__(name, text, labels, registry=registry)
        self._totals: dict[Labels, int] = {} if labels else {(): 0}
        self._seen: dict[Labels, int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        """Count *count* more; 0 has the series begin, so that what comes first is an increase."""
        with self._lock:
            self._totals[self._key(labels)] = self._totals.get(labels, 0) + count

    def reached(self, total: int, *labels: str) -> None:
        """Count up to *total*, which is kept elsewhere; a smaller one than before began at 0."""
        before = self._seen.get(labels, 0)
        self.add(*labels, count=total - before if total >= before else total)
        self._seen[labels] = total

    def _samples(self) -> Iterator[str]:
        with self._lock:
            totals = list(self._totals.items())
        return (self._line(labels, total) for labels, total in totals)


class Histogram(Metric):
    """How often a value was in each of some ranges."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: Registry,
    ) -> None:
        """Begin at 0, or with labels without any series; *buckets* are upper limits, ascending."""
        super().__init__(name, text, labels, registry=registry)
        self._limits = (*buckets, math.inf)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        if not labels:
            self.begin()

    def begin(self, *labels: str) -> None:
        """Have the series of *labels*, so that the first value is an increase."""
        with self._lock:
            self._counts.setdefault(self._key(labels), [0] * len(self._limits))
            self._sums.setdefault(labels, 0.0)

    def observe(self, value: float, *labels: str) -> None:
        """Count *value*."""
        self.begin(*labels)
        with self._lock:
            self._counts[labels][bisect.bisect_left(self._limits, value)] += 1
            self._sums[labels] += value

    def _samples(self) -> Iterator[str]:
        with self._lock:
            series = [
                (labels, tuple(itertools.accumulate(counts)), self._sums[labels])
                for labels, counts in self._counts.items()
            ]
        for labels, counts, total in series:
            for limit, count in zip(self._limits, counts, strict=True):
                yield self._line(labels, count, "_bucket", le=_number(limit))
            yield self._line(labels, counts[-1], "_count")
            yield self._line(labels, total, "_sum")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
