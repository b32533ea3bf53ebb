"""When a disagreement is told: after it has stood while it could be compared, and not before."""

from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from fakes.books import WHOLE, inventory, seen, silicon
from fakes.standings import BookOnly, device_standings
from holdfast.app.watches.drift import DriftWatch
from holdfast.model.book.book import Book
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.ids import DeviceId
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import DriftSettings
from holdfast.settings.types import Duration
from manual_clock import ManualClock

SETTLE = 30.0
BOTH, ONE = frozenset({DeviceId("d0"), DeviceId("d1")}), frozenset({DeviceId("d0")})


class Truths:
    """What the watch compares, as a test sets it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = Watched(KubeletView())
        self.offers = Watched(Offers())
        ledger = cast("Any", BookOnly(Watched(Book())))
        node = Watched(inventory({WHOLE: silicon(d0="a", d1="b")}))
        self.watch = DriftWatch(
            ledger=ledger,
            view=self.view,
            standings=device_standings(ledger, node, self.clock, view=self.view),
            inventory=node,
            offers=self.offers,
            use=cast("Any", SimpleNamespace(holders={})),
            preference=cast("Any", SimpleNamespace(kept_back={})),
            clock=self.clock,
            settings=Watched(DriftSettings(settle=Duration(SETTLE))),
            pending_timeout=Watched(60.0),
            claims=lambda: None,
        )

    def offer(self, healthy: frozenset[DeviceId]) -> None:
        """Offer both devices, some of them as healthy."""
        devices = tuple(OfferedDevice(id=each, healthy=each in healthy) for each in sorted(BOTH))
        self.offers.set(Offers(devices={WHOLE: devices}, resend=self.offers.value.resend))
        self.watch.compare()

    def ask(self, has: frozenset[DeviceId]) -> None:
        """Ask kubelet, which answers that it *has* these devices."""
        self.offers.set(replace(self.offers.value, resend=self.offers.value.resend + 1))
        self.watch.compare()
        answer = seen(asked_at=self.clock.uptime())
        questions = self.view.value.questions + 1
        self.view.set(
            replace(answer, answered=True, questions=questions, registered={WHOLE: frozenset(has)})
        )
        self.watch.compare()

    def write(self) -> None:
        """Let kubelet write its checkpoint for an Allocate: no complete answer any more."""
        self.view.set(replace(self.view.value, answered=False))
        self.watch.compare()

    def later(self, seconds: float) -> None:
        """Let time pass, with a look at its end."""
        self.clock.shift(seconds)
        self.watch.compare()

    @property
    def told(self) -> list[str]:
        """The kinds of what stands."""
        return [each.kind for each in self.watch.standing]


def test_a_device_that_becomes_free_while_the_next_pod_is_admitted_is_no_drift() -> None:
    truths = Truths()
    truths.offer(ONE)  # the other was withheld for long
    truths.ask(has=ONE)
    truths.offer(BOTH)  # it is free again; kubelet has not written that down yet
    truths.later(SETTLE - 1.0)
    truths.write()  # and the next pod gets it
    truths.later(2.0)
    assert truths.told == []
    truths.ask(has=BOTH)
    truths.later(SETTLE + 1.0)
    assert truths.told == []


def test_another_list_than_ours_is_told_once_kubelet_has_answered_with_it() -> None:
    truths = Truths()
    truths.offer(BOTH)
    truths.ask(has=BOTH)
    truths.ask(has=ONE)
    truths.later(SETTLE - 1.0)
    assert truths.told == []
    truths.later(1.0)
    assert truths.told == ["not-our-list"]
    truths.ask(has=BOTH)
    truths.later(SETTLE + 1.0)
    assert truths.told == []


def test_time_in_which_kubelet_cannot_be_compared_makes_no_disagreement_older() -> None:
    truths = Truths()
    truths.offer(BOTH)
    truths.ask(has=ONE)
    truths.write()
    truths.later(10 * SETTLE)
    assert truths.told == []
    truths.ask(has=ONE)
    assert truths.told == []
    truths.later(SETTLE)
    assert truths.told == ["not-our-list"]


def test_what_was_told_stands_for_as_long_as_nothing_shows_that_it_is_over() -> None:
    truths = Truths()
    truths.offer(BOTH)
    truths.ask(has=ONE)
    truths.later(SETTLE)
    truths.write()
    truths.later(10 * SETTLE)
    assert truths.told == ["not-our-list"]
    truths.ask(has=BOTH)
    truths.later(SETTLE + 1.0)
    assert truths.told == []
