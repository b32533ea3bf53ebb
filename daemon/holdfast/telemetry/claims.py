"""The metrics of claims, of ResourceSlices, and of what the API server is asked and told."""

from collections import Counter as Counted
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.model.book.book import Book
from holdfast.model.book.claims import ClaimPhase, phase_of
from holdfast.model.dra.outcomes import ApiOutcome, PrepareOutcome, UnprepareOutcome

_WAITS = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 25.0, 40.0)
_TOLD = tuple(phase for phase in ClaimPhase if phase is not ClaimPhase.OVER)


class ClaimMetrics:
    """Shows the claims of the book; counts kubelet's calls about them and what is published."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything with *registry*."""
        gauge = partial(Gauge, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._claims = gauge(
            "holdfast_claims", "Claims that have or wait for devices, by phase.", ["phase"]
        )
        self._prepare = histogram(
            "holdfast_claim_prepare_seconds",
            "How long kubelet waited for each claim to be prepared, by outcome.",
            ["outcome"],
            buckets=_WAITS,
        )
        self._unprepare = histogram(
            "holdfast_claim_unprepare_seconds",
            "How long kubelet waited for each claim to be over, by outcome.",
            ["outcome"],
            buckets=_WAITS,
        )
        self._writes = counter(
            "holdfast_resource_slice_writes",
            "Writes of ResourceSlices to the API server, by outcome.",
            ["outcome"],
        )
        self._failing = gauge(
            "holdfast_resource_slices_failing_seconds",
            "How long the ResourceSlices could not be written or read; 0 while they can.",
        )
        self._requests = counter(
            "holdfast_api_requests", "Requests to the API server, by outcome.", ["outcome"]
        )
        self._notices = counter(
            "holdfast_notices",
            "Events about a pod or the node, and the node's condition, by whether they were "
            "written.",
            ["about", "outcome"],
        )
        for prepared in PrepareOutcome:  # so that the first event is an increase from 0
            self._prepare.labels(prepared.value)
        for unprepared in UnprepareOutcome:
            self._unprepare.labels(unprepared.value)

    def prepared(self, outcome: PrepareOutcome, seconds: float) -> None:
        """Count one claim's Prepare; *seconds*: how long it took."""
        self._prepare.labels(outcome.value).observe(seconds)

    def unprepared(self, outcome: UnprepareOutcome, seconds: float) -> None:
        """Count one claim's Unprepare; *seconds*: how long it took."""
        self._unprepare.labels(outcome.value).observe(seconds)

    def wrote_slice(self, written: bool) -> None:
        """Count one write of a ResourceSlice."""
        self._writes.labels("written" if written else "failed").inc()

    def told(self, about: str, written: bool) -> None:
        """Count one try to write an Event about a pod or the node, or the node's condition."""
        self._notices.labels(about, "written" if written else "failed").inc()

    def asked_server(self, outcome: ApiOutcome) -> None:
        """Count one request to the API server."""
        self._requests.labels(outcome.value).inc()

    def show(self, book: Book, *, slices_failing_for: float) -> None:
        """Show the claims, and for how many seconds the slices have not been as they should be."""
        phases = Counted(phase_of(book, each) for each in book.claims.values())
        for phase in _TOLD:
            self._claims.labels(phase.value).set(phases[phase])
        self._failing.set(slices_failing_for)
