"""What the loop does in each beat when nothing has changed, with a pod on each device."""

from msgspec import Struct

from bench.figures import Figure
from bench.floors import thread_cpu, visits
from bench.growth import SIZES, Growth
from bench.rig import Place
from bench.worlds import World, fill, functions, world_of
from fakes.books import BOOT
from fakes.ledgers import ledger_in
from fakes.standings import device_standings
from holdfast.kubelet.plugin import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import reconcile
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched

_REACH = dict(zip(SIZES, (0.3, 1.5, 6.0, 25.0), strict=True))
"""Milliseconds that a beat may take, by the devices that pods have."""
_LINEAR = 1.1
_ROUNDS = 40


async def beat(place: Place) -> list[Figure]:
    """Measure reconcile without a change with the offers, and the offers alone."""
    beats: dict[int, Figure] = {}
    offers: dict[int, Figure] = {}
    for devices in SIZES:
        beats[devices], offers[devices] = await _at(place, devices)
    return [
        *beats.values(),
        Growth(name="beat", figures=beats, reach=_LINEAR).exponent(),
        *offers.values(),
        Growth(name="offers", figures=offers, reach=_LINEAR).exponent(),
    ]


async def _at(place: Place, devices: int) -> tuple[Figure, Figure]:
    world = world_of(functions(devices))
    async with ledger_in(place.state / f"beat-{devices}") as ledger:
        await fill(ledger, world)
        inventory = Watched(world.inventory)
        standings = device_standings(ledger, inventory, SystemClock(), view=Watched(world.view))
        offering = Offering(standings=standings, inventory=inventory, has_dra=Watched(False))
        look = _Beat(ledger=ledger, world=world, offering=offering)
        look()
        floor = visits(devices)
        return (
            Figure(
                name=f"beat_{devices}",
                samples=[thread_cpu(look) for _ in range(_ROUNDS)],
                reach=_REACH[devices],
                floor=floor,
                note="CPU time of reconcile and the offers, with nothing to change",
            ),
            Figure(
                name=f"offers_{devices}",
                samples=[thread_cpu(offering.refresh) for _ in range(_ROUNDS)],
                reach=_REACH[devices],
                floor=floor,
                note="CPU time of the offers alone",
            ),
        )


class _Beat(Struct, frozen=True, kw_only=True):
    ledger: Ledger
    world: World
    offering: Offering

    def __call__(self) -> None:
        book = self.ledger.book.value
        draft = Draft(book, now=9.0, uptime=9.0, boot=BOOT)
        reconcile(draft, self.world.around)
        if draft.book is not book:
            raise RuntimeError("cannot measure a beat: it changed the book")
        self.offering.refresh()
