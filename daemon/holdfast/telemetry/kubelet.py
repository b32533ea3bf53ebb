"""The metrics of kubelet: calls, streams and registrations."""

from collections.abc import Mapping
from functools import partial

from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import Registration
from holdfast.telemetry.series import Counter, Gauge, Histogram, Registry

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)


class KubeletMetrics:
    """Shows the registration of each resource, and kubelet's calls."""

    def __init__(self, registry: Registry) -> None:
        """Register everything with *registry*."""
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        counter = partial(Counter, registry=registry)
        self._calls = histogram(
            "holdfast_kubelet_call_seconds",
            "How long kubelet's calls took, by call and gRPC status code.",
            ["resource", "call", "code"],
            buckets=_FAST,
        )
        self._registered = gauge(
            "holdfast_kubelet_registered",
            "1 while the resource is registered with kubelet, else 0.",
            ["resource"],
        )
        self._streams = gauge(
            "holdfast_kubelet_streams", "Open ListAndWatch streams.", ["resource"]
        )
        self._registrations = counter(
            "holdfast_kubelet_registrations_total",
            "Registrations that kubelet accepted since the daemon started.",
            ["resource"],
        )
        self._questions = counter(
            "holdfast_kubelet_questions_total",
            "Complete answers of kubelet to the question which pods it has.",
        )

    def called(self, resource: str, call: str, code: str, seconds: float) -> None:
        """Count one of kubelet's calls."""
        self._calls.observe(seconds, resource, call, code)

    def show(
        self,
        registrations: Mapping[ResourceName, Registration],
        *,
        questions: int,
    ) -> None:
        """Show the registrations and the totals."""
        self._registered.show({(name,): each.registered for name, each in registrations.items()})
        self._streams.show({(name,): each.streams for name, each in registrations.items()})
        for name, each in registrations.items():
            self._registrations.reached(each.registrations, name)
        self._questions.reached(questions)
