"""What is preferred follows the topology that was read last, and asks nobody."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import device_of, keys, name
from fakes.ledgers import ledger_in
from fakes.standings import device_standings
from holdfast.allocation.allocator import Preference
from holdfast.discovery.source import Source, Sources
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.book.byhand import Target, quarantine
from holdfast.model.book.marks import Asker, Mark
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid
from holdfast.model.nvidia import GPU
from holdfast.model.nvidia.gpu import GpuLinks
from holdfast.model.nvidia.placement import GpuTopology, SlicePolicy
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.specs import GpuPreference

A, B, C, D = (DeviceId(f"GPU-{letter}") for letter in "abcd")


def _inventory(*ids: DeviceId) -> Inventory:
    devices = tuple(
        device_of(name(each, GPU), f"card/{each}", kind=DeviceKind.DRIVER) for each in ids
    )
    return Inventory(resources=(GPU,), devices=devices)


def _linked(one: DeviceId, other: DeviceId) -> GpuTopology:
    return GpuTopology(links=GpuLinks(nvlinks={(one, other): 4}))


class _Gpus(Source):
    def __init__(self, preference: GpuPreference) -> None:
        self.preferred = preference.preferred  # type: ignore[method-assign]


def _by(topology: Watched[GpuTopology], slices: SlicePolicy = SlicePolicy.DISTRIBUTED) -> Sources:
    return Sources([_Gpus(GpuPreference(topology, Watched(slices)))])


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_in(tmp_path) as made:
        yield made


def _standings(ledger: Ledger, inventory: Watched[Inventory]) -> DeviceStandings:
    return device_standings(ledger, inventory, SystemClock())


async def test_a_topology_or_inventory_that_changes_changes_what_is_preferred(
    ledger: Ledger,
) -> None:
    inventory, topology = Watched(_inventory(A, B, C)), Watched(_linked(B, C))
    preference = Preference(
        standings=_standings(ledger, inventory), inventory=inventory, sources=_by(topology)
    )
    assert preference.preferred(GPU, (A, B, C), (), 2) == (B, C)
    topology.set(_linked(A, C))
    assert preference.preferred(GPU, (A, B, C), (), 2) == (A, C)
    inventory.set(_inventory(D, C, B, A))
    topology.set(_linked(A, D))
    assert preference.preferred(GPU, (A, B, C, D), (), 2) == (D, A)


async def test_a_gpu_in_quarantine_is_preferred_last_however_near_it_is(ledger: Ledger) -> None:
    mark = Mark(asker=Asker(uid=0, pid=1), at=0.0, reason="it is sick")
    what = Target(device=DeviceName(GPU, B), keys=frozenset({HardwareKey(f"card/{B}")}))
    await ledger.apply(lambda draft: quarantine(draft, what, mark))
    inventory = Watched(_inventory(A, B, C))
    preference = Preference(
        standings=_standings(ledger, inventory),
        inventory=inventory,
        sources=_by(Watched(_linked(B, C))),
    )
    assert preference.preferred(GPU, (A, B, C), (), 2) == (A, C)


async def test_a_gpu_that_is_to_leave_is_preferred_only_where_too_few_stay(ledger: Ledger) -> None:
    def leaves(device: Device) -> Device:
        return replace(device, leaving="a rule") if device.name.id == B else device

    found = _inventory(A, B, C)
    inventory = Watched(replace(found, devices=tuple(map(leaves, found.devices))))
    preference = Preference(
        standings=_standings(ledger, inventory),
        inventory=inventory,
        sources=_by(Watched(_linked(B, C))),
    )
    await ledger.apply(
        lambda draft: draft.allocate(GPU, {A: keys(f"card/{A}")}, pod=PodUid("has not ended yet"))
    )
    assert preference.preferred(GPU, (A, B), (), 1) == (A,), "that one can be waited for"
    assert set(preference.preferred(GPU, (A, B, C), (), 2)) == {A, C}
    assert preference.preferred(GPU, (B, C), (B,), 1) == (B,)
    assert set(preference.preferred(GPU, (B, C), (), 2)) == {B, C}


async def test_without_a_topology_gpus_are_preferred_all_the_same(ledger: Ledger) -> None:
    inventory = Watched(_inventory(A, B))
    preference = Preference(
        standings=_standings(ledger, inventory),
        inventory=inventory,
        sources=_by(Watched(GpuTopology())),
    )
    assert preference.preferred(GPU, (A, B), (B,), 1) == (B,)


async def test_slices_are_spread_over_the_gpus_unless_they_are_to_be_packed(ledger: Ledger) -> None:
    inventory = Watched(_inventory(A, B, C, D))
    topology = Watched(GpuTopology(parents={A: "GPU-0", B: "GPU-0", C: "GPU-1", D: "GPU-1"}))
    spreading = Preference(
        standings=_standings(ledger, inventory), inventory=inventory, sources=_by(topology)
    )
    packing = Preference(
        standings=_standings(ledger, inventory),
        inventory=inventory,
        sources=_by(topology, SlicePolicy.PACKED),
    )

    assert spreading.preferred(GPU, (B, C, D), (), 1) == (C,)
    assert packing.preferred(GPU, (B, C, D), (), 1) == (B,)
