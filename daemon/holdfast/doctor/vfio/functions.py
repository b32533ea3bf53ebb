"""Checks each function that is to be granted: its driver, its group, its node.

Discovery's finders say which functions those are, and its rules what is wrong with them.
"""

import stat
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node
from holdfast.host.files.kernelfile import text_or_empty
from holdfast.host.pci.snapshot import Snapshot
from holdfast.host.pci.sysfs import PciFunction
from holdfast.model.devices import Fault
from holdfast.model.tpu.generations import GENERATIONS, GOOGLE_VENDOR, NOT_CHIPS, generation_of
from holdfast.model.vfio.viability import VfioDeviceNode, function_faults, group_faults, node_faults
from holdfast.settings import Settings
from holdfast.vendors.tpu.chips import TpuMatches, accel_faults, tpu_matches
from holdfast.vendors.vfio.groups import Match, incomplete_chips, no_group, unreadable
from holdfast.vendors.vfio.pools import pool_matches

_UNKNOWN_DEVICE = Check("vfio", "unknown-device")
_DRIVER = Check("vfio", "driver")
_GROUP = Check("vfio", "group")
_NODE = Check("vfio", "node")
_ACCEL = Check("vfio", "accel")
_READABLE = Check("vfio", "readable")
_CHIP = Check("vfio", "chip")
_ACCELERATOR = 0x12
"""The PCI class of processing accelerators."""
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_RESCAN = "rescan the PCI bus, or restart the machine"


def wanted(snapshot: Snapshot, settings: Settings) -> TpuMatches:
    """Return the functions that *settings* want granted, by how they are reached.

    They are parts of TPU chips, or belong to a pool.
    """
    chips = tpu_matches(snapshot) if settings.tpu.enabled else TpuMatches()
    known = {each.function.address for each in (*chips.vfio, *chips.accel)}
    pools = pool_matches(snapshot, [pool.spec() for pool in settings.pools])
    added = (each for each in pools if each.function.address not in known)
    return TpuMatches(vfio=(*chips.vfio, *added), accel=chips.accel)


def unknown_findings(functions: Iterable[PciFunction]) -> Iterator[Finding]:
    """Yield a finding for each of Google's accelerators that no known generation has."""
    for each in functions:
        if (
            each.vendor == GOOGLE_VENDOR
            and each.class_code >> 16 == _ACCELERATOR
            and each.device not in NOT_CHIPS
            and generation_of(each.vendor, each.device, each.subsystem_device) is None
        ):
            yield _UNKNOWN_DEVICE.warn(
                f"{each.address} is a Google accelerator with the unknown id "
                f"{each.device:04x}; known are {', '.join(GENERATIONS)}. It is not granted",
                remedy="install a newer holdfast, or name its id in a pool (pools[].devices)",
            )


def function_findings(node: Node, snapshot: Snapshot, found: TpuMatches) -> Iterator[Finding]:
    """Yield what keeps each of the *found* functions from being granted, or one OK for all."""
    both = (*found.vfio, *found.accel)
    yield from _failed(_READABLE, unreadable(each.function for each in both), _RESCAN)
    yield from _failed(_CHIP, incomplete_chips(both), _RESCAN)
    if found.vfio:
        functions = [each.function for each in found.vfio]
        yield from list(_drivers(node, snapshot, functions)) or [
            _DRIVER.ok(f"all {len(functions)} functions are on VFIO drivers")
        ]
        groups = sorted({each.iommu_group for each in functions if each.iommu_group is not None})
        yield from list(_groups(snapshot, functions, groups)) or [
            _GROUP.ok(f"{len(groups)} IOMMU groups can be opened")
        ]
        # A group without a function on VFIO has no node. The driver is then the fault to report.
        with_node = [
            group for group in groups if any(map(snapshot.grantable, snapshot.members(group)))
        ]
        yield from _nodes(node, [snapshot.group_node(group) for group in with_node])
    for each in found.accel:
        yield from _accel(node, snapshot, each)


def _failed(check: Check, faults: Iterable[Fault], remedy: str = "") -> Iterator[Finding]:
    """Yield a finding for each fault; *remedy* is for faults whose text names none."""
    for fault in faults:
        reason, _, told = fault.text.partition("; ")
        yield check.fail(reason, remedy=told or remedy)


def _drivers(node: Node, snapshot: Snapshot, functions: Sequence[PciFunction]) -> Iterator[Finding]:
    """Yield why functions are not on a VFIO driver."""
    for each in functions:
        facts = snapshot.facts(each)
        group = None if each.iommu_group is None else snapshot.group_node(each.iommu_group)
        for fault in function_faults(facts, group):
            reason = fault.text.partition("; ")[0]
            if facts.was_bound:
                remedy = "end the process that holds the device: `holdfast holders` names it"
                yield _DRIVER.fail(reason, remedy=remedy)
                continue
            folder = node.host.sys / "bus/pci/devices" / each.address
            override = text_or_empty(folder / "driver_override").replace("(null)", "")
            yield _DRIVER.fail(
                f"{reason}; driver_override is {override or 'not set'}", remedy=_bind(each)
            )


def _bind(function: PciFunction) -> str:
    folder = f"/sys/bus/pci/devices/{function.address}"
    unbind = f"echo {function.address} > {folder}/driver/unbind; " if function.driver else ""
    return (
        f"{unbind}echo vfio-pci > {folder}/driver_override; "
        f"echo {function.address} > /sys/bus/pci/drivers_probe"
    )


def _groups(
    snapshot: Snapshot, functions: Sequence[PciFunction], groups: Sequence[int]
) -> Iterator[Finding]:
    missing = (no_group(each) for each in functions if each.iommu_group is None)
    yield from _failed(_GROUP, missing)
    for group in groups:
        others = (each for each in snapshot.members(group) if each not in functions)
        for found in _failed(_GROUP, group_faults(group, map(snapshot.facts, others))):
            slot = "put the card into a slot with its own group (ACS)"
            yield replace(found, remedy=f"{found.remedy}; or {slot}")


def _nodes(node: Node, nodes: Sequence[VfioDeviceNode]) -> Iterator[Finding]:
    wrong = False
    for each in nodes:
        if _left_out_of_copy(node, each):
            yield _NODE.warn(
                f"a copy has no device nodes: {each.path} and others are not checked",
                remedy="run the doctor on the node itself",
            )
            return
        faults = node_faults(each, f"IOMMU group {each.path.rpartition('/')[2]}")
        for finding in (*_failed(_NODE, faults, "mount the host's /dev"), *_mode(node, each)):
            wrong = True
            yield finding
    if nodes and not wrong:
        reason = f"the nodes of {len(nodes)} groups are there, with the kernel's numbers"
        yield _NODE.ok(reason)


def _mode(node: Node, facts: VfioDeviceNode) -> Iterator[Finding]:
    if facts.found is None:
        return
    mode = stat.S_IMODE(node.host.node(facts.path).stat().st_mode)
    if mode & _OTHERS:
        yield _NODE.warn(
            f"{facts.path} has mode {mode:o}: any process of the host can open the device "
            "without holdfast, which then finds it busy",
            remedy=f"chmod 600 {facts.path}, and remove the udev rule that opens it",
        )


def _accel(node: Node, snapshot: Snapshot, match: Match) -> Iterator[Finding]:
    """Yield what was found of a chip that is reached by a node of the TPU's own driver."""
    function = match.function
    accel = snapshot.accel.get(function.address)
    path = "" if accel is None else accel.path
    if accel is None or not _left_out_of_copy(node, snapshot.node(path, accel.rdev)):
        faults = accel_faults(snapshot, function)
        if wrong := list(_failed(_ACCEL, faults, "look at its driver")):
            yield from wrong
            return
    yield _ACCEL.ok(f"{function.address} is {path}")


def _left_out_of_copy(node: Node, facts: VfioDeviceNode) -> bool:
    """Tell whether a node is missing only because copies of a node have no device nodes."""
    return not node.live and facts.found is None and not facts.exists
