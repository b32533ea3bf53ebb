"""How what the daemon does for each change grows with the devices that pods have."""

import math
import time
from collections.abc import Callable

from msgspec import Struct

from bench.decisions import ledger_in
from bench.figures import Figure
from bench.rig import Place
from holdfast.kubelet.offering import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Phase
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.book.reconcile import Observed, PodSighting, reconcile
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.ids import (
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched

VF = ResourceName("example.com/vf")
_BOOT = BootId("bench")
_REACH = {8: 0.3, 64: 1.5, 256: 6.0, 1024: 25.0}
"""Milliseconds that one beat may take, by the devices that are locked."""


class World(Struct, frozen=True, kw_only=True):
    """A node on which each device is some pod's, and kubelet's checkpoint says so."""

    inventory: Inventory
    view: KubeletView
    around: Observed


async def beat(place: Place, *, rounds: int = 30) -> list[Figure]:
    """Measure what the loop does in each beat: reconcile without a change, and the offers."""
    figures = []
    for devices, limit in _REACH.items():
        figures.append(await _beat(place, devices, limit, rounds))
    exponents = _exponents(figures)
    return [*figures, Figure(name="beat_exponent", unit="", samples=exponents, note=_EXPONENT)]


_EXPONENT = "the growth of beat from one size to the next: 1 is linear, 2 is quadratic"


async def _beat(place: Place, devices: int, limit: float, rounds: int) -> Figure:
    world = world_of(devices)
    folder = place.state / f"beat-{devices}"
    folder.mkdir()
    async with ledger_in(folder) as ledger:
        await fill(ledger, world)
        offering = Offering(
            ledger=ledger,
            inventory=Watched(world.inventory),
            view=Watched(world.view),
            clock=SystemClock(),
            withhold_after=30.0,
        )
        look = _Beat(ledger=ledger, world=world, offering=offering)
        look()
        return Figure(
            name=f"beat_{devices}",
            samples=[_cpu(look) for _ in range(rounds)],
            budget={"p50": limit},
            note="CPU time of reconcile and the offers, with nothing to change",
        )


class _Beat(Struct, frozen=True, kw_only=True):
    ledger: Ledger
    world: World
    offering: Offering

    def __call__(self) -> None:
        book = self.ledger.book.value
        draft = Draft(book, now=9.0, uptime=9.0, boot=_BOOT)
        reconcile(draft, self.world.around)
        if draft.book is not book:
            raise RuntimeError("cannot measure a beat: it changed the book")
        self.offering.refresh()


def _cpu(call: Callable[[], object]) -> float:
    """Return how many milliseconds of CPU *call* takes, whoever else has work on this machine."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def world_of(devices: int) -> World:
    """Return a node with so many devices, one to a pod."""
    found = tuple(
        Device(
            name=DeviceName(VF, DeviceId(f"0000:{place >> 5:02x}:{place & 31:02x}.0")),
            kind=DeviceKind.VFIO,
            keys=frozenset({HardwareKey(f"pci/{place}"), HardwareKey(f"iommu/{place}")}),
            nodes=(DeviceNode(path=f"/dev/vfio/{place}", rdev=place),),
            functions=(),
            model="vf",
            numa_node=place % 2,
        )
        for place in range(devices)
    )
    entries = tuple(
        CheckpointEntry(
            pod=PodUid(f"pod-{place}"),
            container="main",
            resource=VF,
            devices=frozenset({device.name.id}),
        )
        for place, device in enumerate(found)
    )
    inventory = Inventory(generation=1, resources=(VF,), devices=found)
    view = KubeletView(
        entries=entries,
        readable=True,
        problem="",
        file=CheckpointId("2"),
        read_at=5.0,
        kubelet=ProcessId(7, 7),
        questions=1,
        asked_at=5.0,
        answered=True,
    )
    sightings = {
        each.pod: PodSighting(cgroup=f"/kubepods/pod{each.pod}", inode=place, processes=(place,))
        for place, each in enumerate(entries, start=10)
    }
    around = Observed(
        view=view, inventory=inventory, boot=_BOOT, sightings=sightings, pending_timeout=60.0
    )
    return World(inventory=inventory, view=view, around=around)


async def fill(ledger: Ledger, world: World, *, phase: Phase = Phase.ACTIVE) -> None:
    """Give each device to its pod, and let the book learn what there is to learn of these."""

    def give(draft: Draft) -> None:
        for entry, device in zip(world.view.entries, world.inventory.devices, strict=True):
            draft.allocate(VF, {device.name.id: device.keys}, pod=entry.pod, phase=phase)
        settle(draft)

    await ledger.apply(give)
    await ledger.apply(lambda draft: reconcile(draft, world.around))


def _exponents(figures: list[Figure]) -> list[float]:
    sizes = list(_REACH)
    return [
        math.log(more.p50 / fewer.p50) / math.log(large / small)
        for fewer, more, small, large in zip(figures, figures[1:], sizes, sizes[1:], strict=False)
    ]
