"""The table of TPU generations."""

import pytest

from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PciAddress
from holdfast.model.tpu.generations import (
    GENERATIONS,
    GOOGLE_VENDOR,
    NOT_CHIPS,
    PCI_IDS,
    generation_of,
    parse_topology,
    single_host_topology,
    slot_of,
)

_IDS = [
    (0x0027, 0x004E, "v2"),
    (0x0027, 0x004F, "v3"),
    (0x0027, 0x1234, "v3"),
    (0x0027, None, "v3"),
    (0x0056, 0, "v4i"),
    (0x005E, 0, "v4"),
    (0x0062, 0, "v5p"),
    (0x0063, 0, "v5e"),
    (0x006F, None, "v6e"),
    (0x0075, 0, "tpu7x"),
    (0x0076, 0, "tpu7x"),
]


@pytest.mark.parametrize(("device", "subsystem", "name"), _IDS)
def test_each_pci_id_names_its_generation(device: int, subsystem: int | None, name: str) -> None:
    found = generation_of(GOOGLE_VENDOR, device, subsystem)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("device", [0x001F, 0x0042, 0xABCD, 0x006E, 0xFFFF, 0x0000])
def test_other_devices_of_google_are_not_chips(device: int) -> None:
    assert generation_of(GOOGLE_VENDOR, device, None) is None


def test_the_same_device_id_of_another_vendor_is_not_a_chip() -> None:
    assert generation_of(0x10DE, 0x0063, None) is None


def test_every_id_has_its_generation_and_none_is_excluded_as_well() -> None:
    assert {*PCI_IDS.values()} == set(GENERATIONS)
    assert {device for device, _ in PCI_IDS} == {device for device, *_ in _IDS}
    assert not {device for device, _ in PCI_IDS} & set(NOT_CHIPS)


def test_chips_up_to_v4_have_accel_nodes_and_later_ones_vfio_groups() -> None:
    accel = {name for name, it in GENERATIONS.items() if it.kind is DeviceKind.ACCEL}
    assert accel == {"v2", "v3", "v4i", "v4"}


def test_only_a_tpu7x_chip_is_made_of_two_functions() -> None:
    assert {
        name: it.functions_per_chip for name, it in GENERATIONS.items() if it.functions_per_chip > 1
    } == {"tpu7x": 2}


@pytest.mark.parametrize(
    ("name", "chips", "kind"),
    [
        ("v2", 4, "v2-8"),
        ("v4", 4, "v4-8"),
        ("v5p", 4, "v5p-8"),
        ("tpu7x", 4, "tpu7x-8"),
        ("v5e", 8, "v5litepod-8"),
        ("v6e", 8, "v6e-8"),
    ],
)
def test_accelerator_types_count_cores_or_chips_as_the_generation_does(
    name: str, chips: int, kind: str
) -> None:
    assert GENERATIONS[name].accelerator_type(chips) == kind


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("2x4", (2, 4)),
        ("4x4x8", (4, 4, 8)),
        (" 2X2 ", (2, 2)),
        ("", None),
        ("4", None),
        ("2x", None),
        ("2x-2", None),
        ("0x4", None),
        ("1x1x1x1", None),
        ("2x²", None),
        ("2x9999999", None),
    ],
)
def test_topologies_are_read_or_refused(text: str, sides: tuple[int, ...] | None) -> None:
    assert parse_topology(text) == sides


@pytest.mark.parametrize(
    ("name", "chips", "topology"),
    [
        ("v5e", 1, "1x1"),
        ("v5e", 4, "2x2"),
        ("v6e", 8, "2x4"),
        ("v3", 4, "2x2"),
        ("v4", 4, "2x2x1"),
        ("tpu7x", 4, "2x2x1"),
        ("v5e", 3, ""),
        ("v5e", 0, ""),
    ],
)
def test_the_number_of_chips_shows_the_topology_of_a_lone_host(
    name: str, chips: int, topology: str
) -> None:
    assert single_host_topology(GENERATIONS[name], chips) == topology


def test_the_slot_is_the_address_without_its_function() -> None:
    assert slot_of(PciAddress("0000:c0:02.1")) == "0000:c0:02"
