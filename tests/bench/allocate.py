"""Allocate with its durable commit, without kubelet, at many sizes and beside many others."""

from collections.abc import Sequence

from bench.figures import Figure, Floor, percentile
from bench.floors import Sync
from bench.growth import SIZES, Growth
from bench.rig import Place
from bench.scene import Call, scene
from bench.worlds import chips, functions

_ABOVE = {8: 0.3, 64: 0.5, 256: 1.0, 512: 1.0, 1024: 2.0}
"""Milliseconds above one fdatasync that an Allocate may take, by the devices of the node."""
_PENDING, _ABOVE_PENDING = 400, 0.5
_FLAT = 0.2
_CALLS = 480
"""So many calls are measured at each size."""


async def allocate(place: Place) -> list[Figure]:
    """Measure Allocate of one device after the other, none of which kubelet confirms."""
    calls = {devices: await _in_turn(place, devices) for devices in sorted({*SIZES, 512})}
    found = {
        devices: _figure(
            "allocate" if devices == min(SIZES) else f"allocate_{devices}",
            each,
            above=_ABOVE[devices],
            note=f"the handler with its commit, for up to {_CALLS} of {devices} devices in turn",
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
    async with scene(place, inventory) as made:
        for device in inventory.devices[:_PENDING]:
            await made.allocate(device)
        calls = [await made.call(device) for device in inventory.devices[_PENDING:]]
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


async def _in_turn(place: Place, devices: int) -> list[Call]:
    inventory = chips(devices) if devices == min(SIZES) else functions(devices)
    calls: list[Call] = []
    async with scene(place, inventory) as made:
        while len(calls) < _CALLS:
            calls += [await made.call(device) for device in inventory.devices[:_CALLS]]
            await made.end_all()
    return calls


def _figure(name: str, calls: Sequence[Call], *, above: float, note: str) -> Figure:
    floor = Floor(what=Sync.what, samples=[each.sync for each in calls])
    return Figure(
        name=name,
        samples=[each.took for each in calls],
        reach=floor.p50 + above,
        floor=floor,
        note=f"{note}; the reach is the floor and {above:g} ms",
    )


def _above(calls: Sequence[Call]) -> float:
    """Return by how much the median of *calls* is above that of their syncs."""
    return percentile([each.took for each in calls], 0.5) - percentile(
        [each.sync for each in calls], 0.5
    )
