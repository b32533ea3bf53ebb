"""GetPreferredAllocation's decision, for TPU chips, virtual functions and GPUs."""

import random
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice

from msgspec import Struct

from bench.figures import Figure
from bench.floors import thread_cpu, visits
from bench.gpus import cube_mesh, switch_pairs
from bench.growth import SIZES, Growth
from bench.rig import Place
from bench.worlds import chips, functions
from fakes.ledgers import ledger_in
from fakes.standings import device_standings
from fakes.tpus import plain_tpus
from holdfast.allocation.allocator import Preference
from holdfast.discovery.source import Source, Sources
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.placement import GpuTopology, SlicePolicy
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.specs import GpuPreference
from holdfast.vendors.vfio.adapter import Pools

_REACH = {8: 0.15, 16: 0.4, 64: 1.5, 256: 5.0, 1024: 20.0}
"""Milliseconds that a decision may take, by the devices of the node."""
_STATES = 24
"""So many states of a large node, in which some devices are taken at random."""
_LINEAR = 1.2


class _Asked(Struct, frozen=True, kw_only=True):
    """A question: how many of a node's devices, each time of other *available* ones."""

    size: int
    inventory: Inventory
    available: Sequence[tuple[DeviceId, ...]]
    what: str
    topology: GpuTopology
    suffix: str


async def preferred(place: Place) -> list[Figure]:
    """Measure the handler; what it takes does not depend on the wire or the disk."""
    async with ledger_in(place.state) as ledger:
        few = [_figure(ledger, asked, n=1000) for asked in _few()]
        many = {size: _figure(ledger, _some(size), n=2 * _STATES) for size in SIZES}
    return [
        *few,
        *many.values(),
        Growth(name="preferred", figures=many, reach=_LINEAR).exponent(),
    ]


def _few() -> list[_Asked]:
    """Return the questions of small nodes, where all devices are available."""
    tpus = [
        _asked(size, chips(count), suffix="_tpu", what="TPUs") for size, count in ((4, 8), (8, 16))
    ]
    # Of the kinds of node the ones whose GPUs are least alike, which are the slowest to search.
    nodes = (
        (cube_mesh(), (1, 2, 4), "GPUs in a hybrid cube mesh"),
        (switch_pairs(16), (2, 4, 8), "GPUs in pairs behind PCI switches"),
    )
    return tpus + [
        _asked(size, inventory, topology=topology, what=what)
        for (inventory, topology), sizes, what in nodes
        for size in sizes
    ]


def _asked(
    size: int,
    inventory: Inventory,
    *,
    what: str,
    suffix: str = "",
    topology: GpuTopology | None = None,
) -> _Asked:
    return _Asked(
        size=size,
        inventory=inventory,
        available=[tuple(device.name.id for device in inventory.devices)],
        what=f"{what}, all available",
        topology=topology or GpuTopology(),
        suffix=suffix,
    )


def _some(count: int) -> _Asked:
    """Return the question for a quarter of *count* functions, of which each time others are taken.

    At first all are available.
    """
    inventory = functions(count)
    ids = [device.name.id for device in inventory.devices]
    chance = random.Random(count)
    taken = (set(chance.sample(ids, count // 3)) for _ in range(_STATES - 1))
    states = (set[DeviceId](), *taken)
    return _Asked(
        size=count // 4,
        inventory=inventory,
        available=[tuple(id_ for id_ in ids if id_ not in state) for state in states],
        what="virtual functions, at random a third of them taken",
        topology=GpuTopology(),
        suffix="_vf" if count == min(SIZES) else "",
    )


class _Gpus(Source):
    name = "nvidia"

    def __init__(self, preference: GpuPreference) -> None:
        self.preferred = preference.preferred  # type: ignore[method-assign]


def _figure(ledger: Ledger, asked: _Asked, *, n: int) -> Figure:
    inventory, devices = asked.inventory, len(asked.inventory.devices)
    here = Watched(inventory)
    preference = Preference(
        standings=device_standings(ledger, here, SystemClock()),
        inventory=here,
        sources=Sources(
            [
                plain_tpus(),
                Pools([]),
                _Gpus(GpuPreference(Watched(asked.topology), Watched(SlicePolicy.DISTRIBUTED))),
            ]
        ),
    )
    (resource,) = inventory.resources
    return Figure(
        name=f"preferred_{asked.size}_of_{devices}{asked.suffix}",
        samples=[
            thread_cpu(partial(preference.preferred, resource, available, (), asked.size))
            for available in islice(cycle(asked.available), n)
        ],
        reach=_REACH[devices],
        floor=visits(devices),
        note=f"CPU time of the handler; {asked.what}",
    )
