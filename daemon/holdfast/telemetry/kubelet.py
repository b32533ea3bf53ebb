"""The metrics of kubelet: calls, streams and registrations."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Histogram

from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import Registration
from holdfast.telemetry.gauges import Current, Total

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)


class KubeletMetrics:
    """Shows the registration of each resource, and kubelet's calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        current = partial(Current, registry=registry)
        histogram = partial(Histogram, registry=registry)
        total = partial(Total, registry=registry)
        self._calls = histogram(
            "holdfast_kubelet_call_seconds",
            "How long kubelet's calls took, by call and gRPC status code.",
            ["resource", "call", "code"],
            buckets=_FAST,
        )
        self._registered = current(
            "holdfast_kubelet_registered",
            "1 while the resource or the DRA driver is registered with kubelet, else 0.",
            ["resource"],
        )
        self._streams = current(
            "holdfast_kubelet_streams", "Open ListAndWatch streams.", ["resource"]
        )
        self._registrations = total(
            "holdfast_kubelet_registrations",
            "Registrations that kubelet accepted since the daemon started.",
            ["resource"],
        )
        self._questions = total(
            "holdfast_kubelet_questions",
            "Complete answers of kubelet to the question which pods it has.",
        )

    def called(self, resource: str, call: str, code: str, seconds: float) -> None:
        """Count one of kubelet's calls."""
        self._calls.labels(resource, call, code).observe(seconds)

    def show(
        self,
        registrations: Mapping[ResourceName, Registration],
        *,
        drivers: Mapping[str, Registration],
        questions: int,
    ) -> None:
        """Show the registrations, those of DRA *drivers* by their names, and the totals."""
        every: dict[str, Registration] = {str(name): each for name, each in registrations.items()}
        every |= drivers
        self._registered.show({(name,): each.registered for name, each in every.items()})
        self._streams.show({(name,): each.streams for name, each in registrations.items()})
        for name, each in every.items():
            self._registrations.reached(each.registrations, name)
        self._questions.reached(questions)
