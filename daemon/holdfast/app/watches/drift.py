"""Reports each disagreement between the ledger, kubelet's checkpoint and the kernel once."""

from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from holdfast.allocation.allocator import Preference
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.book.drift import (
    ClaimDriftFacts,
    Disagreement,
    DriftFacts,
    claim_disagreements,
    disagreements,
    undecided,
)
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.devices import Inventory
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings.sections import DriftSettings

log = structlog.get_logger(__name__)

_LEAST_PAUSE = 0.1


class _Period(Struct, frozen=True):
    """When a disagreement was seen first and last, in monotonic seconds.

    Time in which nothing can be compared does not count: both move on with it.
    """

    first: float
    last: float


class _SentList(Struct, frozen=True, kw_only=True):
    """The device lists that kubelet was last sent, and whether it has answered a question since.

    `resend` is the count of resends when the lists last changed. `questions` is the count of
    answers when they were next sent again, None before. Only a later answer reflects the lists.
    """

    devices: Mapping[ResourceName, tuple[OfferedDevice, ...]] = field(default_factory=dict)
    resend: int = 0
    questions: int | None = None

    def follow(self, offers: Offers, questions: int) -> "_SentList":
        """Return the value after a look at *offers*, when *questions* were answered so far."""
        if offers.devices != self.devices:
            return _SentList(devices=offers.devices, resend=offers.resend)
        if self.questions is None and offers.resend > self.resend:
            return replace(self, questions=questions)
        return self

    def answered(self, questions: int) -> bool:
        """Tell whether kubelet has answered with these lists, given the count of answers."""
        return self.questions is not None and questions > self.questions


class DriftWatch(Struct, kw_only=True):
    """Compares on every change and at a slow beat; `standing` are the reported disagreements.

    One that comes and goes counts as standing, as when two plugins take turns with kubelet. It
    compares what the other parts publish; `claims` returns None where there is no DRA.
    """

    ledger: Ledger
    view: Watched[KubeletView]
    standings: DeviceStandings
    inventory: Watched[Inventory]
    offers: Watched[Offers]
    use: DeviceUse
    preference: Preference
    clock: Clock
    settings: Watched[DriftSettings]
    pending_timeout: Watched[float]
    claims: Callable[[], ClaimDriftFacts | None]
    standing: dict[Disagreement, float] = {}
    """The reported disagreements, each with its beginning (seconds since the epoch)."""
    _seen: dict[Disagreement, _Period] = {}
    _compared_at: float = 0.0
    _sent: _SentList = _SentList()

    def __post_init__(self) -> None:
        self._compared_at = self.clock.monotonic()

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            changes = Changes(
                [self.ledger.book, self.view, self.inventory, self.offers, self.settings]
            )
            self.compare()
            await changes.wait(self._pause())

    def compare(self) -> None:
        """Find disagreements, report those that stand, and report when one is over."""
        now = self.clock.monotonic()
        elapsed, self._compared_at = now - self._compared_at, now
        facts = self._facts()
        found = disagreements(facts)
        claims = self.claims()
        if claims is not None:
            found += claim_disagreements(claims)
        for each, seen in self._seen.items():
            if each not in found and undecided(each, facts, claims):
                self._seen[each] = _Period(first=seen.first + elapsed, last=seen.last + elapsed)
        for each in found:
            first = self._seen[each].first if each in self._seen else now
            self._seen[each] = _Period(first=first, last=now)
            if each not in self.standing and now - first >= self.settings.value.settle:
                self.standing[each] = self.clock.wall() - (now - first)
                log.warning("drift found", **asdict(each))
        for each, seen in list(self._seen.items()):
            if now - seen.last > self.settings.value.settle:
                del self._seen[each]
                if self.standing.pop(each, None) is not None:
                    log.info("drift resolved", kind=each.kind, subject=each.subject)

    def _facts(self) -> DriftFacts:
        book, view, offers = self.ledger.book.value, self.view.value, self.offers.value
        self._sent = self._sent.follow(offers, view.questions)
        return DriftFacts(
            book=book,
            view=view,
            inventory=self.inventory.value,
            offers=offers,
            holders=self.use.holders,
            kept_back=self.preference.kept_back,
            list_answered=self._sent.answered(view.questions),
            locked_at={each.name: each.since for each in self.standings.now() if each.lock},
            lock_patience=self.pending_timeout.value,
        )

    def _pause(self) -> float:
        """Return how many seconds to wait when nothing changes."""
        settings = self.settings.value
        soon = max(_LEAST_PAUSE, settings.settle)
        return min(settings.beat, soon) if self._seen else settings.beat
