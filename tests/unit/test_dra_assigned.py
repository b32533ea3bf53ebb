"""What the scheduler is told of devices that the rules of the settings left out or moved."""

import pytest
from msgspec.structs import replace

from fakes.books import HALF, WHOLE, device_of, inventory, name, silicon
from fakes.tpus import plain_tpus
from holdfast.discovery.source import Sources
from holdfast.model.devicerules import DeviceRule, assigned
from holdfast.model.devices import Inventory, pci_key
from holdfast.model.dra.advertised import (
    AdvertisedDevice,
    as_assigned,
    as_found,
    called_before,
    plain,
    texts,
)
from holdfast.model.ids import PciAddress

NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
ALONE = tuple(map(plain, NODE.devices))
PAIR = AdvertisedDevice(
    name="pair",
    devices=(name("d0"), name("d1")),
    attributes=texts(type="tpu", resource=f"{WHOLE}-2x1", shape="2x1"),
)
SHARES = AdvertisedDevice(name="shares", devices=(name("d0"), name("d1")), whole=name("d0", WHOLE))


def _moved() -> tuple[Inventory, AdvertisedDevice]:
    """Return the node with d0 under another resource, and what its adapter tells of it."""
    first, second = NODE.devices
    device = replace(first, name=name("d0", HALF), found_as=WHOLE)
    told = replace(ALONE[0], devices=(device.name,), attributes=texts(type="tpu", resource=HALF))
    return replace(NODE, devices=(device, second)), told


def test_what_no_rule_concerns_is_told_as_its_adapter_tells_it() -> None:
    assert [*as_assigned((*ALONE, PAIR), NODE)] == [*ALONE, PAIR]


def test_what_is_left_out_is_not_told_nor_a_group_with_it() -> None:
    left = replace(NODE, devices=NODE.devices[1:])

    assert [*as_assigned((*ALONE, PAIR), left)] == [ALONE[1]]


def test_what_has_another_resource_is_not_of_the_usual_type() -> None:
    node, told = _moved()

    (found,) = as_assigned([told], node)

    assert found == replace(told, attributes=texts(type="half", resource=HALF))


def test_a_group_whose_devices_have_different_resources_is_not_told() -> None:
    node, _ = _moved()
    mixed = replace(PAIR, devices=(name("d0", HALF), name("d1")))

    assert [*as_assigned([mixed], node)] == []


def test_a_group_has_another_type_as_soon_as_one_of_its_devices_was_moved() -> None:
    node, _ = _moved()
    beside = replace(
        node, devices=(node.devices[0], replace(node.devices[1], name=name("d1", HALF)))
    )
    group = replace(
        PAIR,
        devices=(name("d0", HALF), name("d1", HALF)),
        attributes=texts(type="tpu", resource=HALF, shape="2x1"),
    )

    (found,) = as_assigned([group], beside)

    assert found.attributes == texts(type="half", resource=HALF, shape="2x1")


@pytest.mark.parametrize(
    ("moved", "boxes"),
    [((), ["2x2", "2x2", "2x4"]), ((0, 2, 4, 6), []), ((5,), ["2x2"]), ((0, 1, 2, 3), ["2x2"])],
)
def test_where_a_chip_is_does_not_hang_on_which_others_come_by_the_device_plugin(
    moved: tuple[int, ...], boxes: list[str]
) -> None:
    chips = [
        device_of(name(each), pci_key(PciAddress(each)), source="tpu", model="v5e")
        for each in (f"0000:00:{place:02x}.0" for place in range(8))
    ]
    found = Inventory(resources=(WHOLE,), devices=tuple(chips))
    rules = [
        DeviceRule(place=str(place), pci=chips[place].name.id, resource=HALF) for place in moved
    ]
    sources = Sources([plain_tpus()])
    before = {each.name: each for each in sources.told(found, lambda _resource: True)}

    told = sources.told(assigned(found, rules, {}), WHOLE.__eq__)

    assert all(each == before[each.name] for each in told)
    assert [each.attributes["shape"].text for each in told if len(each.devices) > 1] == boxes
    assert len(told) == 8 - len(moved) + len(boxes)


def test_what_was_moved_is_found_by_its_former_name_and_has_its_present_one() -> None:
    node, _ = _moved()

    found = [*as_found(lambda devices: [*map(plain, devices)], node)]

    assert found == [replace(ALONE[0], devices=(name("d0", HALF),)), ALONE[1]]


def test_what_was_left_out_beside_it_is_found_as_well() -> None:
    node, _ = _moved()
    left = replace(node, devices=node.devices[:1], hardware=node.devices)

    found = as_found(lambda devices: [*map(plain, devices)], left)

    assert [each.name for each in found] == [each.name for each in ALONE]


def test_where_nothing_was_moved_all_is_told_already() -> None:
    assert [*as_found(lambda devices: [*map(plain, devices)], NODE)] == []


@pytest.mark.parametrize(
    ("told", "of_none", "of_one", "of_both"),
    [(ALONE[0], False, True, True), (PAIR, False, False, True), (SHARES, False, True, True)],
    ids=["one", "a group", "shares"],
)
def test_it_is_of_whoever_has_all_of_it_or_a_share(
    told: AdvertisedDevice, *, of_none: bool, of_one: bool, of_both: bool
) -> None:
    assert told.is_of({name("d2")}) is of_none
    assert told.is_of({name("d0"), name("d2")}) is of_one
    assert told.is_of({name("d0"), name("d1")}) is of_both


def test_by_its_id_a_device_is_known_whatever_a_rule_has_called_it() -> None:
    two = replace(ALONE[1], devices=(name("xd0"),))

    assert called_before("other-d0", [*ALONE, PAIR]) == ALONE[0]
    assert called_before("other-d0", [replace(ALONE[0], name="found"), ALONE[0]]) == ALONE[0]
    assert called_before("other-xd0", [ALONE[0], two]) == two
    assert called_before("other-d3", ALONE) is None


def test_of_a_shared_device_the_whole_is_called_so() -> None:
    shares = replace(SHARES, whole=name("card"))

    assert called_before("other-card", [*ALONE, shares]) == shares
    assert called_before("other-d0", [shares]) is None


def test_a_name_that_two_devices_can_have_had_is_of_neither() -> None:
    assert called_before("a-b-d0", [ALONE[0], replace(ALONE[1], devices=(name("b-d0"),))]) is None
