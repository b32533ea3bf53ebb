"""Which groups of TPU chips the scheduler is offered as one device."""

import pytest
from msgspec.structs import replace

from fakes.books import device_of, name
from holdfast.model.devices import Device, pci_key
from holdfast.model.dra.advertised import AdvertisedDevice, makes_no_group
from holdfast.model.ids import DeviceId, DeviceName, PciAddress, ResourceName
from holdfast.model.tpu.shapes import advertised_chips


def chip(place: int, model: str) -> Device:
    one, two = (PciAddress(f"0000:c0:{place:02x}.{function}") for function in (0, 1))
    return device_of(
        name(f"0000:c0:{place:02x}"), pci_key(one), pci_key(two), functions=(one, two), model=model
    )


@pytest.mark.parametrize(
    ("model", "count", "shapes"),
    [
        ("v5e", 1, []),
        ("v5e", 2, []),
        ("v5e", 4, ["tpu-2x2-0000-c0-00"]),
        ("v6e", 8, ["tpu-2x2-0000-c0-00", "tpu-2x2-0000-c0-04", "tpu-2x4-0000-c0-00"]),
        ("v5p", 4, ["tpu-2x2x1-0000-c0-00"]),
        ("tpu7x", 4, ["tpu-2x2x1-0000-c0-00"]),
        ("v5e", 6, []),
        ("1ae0:9999", 4, []),
    ],
)
def test_shapes_are_those_that_fit_the_host(model: str, count: int, shapes: list[str]) -> None:
    found = advertised_chips([chip(place, model) for place in range(count)])

    assert [each.name for each in found if len(each.devices) > 1] == shapes
    assert sum(len(each.devices) == 1 for each in found) == count


@pytest.mark.parametrize(
    ("places", "scattered"),
    [
        ((0,), False),
        ((0, 1), False),
        ((0, 1, 2, 3), False),
        ((4, 5, 6, 7), False),
        ((1, 2, 3, 4), True),
        ((0, 1, 2, 7), True),
        (tuple(range(8)), False),
    ],
)
def test_chips_that_make_no_box_are_told_where_boxes_of_as_many_are_offered(
    places: tuple[int, ...], scattered: bool
) -> None:
    chips = [chip(place, "v5e") for place in range(8)]
    told = advertised_chips(chips)
    assert makes_no_group([chips[place].name for place in places], told) is scattered


def test_the_names_of_shapes_are_labels_however_long_the_resources_is() -> None:
    named = ResourceName("example.com/" + "a" * 50)
    chips = [chip(place, "v5e") for place in range(8)]
    chips = [replace(each, name=DeviceName(named, each.name.id)) for each in chips]
    names = [each.name for each in advertised_chips(chips)]
    assert max(map(len, names)) <= 63
    assert len(set(names)) == len(names)


def test_a_chip_of_two_functions_is_known_by_its_first() -> None:
    (found,) = advertised_chips([chip(2, "tpu7x")])

    assert (found.name, found.address) == ("tpu-0000-c0-02", "0000:c0:02.0")
    assert found.attributes["generation"].text == "tpu7x"
    assert found.capacity == {"memory": 192 << 30}


def test_the_configured_generation_counts_more_than_the_ids() -> None:
    (found,) = advertised_chips([chip(0, "1ae0:9999")], "v6e")

    assert found.attributes["generation"].text == "v6e"


def test_chips_of_two_generations_make_no_shape() -> None:
    found = advertised_chips([chip(place, "v5e" if place else "v6e") for place in range(4)])

    assert [len(each.devices) for each in found] == [1] * 4


def test_what_is_no_chip_of_a_known_generation_takes_no_place_among_them() -> None:
    pool = replace(
        chip(9, "10de:2330"), name=DeviceName(ResourceName("google.com/tpu"), DeviceId("x"))
    )
    found = advertised_chips([pool, *(chip(place, "v5e") for place in range(4))])

    assert found[0].devices == (pool.name,)
    assert [each.attributes["x"].number for each in found[1:5]] == [0, 1, 0, 1]
    assert pool.name not in found[5].devices


def test_a_chip_of_unknown_memory_has_no_capacity() -> None:
    (found,) = advertised_chips([chip(0, "v4i")])

    assert found.capacity == {}


def _told(
    *ids: str, resource: str = "google.com/tpu", whole: str | None = None
) -> AdvertisedDevice:
    names = tuple(DeviceName(ResourceName(resource), DeviceId(each)) for each in ids)
    of_all = None if whole is None else DeviceName(ResourceName(resource), DeviceId(whole))
    return AdvertisedDevice(name="-".join(ids), devices=names, whole=of_all)


@pytest.mark.parametrize(
    ("told", "scattered"),
    [
        (_told("a", "b"), True),
        (_told("a", "c"), False),
        (_told("a"), False),
        (_told("a", "b", "d"), False),
        (_told("a", "b", resource="google.com/tpu7x"), False),
        (_told("a", "b", whole="card"), False),
    ],
    ids=["a pair", "this pair", "a single one", "three", "of another resource", "shares of one"],
)
def test_two_devices_are_scattered_where_other_two_of_their_resource_make_a_group(
    told: AdvertisedDevice, *, scattered: bool
) -> None:
    assert makes_no_group(_told("a", "c").devices, [told]) is scattered


def test_one_device_is_never_scattered() -> None:
    assert not makes_no_group(_told("a").devices, [_told("b")])
