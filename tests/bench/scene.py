"""An allocator with its ledger and those who follow it, but without kubelet."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from bench.floors import Sync, synced_file, timed
from bench.rig import Place
from bench.worlds import world_of
from fakes.allocators import allocator
from fakes.ledgers import ledger_in
from fakes.standings import device_standings
from fakes.tpus import plain_tpus
from holdfast.discovery.source import Sources
from holdfast.kubelet.plugin import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import reconcile
from holdfast.model.devices import Device, Inventory
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Changes, Watched
from holdfast.vendors.vfio.adapter import Pools
from waiting import beside


class Call(NamedTuple):
    """One Allocate, and one fdatasync beside it, in milliseconds."""

    took: float
    sync: float


class Scene:
    """An allocator, and those who follow the ledger on the same loop, as in the daemon."""

    def __init__(
        self, ledger: Ledger, inventory: Inventory, sources: Sources, lane: Lane, sync: Sync
    ) -> None:
        """Allocate devices of *inventory*, which *sources* found."""
        self.devices = inventory.devices
        self._ledger = ledger
        self._sync = sync
        self._inventory = Watched(inventory)
        self._around = world_of(inventory, counted=0)
        self._allocator = allocator(ledger, self._inventory, sources, lane)

    async def allocate(self, device: Device) -> None:
        """Allocate *device*."""
        await self._allocator.allocate(device.name.resource, (device.name.id,))

    async def call(self, device: Device) -> Call:
        """Measure the allocation of *device*."""
        await self._settled()
        sync = timed(self._sync)
        began = time.perf_counter()
        await self.allocate(device)
        return Call(took=(time.perf_counter() - began) * 1000, sync=sync)

    async def end_all(self) -> None:
        """Let every device be free again."""
        await self._ledger.apply(_end_all)
        await self._ledger.tidy(keep=200)

    async def follow(self) -> None:
        """Do what the watcher and the offers do for each new book."""
        standings = device_standings(
            self._ledger, self._inventory, SystemClock(), view=Watched(self._around.view)
        )
        offering = Offering(standings=standings, inventory=self._inventory, has_dra=Watched(False))
        async with asyncio.TaskGroup() as group:
            group.create_task(standings.run())
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
async def scene(place: Place, inventory: Inventory) -> AsyncIterator[Scene]:
    """Yield a scene with *inventory*, of TPU chips or VFIO functions."""
    folder = place.state / f"allocate-{len(inventory.devices)}"
    async with ledger_in(folder) as ledger:
        sources = Sources([plain_tpus(), Pools([])])
        async with scene_on(place, ledger, inventory, sources) as made:
            yield made


@contextlib.asynccontextmanager
async def scene_on(
    place: Place, ledger: Ledger, inventory: Inventory, sources: Sources
) -> AsyncIterator[Scene]:
    """Yield a scene on *ledger*."""
    lane = Lane("kubelet", deadline=5.0)
    with synced_file(place) as sync, contextlib.closing(lane):
        made = Scene(ledger, inventory, sources, lane, sync)
        async with beside(made.follow()):
            yield made


def _end_all(draft: Draft) -> None:
    for allocation in list(draft.holdings.allocations.values()):
        draft.end(allocation, "bench")
    for lock in list(draft.locks.values()):
        draft.move(lock.device, LockState.FREE, "bench")
