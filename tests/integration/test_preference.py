"""What is preferred follows the topology that was read last, and asks nobody."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.allocation.preference import Preference
from holdfast.discovery.source import Source, Sources
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.byhand import Target, quarantine
from holdfast.model.book.marks import Asker, Mark
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import BootId, DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.nvidia.gpu import GPU_RESOURCE, GpuLinks
from holdfast.model.nvidia.placement import GpuTopology
from holdfast.model.nvidia.slice_placement import SlicePolicy
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.preference import GpuPreference

_GPU = ResourceName(GPU_RESOURCE)
A, B, C, D = (DeviceId(f"GPU-{letter}") for letter in "abcd")


def _inventory(*ids: DeviceId) -> Inventory:
    devices = tuple(
        Device(
            name=DeviceName(_GPU, each),
            kind=DeviceKind.DRIVER,
            keys=frozenset({HardwareKey(f"gpu/{each}")}),
            nodes=(),
            functions=(),
        )
        for each in ids
    )
    return Inventory(resources=(_GPU,), devices=devices)


def _linked(one: DeviceId, other: DeviceId) -> GpuTopology:
    return GpuTopology(links=GpuLinks(nvlinks={(one, other): 4}))


class _Gpus(Source):
    def __init__(self, preference: GpuPreference) -> None:
        self.preferred = preference.preferred  # type: ignore[method-assign]


def _by(topology: Watched[GpuTopology], slices: SlicePolicy = SlicePolicy.DISTRIBUTED) -> Sources:
    return Sources([_Gpus(GpuPreference(topology, Watched(slices)))])


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    lane = Lane("ledger", deadline=10)
    ledger = await open_ledger(tmp_path, lane, clock=SystemClock(), boot=BootId("boot"))
    yield ledger
    await ledger.close()
    lane.close(patience=5)


async def test_a_topology_or_inventory_that_changes_changes_what_is_preferred(
    ledger: Ledger,
) -> None:
    inventory, topology = Watched(_inventory(A, B, C)), Watched(_linked(B, C))
    preference = Preference(ledger=ledger, inventory=inventory, sources=_by(topology))
    assert preference.preferred(_GPU, (A, B, C), (), 2) == (B, C)
    topology.set(_linked(A, C))
    assert preference.preferred(_GPU, (A, B, C), (), 2) == (A, C)
    inventory.set(_inventory(D, C, B, A))
    topology.set(_linked(A, D))
    assert preference.preferred(_GPU, (A, B, C, D), (), 2) == (D, A)


async def test_a_gpu_in_quarantine_is_preferred_last_however_near_it_is(ledger: Ledger) -> None:
    mark = Mark(asker=Asker(uid=0, pid=1), at=0.0, reason="it is sick")
    what = Target(device=DeviceName(_GPU, B), keys=frozenset({HardwareKey(f"gpu/{B}")}))
    await ledger.apply(lambda draft: quarantine(draft, what, mark))
    preference = Preference(
        ledger=ledger, inventory=Watched(_inventory(A, B, C)), sources=_by(Watched(_linked(B, C)))
    )
    assert preference.preferred(_GPU, (A, B, C), (), 2) == (A, C)


async def test_without_a_topology_gpus_are_preferred_all_the_same(ledger: Ledger) -> None:
    preference = Preference(
        ledger=ledger, inventory=Watched(_inventory(A, B)), sources=_by(Watched(GpuTopology()))
    )
    assert preference.preferred(_GPU, (A, B), (B,), 1) == (B,)


async def test_slices_are_spread_over_the_gpus_unless_they_are_to_be_packed(ledger: Ledger) -> None:
    inventory = Watched(_inventory(A, B, C, D))
    topology = Watched(GpuTopology(parents={A: "GPU-0", B: "GPU-0", C: "GPU-1", D: "GPU-1"}))
    spreading = Preference(ledger=ledger, inventory=inventory, sources=_by(topology))
    packing = Preference(
        ledger=ledger, inventory=inventory, sources=_by(topology, SlicePolicy.PACKED)
    )

    assert spreading.preferred(_GPU, (B, C, D), (), 1) == (C,)
    assert packing.preferred(_GPU, (B, C, D), (), 1) == (B,)
