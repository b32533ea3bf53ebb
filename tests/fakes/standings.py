"""Builds the standing of devices for tests: the rule from a book, the publisher from a ledger."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from holdfast.ledger.standings import DeviceStandings, EmptyPods
from holdfast.model.book.book import Book
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.standing import NodeFacts, Standing, Standings, standings
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceName, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

WITHHOLD_AFTER = 30.0
SETTLE_AFTER = 3.0


class BookOnly:
    """A ledger that has a book and never fails."""

    def __init__(self, book: Watched[Book]) -> None:
        self.book = book
        self.failing_since: float | None = None


def standings_of(book: Book, inventory: Inventory, **facts: Any) -> Standings:
    """Return the standing of each device, seen for the first time."""
    return standings(_facts(book, inventory, **facts), Standings())


def standing_after(
    book: Book, inventory: Inventory, name: DeviceName, *, seconds: float, **facts: Any
) -> Standing:
    """Return the standing of *name* when all has been so for some *seconds*."""
    first = standings(_facts(book, inventory, now=1000.0, **facts), Standings())
    later = standings(_facts(book, inventory, now=1000.0 + seconds, **facts), first)
    return later.by_name[name]


def device_standings(
    ledger: object,
    inventory: Watched[Inventory],
    clock: Clock,
    *,
    view: Watched[KubeletView] | None = None,
    obstacles: Watched[Mapping[DeviceName, BlockReason]] | None = None,
    withhold_after: Watched[float] | None = None,
    is_dra: Callable[[ResourceName], bool] = lambda _resource: False,
) -> DeviceStandings:
    """Return a publisher of the standings of *inventory* by *ledger*."""
    return DeviceStandings(
        ledger=cast("Any", ledger),
        inventory=inventory,
        view=view or Watched(KubeletView()),
        obstacles=obstacles or Watched({}),
        emptied=EmptyPods(),
        is_dra=is_dra,
        clock=clock,
        withhold_after=withhold_after or Watched(WITHHOLD_AFTER),
    )


def _facts(book: Book, inventory: Inventory, **facts: Any) -> NodeFacts:
    given: dict[str, Any] = {"withhold_after": WITHHOLD_AFTER, **facts}
    return NodeFacts(book=book, inventory=inventory, **given)
