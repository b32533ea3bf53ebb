"""What metrics the daemon has: names as they are exposed, types and labels."""

from collections.abc import Iterator

from prometheus_client import Counter
from prometheus_client.metrics import MetricWrapperBase

from holdfast.telemetry.gauges import MEASURES, Gauges
from holdfast.telemetry.metrics import Metrics


def exposed_metrics() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the name, the type and the labels of each; a histogram's name is the bare one."""
    for collector in Metrics().registry._collector_to_names:
        if isinstance(collector, Gauges):
            continue
        assert isinstance(collector, MetricWrapperBase)
        name = collector._name + ("_total" if isinstance(collector, Counter) else "")
        yield name, str(collector._type), tuple(map(str, collector._labelnames))
    for each in MEASURES:
        kind, name = ("counter", f"{each.name}_total") if each.grows else ("gauge", each.name)
        yield name, kind, each.labels
