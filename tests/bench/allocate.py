"""Allocate with its durable commit, without kubelet, at many sizes and beside many others."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from bench.figures import Figure, Floor, percentile
from bench.floors import Sync, synced_file, timed
from bench.growth import SIZES, Growth
from bench.rig import Place
from bench.worlds import chips, functions, ledger_in, world_of
from holdfast.allocation.allocator import Allocator
from holdfast.allocation.granting import Granting
from holdfast.discovery.source import Sources
from holdfast.kubelet.offering import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import LockState
from holdfast.model.book.reconcile import reconcile
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import CheckpointId
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.tpu.adapter import Tpus
from holdfast.vendors.vfio.adapter import Pools

_ABOVE = {8: 0.3, 64: 0.5, 256: 1.0, 512: 1.0, 1024: 2.0}
"""Milliseconds above one fdatasync that an Allocate may take, by the devices of the node."""
_PENDING, _ABOVE_PENDING = 400, 0.5
_FLAT = 0.2
_FEW = 480
"""At least so many calls are measured at each size."""


class _Call(NamedTuple):
    """One Allocate, and one fdatasync beside it, in milliseconds."""

    took: float
    sync: float


async def allocate(place: Place) -> list[Figure]:
    """Measure Allocate of each device in turn, none of which kubelet confirms."""
    calls = {devices: await _in_turn(place, devices) for devices in sorted({*SIZES, 512})}
    found = {
        devices: _figure(
            "allocate" if devices == min(SIZES) else f"allocate_{devices}",
            each,
            above=_ABOVE[devices],
            note=f"the handler with its commit, for each of {devices} devices in turn",
        )
        for devices, each in calls.items()
    }
    syncs = [each.sync for each in calls[min(SIZES)]]
    return [
        Figure(name="fdatasync", samples=syncs, note=Sync.what),
        *found.values(),
        Growth(name="allocate", figures=found, above_floor=True).exponent(),
    ]


async def allocate_pending(place: Place) -> list[Figure]:
    """Measure Allocate while kubelet has confirmed none of many former ones."""
    inventory = functions(2 * _PENDING)
    async with _scene(place, inventory) as scene:
        for device in inventory.devices[:_PENDING]:
            await scene.allocate(device)
        calls = [await scene.call(device) for device in inventory.devices[_PENDING:]]
    quarter = _PENDING // 4
    grown = _above(calls[-quarter:]) - _above(calls[:quarter])
    return [
        _figure(
            f"allocate_{_PENDING}_pending",
            calls,
            above=_ABOVE_PENDING,
            note=f"the same while {_PENDING} to {2 * _PENDING} are not confirmed by kubelet",
        ),
        Figure(
            name="allocate_pending_growth",
            samples=[grown],
            reach=_FLAT,
            note="of those above one fdatasync, the last quarter's median less the first's",
        ),
    ]


async def _in_turn(place: Place, devices: int) -> list[_Call]:
    inventory = chips(devices) if devices == min(SIZES) else functions(devices)
    calls: list[_Call] = []
    async with _scene(place, inventory) as scene:
        while len(calls) < _FEW:
            calls += [await scene.call(device) for device in inventory.devices]
            await scene.end_all()
    return calls


class _Scene:
    """An allocator, and those who follow the ledger on the same loop, as in the daemon."""

    def __init__(self, ledger: Ledger, inventory: Inventory, lane: Lane, sync: Sync) -> None:
        self._ledger = ledger
        self._sync = sync
        self._inventory = Watched(inventory)
        self._around = world_of(inventory, counted=0)
        self._allocator = Allocator(
            ledger=ledger,
            inventory=self._inventory,
            grant=Granting(Sources([Tpus(), Pools([])])).grant,
            node_rdev=lambda _path: None,
            checkpoint=lambda: CheckpointId(""),
            lane=lane,
            clock=SystemClock(),
            commit_timeout=2.0,
        )

    async def allocate(self, device: Device) -> None:
        await self._allocator.allocate(device.name.resource, (device.name.id,))

    async def call(self, device: Device) -> _Call:
        await self._settled()
        sync = timed(self._sync)
        began = time.perf_counter()
        await self.allocate(device)
        return _Call(took=(time.perf_counter() - began) * 1000, sync=sync)

    async def end_all(self) -> None:
        await self._ledger.apply(_end_all)
        await self._ledger.tidy()

    async def follow(self) -> None:
        """Do what the watcher and the offers do for each new book."""
        offering = Offering(
            ledger=self._ledger,
            inventory=self._inventory,
            view=Watched(self._around.view),
            clock=SystemClock(),
            withhold_after=30.0,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(offering.run())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            changes = Changes([self._ledger.book])
            await self._ledger.apply_if_changing(
                lambda draft: reconcile(draft, self._around.around)
            )
            await changes.wait(1.0)

    async def _settled(self) -> None:
        """Let those who follow do what the last call left them: kubelet asks with pauses."""
        for _ in range(20):
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def _scene(place: Place, inventory: Inventory) -> AsyncIterator[_Scene]:
    lane = Lane("kubelet", deadline=5.0)
    folder = place.state / f"allocate-{len(inventory.devices)}"
    async with ledger_in(folder) as ledger:
        with synced_file(place) as sync, contextlib.closing(lane):
            scene = _Scene(ledger, inventory, lane, sync)
            following = asyncio.create_task(scene.follow())
            try:
                yield scene
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


def _figure(name: str, calls: Sequence[_Call], *, above: float, note: str) -> Figure:
    floor = Floor(what=Sync.what, samples=[each.sync for each in calls])
    return Figure(
        name=name,
        samples=[each.took for each in calls],
        reach=floor.p50 + above,
        floor=floor,
        note=f"{note}; the reach is the floor and {above:g} ms",
    )


def _above(calls: Sequence[_Call]) -> float:
    """Return by how much the median of *calls* is above that of their syncs."""
    return percentile([each.took for each in calls], 0.5) - percentile(
        [each.sync for each in calls], 0.5
    )


def _end_all(draft: Draft) -> None:
    for allocation in list(draft.holdings.allocations.values()):
        draft.end(allocation, "bench")
    for lock in list(draft.locks.values()):
        draft.move(lock.device, LockState.FREE, "bench")
