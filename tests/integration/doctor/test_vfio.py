"""Each way in which VFIO can be broken on a node is told with its reason and what to do."""

import re
import stat
from pathlib import Path

import pytest

from fakes.nodetree import CHIP, SECOND, NodeTree

_NIC = "0000:00:07.0"


def test_a_node_in_order_has_nothing_to_mend(node: NodeTree) -> None:
    told = node.told()

    assert told.bad("vfio") == {}
    devices = told.of("vfio", "devices")["reason"]
    assert devices == f"to be granted: {CHIP} (v5e), {SECOND} (v5e)"
    assert told.of("vfio", "driver")["reason"] == "all 2 functions are on VFIO drivers"
    assert told.code == 0


def test_without_any_device_to_grant_nothing_of_vfio_is_asked_for(node: NodeTree) -> None:
    told = node.told("--set", "tpu.enabled=false", "--set", "gpu.enabled=true")

    assert {each["check"] for each in told.findings if each["area"] == "vfio"} == {"devices"}
    assert (
        "no TPU and no function of a pool among 2 PCI functions"
        in (told.of("vfio", "devices")["reason"])
    )


def test_a_chip_on_another_driver_fails_with_the_commands_that_bind_it(node: NodeTree) -> None:
    node.host.bind(CHIP, "gasket")
    node.host.write(CHIP, "driver_override", "(null)")

    found = node.told().of("vfio", "driver")

    assert found["level"] == "FAIL"
    assert found["reason"] == (
        f"{CHIP} cannot be used: it is bound to gasket; driver_override is not set"
    )
    assert f"echo {CHIP} > /sys/bus/pci/devices/{CHIP}/driver/unbind" in found["remedy"]
    assert "echo vfio-pci > " in found["remedy"]


def test_a_chip_that_a_rescan_left_without_a_driver_is_told_with_its_override(
    node: NodeTree,
) -> None:
    node.host.unbind(CHIP)
    node.host.drop_group_node(1)
    node.host.write(CHIP, "driver_override", "gasket")

    found = node.told().of("vfio", "driver")

    assert found["reason"] == (
        f"{CHIP} cannot be used: it has no driver; driver_override is gasket"
    )
    assert "unbind" not in found["remedy"]


def test_a_chip_that_is_being_removed_while_it_is_held_is_no_missing_driver(
    node: NodeTree,
) -> None:
    node.host.unbind(CHIP)  # its node and its number stay until its holder lets go

    found = node.told().of("vfio", "driver")

    assert "is being removed or unbound" in found["reason"]
    assert "holdfast holders" in found["remedy"]


def test_a_neighbour_on_another_driver_makes_the_group_unusable(node: NodeTree) -> None:
    node.host.function(_NIC, vendor=0x8086, device=0x10D3, driver="e1000e", group=1, node=False)
    node.host.bridge("0000:00:01.0", group=1)

    found = node.told().of("vfio", "group")

    assert found["level"] == "FAIL"
    assert f"IOMMU group 1 cannot be used: {_NIC} in it is bound to e1000e" in found["reason"]
    assert "bind it to vfio-pci or unbind it" in found["remedy"]


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        ("vendor_id\t: AuthenticAMD\n", ["amd_iommu=on"]),
        ("vendor_id\t: GenuineIntel\n", ["intel_iommu=on"]),
        ("CPU implementer\t: 0x41\n", []),
    ],
)
def test_without_an_iommu_the_kernels_command_line_says_why(
    cpu: str, words: list[str], node: NodeTree
) -> None:
    for chip, group in ((CHIP, 1), (SECOND, 2)):
        node.host.unbind(chip)
        node.host.drop_group_node(group)
        (node.host.path(chip) / "iommu_group").unlink()
        (node.folder / f"sys/kernel/iommu_groups/{group}/devices/{chip}").unlink()
        (node.folder / f"sys/kernel/iommu_groups/{group}/devices").rmdir()
        (node.folder / f"sys/kernel/iommu_groups/{group}").rmdir()
    node.write("proc/cmdline", "quiet iommu=off\n")
    node.write("proc/cpuinfo", cpu)

    told = node.told()

    found = told.of("vfio", "iommu")
    assert found["level"] == "FAIL"
    assert found["reason"].endswith("has no group; the kernel was started with iommu=off")
    assert re.findall("[a-z]+_iommu=on", found["remedy"]) == words
    assert told.bad("vfio") == {"iommu": "FAIL", "driver": "FAIL", "group": "FAIL"}
    assert told.code == 1


def test_a_group_without_an_iommu_is_refused_and_the_mere_mode_is_warned_of(
    node: NodeTree,
) -> None:
    mode = node.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
    warned = node.told().of("vfio", "no-iommu")
    assert warned["level"] == "WARN"
    assert f"echo N > {mode}" in warned["remedy"]

    node.write("sys/kernel/iommu_groups/1/name", "vfio-noiommu\n")
    refused = node.told().of("vfio", "no-iommu")
    assert refused["level"] == "FAIL"
    assert "could write anywhere in the node's memory" in refused["reason"]


def test_a_driver_that_is_not_loaded_is_told_with_how_to_load_it(node: NodeTree) -> None:
    for chip, group in ((CHIP, 1), (SECOND, 2)):
        node.host.unbind(chip)
        node.host.drop_group_node(group)
    node.remove("sys/bus/pci/drivers/vfio-pci")

    told = node.told()

    assert told.of("vfio", "module")["level"] == "FAIL"
    assert "modprobe vfio-pci" in told.of("vfio", "module")["remedy"]


def test_a_vendors_variant_of_the_driver_is_as_good(node: NodeTree) -> None:
    for chip in (CHIP, SECOND):
        node.host.bind(chip, "google-vfio-pci")
    node.remove("sys/bus/pci/drivers/vfio-pci")

    assert node.told().bad("vfio") == {}


def test_a_module_that_the_kernel_may_yet_load_is_only_warned_of(node: NodeTree) -> None:
    node.remove("sys/module/vfio_iommu_type1")

    told = node.told()

    assert told.bad("vfio") == {"module": "WARN"}
    assert told.code == 0


def test_a_node_with_another_number_than_the_kernels_is_told_with_both(node: NodeTree) -> None:
    path = node.host.node("/dev/vfio/2")
    path.unlink()
    path.symlink_to("/dev/null")

    found = node.told().of("vfio", "node")

    assert found["level"] == "FAIL"
    assert (
        "/dev/vfio/2 has device number 1:3, but the kernel's for IOMMU group 2 is "
        in (found["reason"])
    )


def test_a_node_that_anybody_may_open_is_warned_of(node: NodeTree) -> None:
    terminal = node.host.node("/dev/vfio/1").resolve()
    terminal.chmod(0o666)

    found = node.told().of("vfio", "node")

    assert (found["level"], found["remedy"].partition(",")[0]) == ("WARN", "chmod 600 /dev/vfio/1")
    assert "mode 666" in found["reason"]


def test_a_container_node_that_is_no_device_or_not_open_to_all_is_told(node: NodeTree) -> None:
    path = node.host.node("/dev/vfio/vfio")
    path.unlink()
    assert node.told().of("vfio", "container")["level"] == "FAIL"

    path.write_text("")
    assert "not a character device" in node.told().of("vfio", "container")["reason"]

    path.unlink()
    terminal = node.host.node("/dev/vfio/1").resolve()
    assert not stat.S_IMODE(terminal.stat().st_mode) & stat.S_IROTH
    path.symlink_to(terminal)
    found = node.told().of("vfio", "container")
    assert (found["level"], found["remedy"].partition(":")[0]) == ("WARN", f"chmod 666 {path}")


def test_a_copy_without_device_nodes_says_what_it_cannot_tell(node: NodeTree) -> None:
    for each in (node.folder / "dev/vfio").iterdir():
        each.unlink()
    node.remove("dev/vfio")

    told = node.told()

    assert told.bad("vfio") == {"container": "WARN", "node": "WARN"}
    assert "run the doctor on the node itself" in told.of("vfio", "node")["remedy"]


def test_a_chip_with_a_function_too_few_is_told(node: NodeTree) -> None:
    node.host.tpu("0000:00:09.0", group=9, device=0x0076)

    found = node.told().of("vfio", "chip")

    assert found["level"] == "FAIL"
    assert found["reason"] == "chip 0000:00:09 shows 1 of its 2 functions"


def test_an_accelerator_of_googles_that_nobody_knows_is_told_and_others_of_its_are_not(
    node: NodeTree,
) -> None:
    node.host.function("0000:00:0a.0", device=0x0999, driver=None)
    node.host.function("0000:00:0b.0", device=0x0042, class_code=0x020000, driver="gve")

    told = node.told()

    found = told.of("vfio", "unknown-device")
    assert found["level"] == "WARN"
    assert "0000:00:0a.0" in found["reason"]
    assert told.bad("vfio") == {"unknown-device": "WARN"}


def test_odd_content_of_the_kernels_files_is_told_by_its_function(node: NodeTree) -> None:
    node.host.write(CHIP, "numa_node", "many")

    found = node.told().of("vfio", "readable")

    assert found["level"] == "FAIL"
    assert CHIP in found["reason"]


def test_chips_of_the_accel_driver_need_their_own_node_and_nothing_of_vfio(
    tmp_path: Path, node: NodeTree
) -> None:
    for chip in (CHIP, SECOND):
        node.host.unplug(chip)
    node.host.accel("0000:00:04.0", 0)

    told = node.told()
    assert told.bad("vfio") == {}
    assert told.of("vfio", "accel")["reason"] == "0000:00:04.0 is /dev/accel0"

    (node.folder / "sys/class/accel/accel0").unlink()
    found = node.told().of("vfio", "accel")
    assert (found["level"], found["remedy"]) == ("FAIL", "load the TPU's driver")


def test_functions_of_a_pool_are_checked_as_chips_are(node: NodeTree, tmp_path: Path) -> None:
    node.host.function(_NIC, vendor=0x10DE, device=0x20B5, class_code=0x030200, driver="nouveau")
    config = tmp_path / "config.yaml"
    config.write_text("pools: [{resourceName: example.com/a100, devices: ['10de:20b5']}]\n")

    told = node.told("--config", str(config))

    assert f"{_NIC} (10de:20b5)" in told.of("vfio", "devices")["reason"]
    assert told.bad("vfio") == {"driver": "FAIL", "group": "FAIL"}
