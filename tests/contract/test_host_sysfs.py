"""sysfs on trees of plain files, odd ones too."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import HostError
from holdfast.host.pci.sysfs import PciFunction, Sysfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress
from simulated.hosttree import HostTree

ONE = PciAddress("0000:00:05.0")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[HostTree]:
    tree = HostTree(tmp_path)
    yield tree
    tree.close()


def only(tree: HostTree) -> PciFunction:
    (found,) = Sysfs(tree.root).pci_functions()
    return found


def test_a_function_is_read_in_full(tree: HostTree) -> None:
    tree.function(ONE, vendor=0x1AE0, device=0x63, subsystem=0x4F, group=7, numa=1)
    tree.write(ONE, "enable", "2")
    assert only(tree) == PciFunction(
        address=ONE,
        vendor=0x1AE0,
        device=0x63,
        subsystem_device=0x4F,
        class_code=0x120000,
        driver="vfio-pci",
        iommu_group=7,
        numa_node=1,
        enable=2,
    )


def test_what_a_function_may_lack_is_no_problem(tree: HostTree) -> None:
    tree.function(ONE, driver=None, group=None)
    for name in ("numa_node", "enable", "subsystem_device"):
        (tree.path(ONE) / name).unlink()
    found = only(tree)
    assert (found.driver, found.iommu_group, found.numa_node, found.enable) == (
        None,
        None,
        None,
        None,
    )
    assert found.problems == ()


def test_a_node_of_minus_one_is_no_node(tree: HostTree) -> None:
    tree.function(ONE, numa=None)
    assert only(tree).numa_node is None


@pytest.mark.parametrize("name", ["vendor", "device", "class"])
def test_a_function_without_its_ids_says_so(tree: HostTree, name: str) -> None:
    tree.function(ONE)
    (tree.path(ONE) / name).unlink()
    assert only(tree).problems == (f"{name} is missing",)


@pytest.mark.parametrize(
    "content",
    [b"", b"0x\n", b"banana", b"-5", b"1ae0", b"\xff\xfe", b"0x1ae0\n0x1ae0\n", b"9" * 100_000],
)
@pytest.mark.parametrize("name", ["vendor", "class", "enable", "numa_node", "subsystem_device"])
def test_odd_content_is_a_problem_text_or_a_number_and_never_raises(
    tree: HostTree, name: str, content: bytes
) -> None:
    tree.function(ONE, group=7)
    (tree.path(ONE) / name).write_bytes(content)
    found = only(tree)
    if name in {"enable", "numa_node"} and content == b"-5":
        assert found.numa_node is None or name == "enable"
        return
    (problem,) = found.problems
    assert problem.startswith(f"{name} is ")
    assert len(problem) < 120


def test_a_folder_or_a_loop_where_a_file_should_be_is_a_problem_text(tree: HostTree) -> None:
    tree.function(ONE, group=7)
    home = tree.path(ONE)
    (home / "numa_node").unlink()
    (home / "numa_node").mkdir()
    (home / "enable").unlink()
    (home / "enable").symlink_to("enable")
    assert len(only(tree).problems) == 2
    assert Sysfs(tree.root).enable(ONE) is None


def test_a_function_whose_ids_cannot_be_read_does_not_pass_for_another(tree: HostTree) -> None:
    tree.function(ONE)
    (tree.path(ONE) / "vendor").unlink()
    (tree.path(ONE) / "vendor").mkdir()
    with pytest.raises(HostError, match="vendor: Is a directory"):
        only(tree)


def test_a_group_that_is_no_number_is_a_problem_text(tree: HostTree) -> None:
    tree.function(ONE)
    (tree.path(ONE) / "iommu_group").symlink_to("../elsewhere/banana")
    found = only(tree)
    assert found.iommu_group is None
    assert found.problems == ("iommu_group leads to 'banana', not to a number",)


def test_names_that_are_no_addresses_are_passed_over(tree: HostTree) -> None:
    tree.function(ONE)
    (tree.root.sys / "bus/pci/devices/banana").mkdir()
    assert only(tree).address == ONE
    assert Sysfs(tree.root).function(PciAddress("../../..")) is None


def test_a_host_without_any_of_it_has_nothing(tmp_path: Path) -> None:
    sysfs = Sysfs(HostRoot.under(tmp_path))
    assert sysfs.pci_functions() == ()
    assert sysfs.function(ONE) is None
    assert sysfs.enable(ONE) is None
    assert sysfs.driver(ONE) is None
    assert sysfs.group_members(1) == ()
    assert sysfs.group_rdev(1) is None
    assert sysfs.vfio_devices(ONE) == ()
    assert sysfs.accel_nodes() == {}


def test_enable_and_driver_are_read_anew_each_time(tree: HostTree) -> None:
    tree.tpu(ONE, group=7)
    sysfs = Sysfs(tree.root)
    assert (sysfs.enable(ONE), sysfs.driver(ONE)) == (0, "vfio-pci")
    tree.write(ONE, "enable", "1")
    tree.unbind(ONE)
    assert (sysfs.enable(ONE), sysfs.driver(ONE)) == (1, None)
    tree.write(ONE, "enable", "banana")
    assert sysfs.enable(ONE) is None


def test_a_group_has_members_and_a_number_while_it_is_on_vfio(tree: HostTree) -> None:
    tree.tpu(ONE, group=7)
    bridge = tree.bridge("0000:00:01.0", group=7)
    sysfs = Sysfs(tree.root)
    assert sysfs.group_members(7) == (bridge, ONE)
    assert sysfs.group_rdev(7) == tree.node("/dev/vfio/7").stat().st_rdev
    tree.drop_group_node(7)
    assert sysfs.group_rdev(7) is None


@pytest.mark.parametrize("content", ["", "246", "246:", "a:b", "-1:2", "1:2:3", "1 : 2"])
def test_an_odd_device_number_is_none(tree: HostTree, content: str) -> None:
    tree.tpu(ONE, group=7)
    (tree.root.sys / "class/vfio/7/dev").write_text(content)
    assert Sysfs(tree.root).group_rdev(7) is None


def test_vfio_devices_are_named_only_with_a_number(tree: HostTree) -> None:
    tree.tpu(ONE, group=7)
    for name in ("vfio0", "vfio1"):
        (tree.path(ONE) / "vfio-dev" / name).mkdir(parents=True)
    (tree.path(ONE) / "vfio-dev/vfio1/dev").write_text("511:1\n")
    assert Sysfs(tree.root).vfio_devices(ONE) == (os.makedev(511, 1),)


def test_accel_nodes_know_their_function(tree: HostTree) -> None:
    tree.accel(ONE, 3)
    (tree.root.sys / "class/accel/accel9").mkdir()
    rdev = tree.node("/dev/accel3").stat().st_rdev
    assert Sysfs(tree.root).accel_nodes() == {ONE: DeviceNode(path="/dev/accel3", rdev=rdev)}


def test_this_machine_can_be_read() -> None:
    sysfs = Sysfs(HostRoot.under())
    for function in sysfs.pci_functions():
        assert sysfs.function(function.address) is not None
