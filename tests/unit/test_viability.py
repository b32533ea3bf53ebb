"""From facts to faults."""

import os

import pytest

from holdfast.model.devices import FaultKind
from holdfast.model.ids import PciAddress
from holdfast.model.vfio import (
    FunctionFacts,
    VfioDeviceNode,
    chip_faults,
    function_faults,
    group_faults,
    is_bridge,
    is_vfio_driver,
    node_faults,
    pending_removal,
)

_ADDRESS = PciAddress("0000:00:05.0")


def _function(driver: str | None, *, was_bound: bool = False) -> FunctionFacts:
    return FunctionFacts(address=_ADDRESS, driver=driver, was_bound=was_bound)


def _node(
    *, expected: int | None = 62, found: int | None = 62, exists: bool = True, problem: str = ""
) -> VfioDeviceNode:
    return VfioDeviceNode(
        path="/dev/vfio/7", expected=expected, found=found, exists=exists, problem=problem
    )


@pytest.mark.parametrize(
    ("driver", "viable"),
    [
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        (None, True),
        ("pci-stub", True),
        ("pcieport", True),
        ("nvme", False),
        ("uio_pci_generic", False),
    ],
)
def test_a_group_is_viable_unless_a_driver_in_it_does_dma_of_its_own(
    driver: str | None, viable: bool
) -> None:
    faults = group_faults(7, (_function("vfio-pci"), _function(driver)))
    assert (not faults) is viable
    for fault in faults:
        assert fault.kind is FaultKind.NOT_VIABLE
        for word in ("group 7", _ADDRESS, str(driver), "vfio-pci"):
            assert word in fault.text


@pytest.mark.parametrize(
    ("function", "node", "kind"),
    [
        (_function("vfio-pci", was_bound=True), _node(), None),
        (_function(None), _node(), FaultKind.NO_DRIVER),
        (_function(None, was_bound=True), _node(exists=False, found=None), FaultKind.NO_DRIVER),
        (_function(None, was_bound=True), None, FaultKind.NO_DRIVER),
        (_function(None, was_bound=True), _node(), FaultKind.PENDING_REMOVAL),
        (_function("nvme"), _node(exists=False, found=None), FaultKind.NO_DRIVER),
        (_function("nvme", was_bound=True), _node(), FaultKind.NO_DRIVER),
    ],
)
def test_a_function_needs_a_vfio_driver_and_its_loss_while_the_node_stays_is_a_removal(
    function: FunctionFacts, node: VfioDeviceNode | None, kind: FaultKind | None
) -> None:
    faults = function_faults(function, node)
    assert [fault.kind for fault in faults] == ([] if kind is None else [kind])
    assert pending_removal(function, node) is (kind is FaultKind.PENDING_REMOVAL)
    assert all(_ADDRESS in fault.text for fault in faults)


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [
        (_node(), None, ()),
        (_node(exists=False, found=None), FaultKind.NO_NODE, ("/dev/vfio/7", "group 7")),
        (_node(found=None), FaultKind.WRONG_NODE, ("not a character device",)),
        (_node(expected=None), FaultKind.NO_NODE, ("belongs to nothing",)),
        (
            _node(expected=os.makedev(510, 3), found=os.makedev(246, 300)),
            FaultKind.WRONG_NODE,
            ("246:300", "510:3", "stale"),
        ),
        (_node(problem="Permission denied"), FaultKind.UNREADABLE, ("Permission denied",)),
    ],
)
def test_a_node_must_be_the_character_device_that_sysfs_names(
    node: VfioDeviceNode, kind: FaultKind | None, words: tuple[str, ...]
) -> None:
    faults = node_faults(node, "IOMMU group 7")
    assert [fault.kind for fault in faults] == ([] if kind is None else [kind])
    assert all(word in fault.text for fault in faults for word in words)


def test_a_chip_that_lacks_a_function_is_not_offered() -> None:
    assert chip_faults("0000:c0:02", 2, 2) == ()
    (fault,) = chip_faults("0000:c0:02", 1, 2)
    assert fault.kind is FaultKind.GONE
    assert "1 of its 2" in fault.text


def test_bridges_and_vfio_drivers_are_told_from_others() -> None:
    assert is_bridge(0x060400)
    assert not is_bridge(0x120000)
    assert is_vfio_driver("vfio-pci")
    assert not is_vfio_driver(None)
