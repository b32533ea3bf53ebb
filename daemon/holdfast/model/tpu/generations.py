"""What is known of each TPU generation: its PCI ids, its chips, and the hosts they come in.

To add a generation: add one `TpuGeneration` to `GENERATIONS` and one row of `PCI_IDS` for each PCI
device id of it. Nothing else names a generation. Ids come from what the hardware's own tools read
(JAX, tpu-info, gVisor); where those disagree, as with 0x0075 and 0x0076, every id that one of them
calls a TPU is a row, because a chip that is left out cannot be granted at all. Only of 0x007c and
0x0083 is there nothing to be known but a name (docs/tpu.md).
"""

import math
from collections.abc import Mapping

from msgspec import Struct

from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.text import is_number

TPU_RESOURCE = ResourceName("google.com/tpu")
"""The resource name that GKE gives TPU chips, and ours unless it is configured otherwise."""

GOOGLE_VENDOR = 0x1AE0

CHIP_BOUNDS: Mapping[int, tuple[int, int, int]] = {
    1: (1, 1, 1),
    2: (1, 2, 1),
    4: (2, 2, 1),
    8: (2, 4, 1),
}
"""The box that each host shape is, in chips."""


class TpuGeneration(Struct, frozen=True, kw_only=True):
    """One kind of TPU chip.

    `kind` is the driver its machines come with, VFIO for the newer ones. `functions_per_chip` PCI
    functions make one chip. `dimensions` of its topologies are two or three. A `lite` generation
    has one core per chip, counts chips in its accelerator type, and wraps a ring only at 16 chips.
    """

    name: str
    kind: DeviceKind = DeviceKind.VFIO
    accelerator: str = ""
    """What its accelerator types begin with, as ``v5litepod-8`` does; empty: its name."""
    gke: str = ""
    """What GKE's node label calls slices of it; empty: GKE has none."""
    hbm_gib: int | None = None
    """The memory of one chip; None where it is not known."""
    chips_per_host: tuple[int, ...] = (4,)
    dimensions: int = 3
    functions_per_chip: int = 1
    metrics_ports_per_chip: int = 1
    lite: bool = False
    ici_resiliency: bool = False
    """Whether slices of at least 4x4x4 know ENABLE_ICI_RESILIENCY."""
    names_single_host_worker: bool = True
    """Whether a container on a one-host slice is told that it is worker 0 on localhost."""
    names_nic_numa: bool = False
    """Whether a container is told the NUMA node of its chips to choose a network card."""

    def accelerator_type(self, chips: int) -> str:
        """Return the name of a slice of *chips*, such as ``v4-8`` for four v4 chips."""
        return f"{self.accelerator or self.name}-{chips if self.lite else 2 * chips}"


GENERATIONS: Mapping[str, TpuGeneration] = {
    generation.name: generation
    for generation in (
        TpuGeneration(name="v2", kind=DeviceKind.ACCEL, hbm_gib=16, dimensions=2),
        TpuGeneration(
            name="v3", kind=DeviceKind.ACCEL, hbm_gib=32, gke="tpu-v3-slice", dimensions=2
        ),
        TpuGeneration(
            name="v4i",
            kind=DeviceKind.ACCEL,
            accelerator="v4lite",
            gke="tpu-v4-lite-device",
            lite=True,
        ),
        TpuGeneration(
            name="v4",
            kind=DeviceKind.ACCEL,
            hbm_gib=32,
            gke="tpu-v4-podslice",
            ici_resiliency=True,
        ),
        TpuGeneration(name="v5p", hbm_gib=95, gke="tpu-v5p-slice", ici_resiliency=True),
        TpuGeneration(
            name="v5e",
            hbm_gib=16,
            accelerator="v5litepod",
            gke="tpu-v5-lite-podslice",
            chips_per_host=(1, 4, 8),
            dimensions=2,
            lite=True,
        ),
        TpuGeneration(
            name="v6e",
            hbm_gib=32,
            gke="tpu-v6e-slice",
            chips_per_host=(1, 4, 8),
            dimensions=2,
            lite=True,
        ),
        TpuGeneration(
            name="tpu7x",
            hbm_gib=192,
            gke="tpu7x",
            functions_per_chip=2,
            metrics_ports_per_chip=2,
            ici_resiliency=True,
            names_single_host_worker=False,
            names_nic_numa=True,
        ),
    )
}
"""Every generation by its name."""

PCI_IDS: Mapping[tuple[int, int | None], str] = {
    (0x0027, 0x004E): "v2",
    (0x0027, 0x004F): "v3",
    # JAX takes every 0x0027 for a v3, whatever its subsystem.
    (0x0027, None): "v3",
    (0x0056, None): "v4i",
    (0x005E, None): "v4",
    (0x0062, None): "v5p",
    (0x0063, None): "v5e",
    (0x006F, None): "v6e",
    # gVisor calls 0x0075 the chip and 0x0076 its physical function; everybody else calls 0x0076
    # the chip. Both in one slot make one chip all the same.
    (0x0075, None): "tpu7x",
    (0x0076, None): "tpu7x",
}
"""The generation by the device's id and its subsystem's; None: of all others."""

NOT_CHIPS: Mapping[int, str] = {
    0x001F: "NVMe disk",
    0x0042: "gVNIC network card",
    0xABCD: "Airbrush",
    # Offering the physical function beside its virtual functions would count silicon twice.
    0x006E: "physical function of v6e chips",
}
"""Devices of the same vendor that are no TPU chips; a filter by vendor alone counts them."""


def generation_of(vendor: int, device: int, subsystem: int | None) -> TpuGeneration | None:
    """Return the generation of a PCI function, or None when it is not part of a TPU chip."""
    if vendor != GOOGLE_VENDOR:
        return None
    name = PCI_IDS.get((device, subsystem)) or PCI_IDS.get((device, None))
    return None if name is None else GENERATIONS[name]


def slot_of(address: PciAddress) -> str:
    """Return the slot a function sits in: ``0000:c0:02`` for ``0000:c0:02.1``."""
    return address.rpartition(".")[0] or address


def parse_topology(text: str) -> tuple[int, ...] | None:
    """Return the dimensions of ``2x4`` or ``4x4x8``, or None when *text* is no topology."""
    parts = text.strip().lower().split("x")
    if len(parts) not in (2, 3):
        return None
    if not all(is_number(part) and len(part) < 6 for part in parts):  # noqa: PLR2004 - no real topology has a side of a million chips
        return None
    sides = tuple(int(part) for part in parts)
    return sides if math.prod(sides) else None


def single_host_topology(generation: TpuGeneration, chips: int) -> str:
    """Return the topology of a slice that is one host of *chips*, empty where there is none.

    >>> single_host_topology(GENERATIONS["v5e"], 8)
    '2x4'
    """
    bounds = CHIP_BOUNDS.get(chips, ())
    return "x".join(str(side) for side in bounds[: generation.dimensions])
