"""The answers to kubelet without kubelet: Allocate with its durable commit, and preferences."""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from msgspec import Struct

from bench.figures import Figure
from bench.gpus import cube_mesh, switch_pairs
from bench.rig import Place
from holdfast.allocation.allocator import Allocator
from holdfast.allocation.granting import Granting
from holdfast.allocation.preference import Preference
from holdfast.discovery.source import Source, Sources
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import LockState
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.ids import (
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    ResourceName,
)
from holdfast.model.nvidia.placement import GpuTopology
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.preference import GpuPreference
from holdfast.vendors.tpu.adapter import Tpus

TPU = ResourceName("google.com/tpu")
_PAGE = b"\0" * 4096
_P50_ABOVE, _P99_ABOVE = 0.3, 1.0
_PREFERRED_P50, _PREFERRED_P99 = 0.25, 5.0
_EIGHT = 8
"""On nodes with more than these, the median has no budget."""


class _Sync(Struct, frozen=True, kw_only=True):
    """A file that is synced as the ledger's is: one more page at its end, then fdatasync."""

    fd: int

    def __call__(self) -> None:
        os.write(self.fd, _PAGE)
        os.fdatasync(self.fd)


async def allocate(place: Place, *, rounds: int = 60) -> list[Figure]:
    """Measure Allocate of each of 8 devices in turn, and one fdatasync beside each."""
    allocates: list[float] = []
    syncs: list[float] = []
    inventory = Watched(_node(8))
    fd = os.open(place.state / "fdatasync", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lane = Lane("kubelet", deadline=5.0)
    try:
        async with ledger_in(place.state) as ledger:
            allocator = Allocator(
                ledger=ledger,
                inventory=inventory,
                grant=_granting().grant,
                node_rdev=lambda _path: None,
                checkpoint=lambda: CheckpointId(""),
                lane=lane,
                clock=SystemClock(),
                commit_timeout=2.0,
            )
            sync = _Sync(fd=fd)
            for _ in range(rounds):
                for device in inventory.value.devices:
                    syncs.append(timed(sync))
                    began = time.perf_counter()
                    await allocator.allocate(TPU, (device.name.id,))
                    allocates.append((time.perf_counter() - began) * 1000)
                await ledger.apply(_end_all)
                await ledger.tidy()
    finally:
        lane.close()
        os.close(fd)
    one = Figure(name="fdatasync", samples=syncs, note="of 4 KiB more, where the ledger is")
    return [
        one,
        Figure(
            name="allocate",
            samples=allocates,
            budget={"p50": one.p50 + _P50_ABOVE, "p99": one.p99 + _P99_ABOVE},
            note="the handler with its durable commit; the budget is above one fdatasync",
        ),
    ]


async def preferred(place: Place, *, n: int = 1000) -> list[Figure]:
    """Measure GetPreferredAllocation's decision, for TPU chips and for GPUs."""
    async with ledger_in(place.state) as ledger:
        return [
            Figure(
                name=f"preferred_{asked.size}_of_{asked.on_node}{asked.suffix}",
                samples=_prefer(ledger, asked, n),
                budget={"p99": _PREFERRED_P99}
                if asked.on_node > _EIGHT
                else {"p50": _PREFERRED_P50},
                note=f"the handler; {asked.what}",
            )
            for asked in _questions()
        ]


class _Asked(Struct, frozen=True, kw_only=True):
    """A question of GetPreferredAllocation's: how many of a node where all are available."""

    size: int
    inventory: Inventory
    topology: GpuTopology
    suffix: str
    what: str

    @property
    def on_node(self) -> int:
        return len(self.inventory.devices)


def _questions() -> list[_Asked]:
    tpu = [
        _Asked(
            size=size, inventory=_node(chips), topology=GpuTopology(), suffix="_tpu", what="TPUs"
        )
        for size, chips in ((4, 8), (8, 16))
    ]
    # Of the kinds of node the ones whose GPUs are least alike, which are the slowest to search.
    nodes = (
        (cube_mesh(), (1, 2, 4), "GPUs in a hybrid cube mesh"),
        (switch_pairs(16), (2, 4, 8), "GPUs in pairs behind PCI switches"),
    )
    return tpu + [
        _Asked(size=size, inventory=inventory, topology=topology, suffix="", what=what)
        for (inventory, topology), sizes, what in nodes
        for size in sizes
    ]


class _Gpus(Source):
    name = "nvidia"

    def __init__(self, preference: GpuPreference) -> None:
        self.preferred = preference.preferred  # type: ignore[method-assign]


def _prefer(ledger: Ledger, asked: _Asked, n: int) -> list[float]:
    inventory = asked.inventory
    preference = Preference(
        ledger=ledger,
        inventory=Watched(inventory),
        sources=Sources([Tpus(), _Gpus(GpuPreference(Watched(asked.topology)))]),
    )
    ids = tuple(device.name.id for device in inventory.devices)
    (resource,) = inventory.resources
    return [timed(lambda: preference.preferred(resource, ids, (), asked.size)) for _ in range(n)]


@contextlib.asynccontextmanager
async def ledger_in(state: Path) -> AsyncIterator[Ledger]:
    """Open a ledger in the folder *state*."""
    lane = Lane("ledger", deadline=30.0)
    ledger = await open_ledger(state, lane, clock=SystemClock(), boot=BootId("bench"))
    try:
        yield ledger
    finally:
        await ledger.close()
        lane.close(patience=5.0)


def _end_all(draft: Draft) -> None:
    for allocation in list(draft.book.allocations.values()):
        draft.end(allocation, "bench")
    for lock in list(draft.book.locks.values()):
        draft.move(lock.device, LockState.FREE, "bench")


def _granting() -> Granting:
    return Granting(Sources([Tpus(TPU)]))


def _node(chips: int) -> Inventory:
    addresses = [PciAddress(f"0000:00:{5 + place:02x}.0") for place in range(chips)]
    devices = tuple(
        Device(
            name=DeviceName(TPU, DeviceId(address)),
            kind=DeviceKind.VFIO,
            keys=frozenset({HardwareKey(f"pci:{address}"), HardwareKey(f"iommu:{place}")}),
            nodes=(DeviceNode(path=f"/dev/vfio/{place}", rdev=0),),
            functions=(address,),
            model="v5e",
            source="tpu",
            numa_node=place * 2 // chips,
        )
        for place, address in enumerate(addresses)
    )
    return Inventory(generation=1, resources=(TPU,), devices=devices)


def timed(call: Callable[[], object]) -> float:
    """Return how many milliseconds *call* takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
