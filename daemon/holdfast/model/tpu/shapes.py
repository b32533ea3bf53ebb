"""What the scheduler is told about TPU chips, and about the groups of them that libtpu can use."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.advertised import AdvertisedDevice, numbers, plain, texts
from holdfast.model.dra.resourceslice import fitted, label
from holdfast.model.tpu.generations import (
    CHIP_BOUNDS,
    GENERATIONS,
    TpuGeneration,
    single_host_topology,
)

_SHAPES = (4, 8)
"""Chips of the groups that are offered as one device: 2x2 and 2x4. A single one is its chip."""
_GIB = 1 << 30
_TYPE, _SHAPE_TYPE = "tpu", "tpu-shape"


def advertised_chips(
    devices: Sequence[Device], generation: str = ""
) -> tuple[AdvertisedDevice, ...]:
    """Return the chips among *devices*, in their order, then the shapes that they make.

    *devices* are in the order of the chips in the host's box. *generation* overrules what the PCI
    ids say. A host with a number of chips that makes no box has no shapes: which chips are missing
    cannot be told. Devices that are no chips of a known generation come first, as they are.
    """
    known = [(device, GENERATIONS.get(generation or device.model)) for device in devices]
    chips = [(device, which) for device, which in known if which is not None]
    others = [device for device, which in known if which is None]
    return (
        *map(plain, others),
        *(_chip(device, which, place, len(chips)) for place, (device, which) in enumerate(chips)),
        *_shapes(chips),
    )


def _chip(device: Device, generation: TpuGeneration, place: int, on_host: int) -> AdvertisedDevice:
    found = plain(device)
    attributes = {**found.attributes, **texts(type=_TYPE, generation=generation.name)}
    if on_host in CHIP_BOUNDS:
        width, depth, _ = CHIP_BOUNDS[on_host]
        attributes |= numbers(x=place % width, y=place // width % depth, z=place // (width * depth))
    return replace(found, attributes=attributes, capacity=_memory(generation, 1))


def _shapes(chips: Sequence[tuple[Device, TpuGeneration]]) -> Iterator[AdvertisedDevice]:
    if len(chips) not in CHIP_BOUNDS or len({which.name for _, which in chips}) != 1:
        return
    generation = chips[0][1]
    for size in _SHAPES:
        shape = single_host_topology(generation, size)
        for start in range(0, len(chips) - size + 1, size):
            names = tuple(device.name for device, _ in chips[start : start + size])
            # What a chip is called stays in front: tpu-2x2-0000-00-05-0, google.com/tpu-2x2.
            kind, _, rest = label(names[0]).partition("-")
            name = f"{kind}-{shape}-{rest}"
            resource = f"{names[0].resource}-{shape}"
            yield AdvertisedDevice(
                name=fitted(name, name),
                devices=names,
                attributes={
                    **texts(
                        type=_SHAPE_TYPE,
                        resource=resource,
                        shape=shape,
                        generation=generation.name,
                    ),
                    **numbers(chips=size),
                },
                capacity=_memory(generation, size),
            )


def _memory(generation: TpuGeneration, chips: int) -> dict[str, int]:
    return {} if generation.hbm_gib is None else {"memory": generation.hbm_gib * chips * _GIB}
