"""What the scheduler is told of devices that the rules of the settings left out or moved."""

from msgspec.structs import replace

from fakes.books import HALF, WHOLE, inventory, name, silicon
from holdfast.model.devices import Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, as_assigned, plain, texts

NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
ALONE = tuple(map(plain, NODE.devices))
PAIR = AdvertisedDevice(
    name="pair",
    devices=(name("d0"), name("d1")),
    attributes=texts(type="tpu", resource=f"{WHOLE}-2x1", shape="2x1"),
)


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
