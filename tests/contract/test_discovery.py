"""From a tree of sysfs files to devices with their faults."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.tpus import plain_tpus
from holdfast.discovery.scanner import take_inventory
from holdfast.discovery.source import Source
from holdfast.doctor.finding import Level, Node
from holdfast.doctor.vfio import function_findings
from holdfast.host.pci.sysfs import Snapshot
from holdfast.model.devicerules import DeviceRule
from holdfast.model.devices import Device, DeviceKind, FaultKind, Inventory, pci_key
from holdfast.model.dra.advertised import plain
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.reclaim.reset import needed_functions
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.model.vfio import PoolSpec
from holdfast.settings import Settings
from holdfast.vendors.tpu.chips import TpuMatches
from holdfast.vendors.vfio.adapter import Pools
from holdfast.vendors.vfio.groups import pool_matches
from simulated.hosttree import HostTree

_NIC = ResourceName("example.com/nic")
_NICS = Pools([PoolSpec(resource=_NIC, devices=("8086:1572",))])
_INTEL = 0x8086
_X710 = 0x1572


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[HostTree]:
    tree = HostTree(tmp_path)
    yield tree
    tree.close()


def _look(
    tree: HostTree, *sources: Source, known: frozenset[PciAddress] = frozenset()
) -> Inventory:
    snapshot = Snapshot(tree.root, known=known)
    return take_inventory(snapshot, sources or (plain_tpus(),))


def _only(inventory: Inventory) -> Device:
    (device,) = inventory.devices
    return device


def _ids(inventory: Inventory) -> list[str]:
    return [device.name.id for device in inventory.devices]


def _kinds(device: Device) -> list[FaultKind]:
    return [fault.kind for fault in device.faults]


def test_a_v5e_chip_is_a_device_behind_its_group(tree: HostTree) -> None:
    address = tree.tpu("0000:00:05.0", group=7, numa=1)
    chip = _only(_look(tree))
    assert str(chip.name) == "google.com/tpu/0000:00:05.0"
    assert (chip.kind, chip.model, chip.numa_node) == (DeviceKind.VFIO, "v5e", 1)
    assert chip.keys == {pci_key(address)}
    assert chip.functions == (address,)
    (node,) = chip.nodes
    assert node.path == "/dev/vfio/7"
    assert node.rdev == tree.node("/dev/vfio/7").stat().st_rdev
    assert chip.healthy


def test_chips_are_ordered_by_numa_node_then_pci_address_and_not_by_group(tree: HostTree) -> None:
    tree.tpu("0000:80:05.0", group=1, numa=1)
    tree.tpu("10000:00:04.0", group=2, numa=0)
    tree.tpu("0000:00:06.0", group=3, numa=0)
    tree.tpu("0000:00:05.0", group=9, numa=0)
    tree.tpu("0000:00:07.0", group=4, numa=None)
    assert _ids(_look(tree)) == [
        "0000:00:07.0",
        "0000:00:05.0",
        "0000:00:06.0",
        "10000:00:04.0",
        "0000:80:05.0",
    ]


def test_other_devices_are_not_chips_even_on_vfio(tree: HostTree) -> None:
    tree.tpu("0000:00:03.0", group=1, device=0x0042)
    tree.tpu("0000:00:04.0", group=2, device=0x001F)
    tree.function("0000:00:06.0", vendor=0x15B3, device=0x0063, group=3)
    inventory = _look(tree)
    assert inventory.devices == ()
    assert inventory.resources == ("google.com/tpu",)


def test_the_two_functions_of_a_tpu7x_chip_are_one_device_with_two_groups(tree: HostTree) -> None:
    for slot in ("0000:c0:02", "0000:c0:03"):
        for function in (0, 1):
            tree.tpu(f"{slot}.{function}", group=int(slot[-1]) * 10 + function, device=0x0076)
    inventory = _look(tree)
    assert _ids(inventory) == ["0000:c0:02", "0000:c0:03"]
    first = inventory.devices[0]
    assert [node.path for node in first.nodes] == ["/dev/vfio/20", "/dev/vfio/21"]
    assert first.keys == {pci_key(PciAddress("0000:c0:02.0")), pci_key(PciAddress("0000:c0:02.1"))}
    assert first.functions == ("0000:c0:02.0", "0000:c0:02.1")
    assert first.healthy


def test_a_tpu7x_chip_that_lost_one_function_keeps_its_id_and_says_so(tree: HostTree) -> None:
    for function in (0, 1):
        tree.tpu(f"0000:c0:02.{function}", group=20 + function, device=0x0076)
    tree.unplug("0000:c0:02.0")
    chip = _only(_look(tree))
    assert chip.name.id == "0000:c0:02"
    assert _kinds(chip) == [FaultKind.GONE]


def test_chips_that_share_a_group_are_one_device(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.tpu("0000:00:05.1", group=7)
    chip = _only(_look(tree))
    assert chip.name.id == "0000:00:05.0"
    assert len(chip.keys) == 2
    assert len(chip.nodes) == 1


def test_a_bridge_in_the_group_is_neither_silicon_to_lock_nor_a_sign_of_use(tree: HostTree) -> None:
    tree.bridge("0000:00:04.0", group=7)
    tree.bridge("0000:00:04.1", group=7, driver=None)
    chip = tree.tpu("0000:01:05.0", group=7)
    companion = tree.function("0000:01:06.0", vendor=_INTEL, device=1, group=7, driver=None)
    device = _only(_look(tree))
    assert device.keys == {pci_key(chip), pci_key(companion)}
    assert device.functions == (chip,)
    assert device.healthy


def test_a_sibling_on_its_own_driver_makes_the_group_unusable(tree: HostTree) -> None:
    tree.tpu("0000:01:05.0", group=7)
    tree.function("0000:01:06.0", vendor=_INTEL, device=1, group=7, driver="nvme")
    device = _only(_look(tree))
    assert _kinds(device) == [FaultKind.NOT_VIABLE]
    assert "0000:01:06.0" in device.faults[0].text
    assert "nvme" in device.faults[0].text


def _never_bound(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7, driver=None)


def _on_another_driver(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7, driver="uio_pci_generic")


def _no_node(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.node("/dev/vfio/7").unlink()


def _stale_node(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.node("/dev/vfio/7").unlink()
    tree.node("/dev/vfio/7").symlink_to("/dev/null")


def _file_for_a_node(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.node("/dev/vfio/7").unlink()
    tree.node("/dev/vfio/7").write_text("")


def _link_loop_for_a_node(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.node("/dev/vfio/7").unlink()
    tree.node("/dev/vfio/7").symlink_to("7")


def _no_group(tree: HostTree) -> None:
    tree.function("0000:00:05.0", group=None)


def _odd_class(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.write("0000:00:05.0", "class", "\x00 what?")


def _accel_without_driver(tree: HostTree) -> None:
    tree.function("0000:00:05.0", device=0x005E, driver=None)


def _accel_without_node(tree: HostTree) -> None:
    tree.accel("0000:00:05.0", 0)
    tree.node("/dev/accel0").unlink()


def _accel_leaving(tree: HostTree) -> None:
    tree.accel("0000:00:05.0", 0)
    tree.unbind("0000:00:05.0")


def _leaving_before_we_came(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.unbind("0000:00:05.0")


@pytest.mark.parametrize(
    ("spoil", "kind", "word"),
    [
        (_never_bound, FaultKind.NO_DRIVER, "vfio-pci"),
        (_on_another_driver, FaultKind.NO_DRIVER, "uio_pci_generic"),
        (_no_node, FaultKind.NO_NODE, "/dev/vfio/7"),
        (_stale_node, FaultKind.WRONG_NODE, "1:3"),
        (_file_for_a_node, FaultKind.WRONG_NODE, "character device"),
        (_link_loop_for_a_node, FaultKind.UNREADABLE, "/dev/vfio/7"),
        (_no_group, FaultKind.NO_NODE, "IOMMU"),
        (_odd_class, FaultKind.UNREADABLE, "class"),
        (_accel_without_driver, FaultKind.NO_DRIVER, "driver"),
        (_accel_without_node, FaultKind.NO_NODE, "/dev/accel0"),
        (_accel_leaving, FaultKind.PENDING_REMOVAL, "/dev/accel0"),
        (_leaving_before_we_came, FaultKind.PENDING_REMOVAL, "/dev/vfio/7"),
    ],
)
def test_a_chip_that_cannot_be_used_is_listed_with_its_reason(
    tree: HostTree, spoil: Callable[[HostTree], None], kind: FaultKind, word: str
) -> None:
    spoil(tree)
    chip = _only(_look(tree))
    assert chip.name.id == "0000:00:05.0"
    assert _kinds(chip) == [kind]
    assert word in chip.faults[0].text
    assert pci_key(PciAddress("0000:00:05.0")) in chip.keys


def test_a_chip_that_is_being_removed_is_still_watched_for_use(tree: HostTree) -> None:
    address = tree.tpu("0000:00:05.0", group=7)
    tree.unbind(address)
    chip = _only(_look(tree, known=frozenset({address})))
    assert chip.functions == (address,)
    assert [node.path for node in chip.nodes] == ["/dev/vfio/7"]


def test_one_of_two_functions_that_leaves_a_shared_group_is_noticed_by_who_knew_it(
    tree: HostTree,
) -> None:
    first, second = tree.tpu("0000:00:05.0", group=7), tree.tpu("0000:00:05.1", group=7)
    tree.write(second, "enable", "1")
    tree.unbind(second)
    assert _kinds(_only(_look(tree, known=frozenset({first, second})))) == [
        FaultKind.PENDING_REMOVAL
    ]
    assert _kinds(_only(_look(tree))) == [FaultKind.NO_DRIVER]


def test_a_chip_behind_an_accel_node_is_a_device(tree: HostTree) -> None:
    tree.accel("0000:00:05.0", 3, numa=1)
    tree.accel("0000:00:04.0", 1, device=0x0027, subsystem=0x004E, numa=1)
    v2, v4 = _look(tree).devices
    assert (v2.model, v4.model) == ("v2", "v4")
    assert v4.kind is DeviceKind.ACCEL
    assert v4.functions == ()
    assert v4.keys == {pci_key(PciAddress("0000:00:05.0"))}
    assert [node.path for node in v4.nodes] == ["/dev/accel3"]
    assert v2.healthy
    assert v4.healthy


def test_how_a_chip_is_reached_is_what_the_kernel_shows(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7, device=0x005E)
    assert _only(_look(tree)).kind is DeviceKind.VFIO


def test_a_pool_has_one_device_for_each_group(tree: HostTree) -> None:
    tree.function("0000:3b:00.1", vendor=_INTEL, device=_X710, group=3)
    tree.function("0000:3b:00.0", vendor=_INTEL, device=_X710, group=3)
    tree.function("0000:3c:00.0", vendor=_INTEL, device=_X710, group=4, driver="i40e")
    tree.function("0000:3d:00.0", vendor=_INTEL, device=0x1573, group=5)
    inventory = _look(tree, _NICS)
    assert inventory.resources == (_NIC,)
    pair, other = inventory.of(_NIC)
    assert (pair.name.id, pair.model, len(pair.keys), pair.healthy) == (
        "0000:3b:00.0",
        "8086:1572",
        2,
        True,
    )
    assert (other.name.id, _kinds(other)) == ("0000:3c:00.0", [FaultKind.NO_DRIVER])


def test_a_pool_never_takes_a_bridge(tree: HostTree) -> None:
    tree.bridge("0000:00:04.0", group=7)
    assert _look(tree, Pools([PoolSpec(resource=_NIC, addresses=("*",))])).devices == ()


def test_silicon_under_two_names_has_the_same_keys(tree: HostTree) -> None:
    tree.tpu("0000:00:05.0", group=7)
    raw = ResourceName("example.com/raw")
    inventory = _look(tree, plain_tpus(), Pools([PoolSpec(resource=raw, devices=("1ae0:*",))]))
    assert [device.name.resource for device in inventory.devices] == ["google.com/tpu", raw]
    assert inventory.devices[0].keys == inventory.devices[1].keys


def test_a_pool_of_the_chips_own_name_adds_no_part_of_a_chip(tree: HostTree) -> None:
    for function in (0, 1):
        tree.tpu(f"0000:c0:02.{function}", group=20 + function, device=0x0076)
    tree.tpu("0000:c0:03.0", group=30, device=0x007C)
    sources = replace(plain_tpus(), pools=(PoolSpec(resource=TPU_RESOURCE, devices=("1ae0:*",)),))
    assert _ids(_look(tree, sources)) == ["0000:c0:02", "0000:c0:03.0"]


def test_two_pools_of_one_name_are_one_pool(tree: HostTree) -> None:
    tree.function("0000:3b:00.0", vendor=_INTEL, device=_X710, group=3)
    pools = (PoolSpec(resource=_NIC, devices=("8086:*",)), PoolSpec(resource=_NIC, classes=("12",)))
    assert len(_look(tree, Pools(pools)).devices) == 1


def test_a_kernel_without_numa_makes_no_chip_unusable(tree: HostTree) -> None:
    (tree.path(tree.tpu("0000:00:05.0", group=7)) / "numa_node").unlink()
    chip = _only(_look(tree))
    assert chip.healthy
    assert chip.numa_node is None


@pytest.mark.parametrize(
    "name", ["vendor", "device", "class", "numa_node", "enable", "subsystem_device"]
)
@pytest.mark.parametrize("text", ["", "garbage", "0x", "\udcff", "9" * 5000])
def test_no_content_of_a_file_ends_discovery_or_hides_another_chip(
    tree: HostTree, name: str, text: str
) -> None:
    tree.tpu("0000:00:05.0", group=7)
    tree.tpu("0000:00:06.0", group=8)
    (tree.path("0000:00:05.0") / name).write_bytes(text.encode(errors="surrogateescape"))
    chips = {str(device.name.id): device for device in _look(tree).devices}
    assert chips["0000:00:06.0"].healthy


_GROUPS = {7: ("0000:03:00.0", "0000:03:00.1", "0000:03:00.2"), 8: ("0000:04:00.0",)}
_GROUP_OF = {address: group for group, members in _GROUPS.items() for address in members}
_BESIDE = "0000:03:00.2"
"""The pool does not take it, and it shares the group of two that the pool takes."""
_RULES = (
    *(DeviceRule(place=each, pci=each) for each in _GROUP_OF),
    *(DeviceRule(place=f"group {each}", index=str(each)) for each in _GROUPS),
)
_CHANGES = ("vfio-pci", "nvme", "unbound", "held", "let go")


def _change(tree: HostTree, address: str, what: str) -> None:
    """Bind or unbind a function as the kernel does; one that is *held* leaves when it is let go."""
    group, leaves = _GROUP_OF[address], _is_leaving(tree, address)
    if leaves and what != "let go":
        return  # its removal waits for who holds it
    held = what == "held" and _driver(tree, address) == "vfio-pci"
    tree.unbind(address)
    if what in {"vfio-pci", "nvme"}:
        tree.bind(address, what)
    tree.write(address, "enable", str(int(held or what == "nvme")))
    if any(_driver(tree, each) == "vfio-pci" or _is_leaving(tree, each) for each in _GROUPS[group]):
        tree.group_node(group)
    elif tree.node(f"/dev/vfio/{group}").is_symlink():
        tree.drop_group_node(group)


def _driver(tree: HostTree, address: str) -> str:
    link = tree.path(address) / "driver"
    return link.resolve().name if link.exists() else ""


def _is_leaving(tree: HostTree, address: str) -> bool:
    enabled = (tree.path(address) / "enable").read_text() != "0\n"
    return enabled and not _driver(tree, address)


def _failures(tree: HostTree) -> set[str]:
    """Return what the doctor says is wrong, by functions and groups."""
    snapshot = Snapshot(tree.root)
    spec = PoolSpec(resource=_NIC, devices=("8086:1572",))
    found = TpuMatches(vfio=tuple(pool_matches(snapshot, [spec])))
    node = Node(settings=Settings(), root=tree.folder)
    return {
        address
        for each in function_findings(node, snapshot, found)
        if each.level is Level.FAIL
        for address, group in _GROUP_OF.items()
        if address in each.reason or f"group {group} " in each.reason
    }


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([*_GROUP_OF]), st.sampled_from(_CHANGES)), max_size=8))
def test_all_that_tell_of_a_device_say_the_same_whatever_drivers_it_had(
    changes: Sequence[tuple[str, str]],
) -> None:
    """A daemon that saw each change, one that starts now, the doctor, rules, and the scheduler."""
    with TemporaryDirectory() as folder:
        tree = HostTree(Path(folder))
        for address, group in _GROUP_OF.items():
            model = 1 if address == _BESIDE else _X710
            tree.function(address, vendor=_INTEL, device=model, class_code=0x020000, group=group)
        before = _look(tree, _NICS).devices
        known = frozenset(map(PciAddress, _GROUP_OF))
        for address, what in changes:
            _change(tree, address, what)
            snapshot = Snapshot(tree.root, known=known)
            known = snapshot.bound()
            told = take_inventory(snapshot, [_NICS]).devices
            for was, seen, new in zip(before, told, _look(tree, _NICS).devices, strict=True):
                assert [(r.place, r.matches(seen)) for r in _RULES] == [
                    (r.place, r.matches(was)) for r in _RULES
                ]
                assert plain(seen) == plain(was)
                members = _GROUPS[_GROUP_OF[seen.name.id]]
                assert {*seen.addresses} == {*members} - {_BESIDE}
                needed = {*needed_functions(seen)}
                assert {*seen.addresses} <= needed <= {*members}
                if not any(_is_leaving(tree, each) for each in members):
                    assert seen == new, "as after a restart"
                assert seen.healthy is new.healthy is _failures(tree).isdisjoint(members)
        tree.close()
