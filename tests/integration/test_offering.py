"""The device lists, from a real ledger, by a clock that a test moves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from msgspec.structs import replace

from fakes.books import WHOLE, X, allocated, inventory, name, seen, silicon
from fakes.ledgers import ledger_in
from fakes.standings import BookOnly, device_standings
from holdfast.kubelet.plugin import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.offers import OfferedDevice
from holdfast.model.book.queue import settle
from holdfast.model.devices import Inventory
from holdfast.model.ids import ResourceName
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from waiting import beside, until

_D0 = silicon(d0="a")
_NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
_WITHHOLD_AFTER = 30.0


class _Scene:
    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        self.ledger, self.clock = ledger, clock
        self.withhold_after = Watched(_WITHHOLD_AFTER)
        self.inventory: Watched[Inventory] = Watched(_NODE)
        self.standings = device_standings(
            ledger,
            self.inventory,
            clock,
            view=Watched(seen()),
            withhold_after=self.withhold_after,
        )
        self.offering = Offering(
            standings=self.standings, inventory=self.inventory, has_dra=Watched(False)
        )

    def offered(self) -> list[OfferedDevice]:
        self.offering.refresh()
        return list(self.offering.offers.value.of(WHOLE))

    def healthy(self) -> list[str]:
        return [each.id for each in self.offered() if each.healthy]

    async def change(self, decide: Callable[[Draft], object]) -> None:
        """Commit, and return once it is published."""
        before = self.ledger.book.value
        await self.ledger.apply(decide)
        await self.ledger.book.until(lambda book: book is not before)


@contextlib.asynccontextmanager
async def _scene(folder: Path) -> AsyncIterator[_Scene]:
    clock = ManualClock()
    async with ledger_in(folder, clock) as ledger:
        yield _Scene(ledger, clock)


def _held(draft: Draft) -> None:
    allocated(_D0, pod=X, active=True)(draft)
    settle(draft)


def _ends(draft: Draft) -> None:
    (allocation,) = draft.book.allocations.values()
    draft.end(allocation, "its pod is over")


def _free(draft: Draft) -> None:
    draft.move(name("d0"), LockState.FREE, "free")


async def test_hardware_that_is_gone_stays_on_the_list_until_its_pod_is_over(
    tmp_path: Path,
) -> None:
    async with _scene(tmp_path) as scene:
        await scene.change(_held)
        scene.inventory.set(replace(_NODE, devices=_NODE.devices[1:]))
        assert [(each.id, each.healthy) for each in scene.offered()] == [
            ("d1", True),
            ("d0", False),
        ]
        await scene.change(_ends)
        await scene.change(_free)
        assert [(each.id, each.healthy) for each in scene.offered()] == [("d1", True)]


async def test_a_device_is_withheld_when_it_has_been_releasing_for_long_by_no_clock_that_is_set(
    tmp_path: Path,
) -> None:
    async with _scene(tmp_path) as scene:
        await scene.change(_held)
        await scene.change(_ends)
        assert scene.healthy() == ["d0", "d1"]
        scene.clock.step_wall(3600.0)
        assert scene.healthy() == ["d0", "d1"]
        scene.clock.shift(_WITHHOLD_AFTER)
        assert scene.healthy() == ["d0", "d1"]
        scene.clock.step_wall(-7200.0)
        scene.clock.shift(0.1)
        assert scene.healthy() == ["d1"]


async def test_another_patience_counts_at_once_for_a_release_that_is_under_way(
    tmp_path: Path,
) -> None:
    async with _scene(tmp_path) as scene:
        await scene.change(_held)
        await scene.change(_ends)
        running = asyncio.gather(scene.standings.run(), scene.offering.run())
        offers = scene.offering.offers
        await offers.until(lambda now: len(now.of(WHOLE)) == 2)
        scene.clock.shift(1.0)
        scene.withhold_after.set(0.5)
        await offers.until(lambda now: [each.healthy for each in now.of(WHOLE)] == [False, True])
        scene.withhold_after.set(2.0)
        await offers.until(lambda now: all(each.healthy for each in now.of(WHOLE)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_next_release_of_the_same_device_has_its_own_time(tmp_path: Path) -> None:
    async with _scene(tmp_path) as scene:
        for _ in range(2):
            await scene.change(_held)
            scene.clock.shift(100.0)
            scene.offered()
            await scene.change(_ends)
            assert scene.healthy() == ["d0", "d1"]
            scene.clock.shift(_WITHHOLD_AFTER + 1.0)
            assert scene.healthy() == ["d1"]
            await scene.change(_free)


async def test_while_a_device_is_kept_all_are_looked_through_again_only_once_one_may_differ(
    tmp_path: Path,
) -> None:
    asked: list[ResourceName] = []

    def is_dra(resource: ResourceName) -> bool:
        asked.append(resource)
        return False

    async with _scene(tmp_path) as scene:
        await scene.change(_held)
        await scene.change(_ends)
        standings = device_standings(
            scene.ledger,
            scene.inventory,
            scene.clock,
            withhold_after=scene.withhold_after,
            is_dra=is_dra,
        )
        standings.now()
        before = len(asked)
        scene.clock.shift(_WITHHOLD_AFTER - 1.0)
        standings.now()
        assert len(asked) == before
        scene.clock.shift(2.0)
        assert any(each.overdue for each in standings.now())


async def test_whoever_follows_hears_that_the_ledger_fails_and_soon_that_it_is_well() -> None:
    ledger, clock = BookOnly(Watched(Book())), ManualClock()
    after = Watched(_WITHHOLD_AFTER)
    standings = device_standings(ledger, Watched(_NODE), clock, withhold_after=after)
    async with beside(standings.run()):
        await until(lambda: len(standings.latest.value.by_name) == 2)
        ledger.failing_since = clock.monotonic()
        assert not any(each.uncommitted for each in standings.now())
        clock.shift(_WITHHOLD_AFTER + 1)
        await until(lambda: all(each.uncommitted for each in standings.latest.value))
        ledger.failing_since = None
        await until(lambda: not any(each.uncommitted for each in standings.latest.value))
