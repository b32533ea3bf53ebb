"""What the doctor says of VFIO: modules, groups, drivers, nodes, and limits of locked memory."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.doctor.finding import Check, Finding, Node, or_well
from holdfast.host.files.kernelfile import is_folder, list_names, names_or_empty, text_or_empty
from holdfast.host.pci.sysfs import PciFunction, Snapshot
from holdfast.host.root import HostRoot
from holdfast.model.devices import Fault
from holdfast.model.tpu.generations import GENERATIONS, GOOGLE_VENDOR, NOT_CHIPS, generation_of
from holdfast.model.vfio import (
    VfioDeviceNode,
    function_faults,
    group_faults,
    is_vfio_driver,
    node_faults,
)
from holdfast.settings import Settings
from holdfast.vendors.tpu.chips import TpuMatches, accel_faults, tpu_matches
from holdfast.vendors.vfio.groups import (
    PoolFunction,
    incomplete_chips,
    no_group,
    pool_matches,
    unreadable,
)

_ACCELERATOR = 0x12
"""The PCI class of processing accelerators."""
_RESCAN = "rescan the PCI bus, or restart the machine"
_OFF = frozenset({"intel_iommu=off", "amd_iommu=off", "iommu=off"})
_ARM = "CPU implementer"
"""What /proc/cpuinfo has of an ARM processor alone."""
_ANYBODY = stat.S_IROTH | stat.S_IWOTH


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
            yield Check("unknown-device").warn(
                f"{each.address} is a Google accelerator with the unknown id "
                f"{each.device:04x}; known are {', '.join(GENERATIONS)}. It is not granted",
                remedy="install a newer holdfast, or name its id in a pool (pools[].devices)",
            )


def function_findings(node: Node, snapshot: Snapshot, found: TpuMatches) -> Iterator[Finding]:
    """Yield what keeps each of the *found* functions from being granted, or one OK for all."""
    both = (*found.vfio, *found.accel)
    yield from _failed(Check("readable"), unreadable(each.function for each in both), _RESCAN)
    yield from _failed(Check("chip"), incomplete_chips(both), _RESCAN)
    if found.vfio:
        functions = [each.function for each in found.vfio]
        well = Check("driver").ok(f"all {len(functions)} functions are on VFIO drivers")
        yield from or_well(_drivers(node, snapshot, functions), well)
        groups = sorted({each.iommu_group for each in functions if each.iommu_group is not None})
        well = Check("group").ok(f"{len(groups)} IOMMU groups can be opened")
        yield from or_well(_groups(snapshot, functions, groups), well)
        # A group without a function on VFIO has no node. The driver is then the fault to report.
        with_node = [
            group for group in groups if any(map(snapshot.grantable, snapshot.members(group)))
        ]
        if with_node:
            reason = f"the nodes of {len(with_node)} groups are there, with the kernel's numbers"
            nodes = map(snapshot.group_node, with_node)
            yield from or_well(_nodes(node, nodes), Check("node").ok(reason))
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
                yield Check("driver").fail(reason, remedy=remedy)
                continue
            folder = node.host.sys / "bus/pci/devices" / each.address
            override = text_or_empty(folder / "driver_override").replace("(null)", "")
            yield Check("driver").fail(
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
    yield from _failed(Check("group"), missing)
    for group in groups:
        others = (each for each in snapshot.members(group) if each not in functions)
        for found in _failed(Check("group"), group_faults(group, map(snapshot.facts, others))):
            slot = "put the card into a slot with its own group (ACS)"
            yield replace(found, remedy=f"{found.remedy}; or {slot}")


def _nodes(node: Node, nodes: Iterable[VfioDeviceNode]) -> Iterator[Finding]:
    """Yield what is wrong with the groups' nodes."""
    for each in nodes:
        if _left_out_of_copy(node, each):
            yield Check("node").warn(
                f"a copy has no device nodes: {each.path} and others are not checked",
                remedy="run the doctor on the node itself",
            )
            return
        faults = node_faults(each, f"IOMMU group {each.path.rpartition('/')[2]}")
        yield from _failed(Check("node"), faults, "mount the host's /dev")
        yield from _mode(node, each)


def _mode(node: Node, facts: VfioDeviceNode) -> Iterator[Finding]:
    if facts.found is None:
        return
    mode = stat.S_IMODE(node.host.node(facts.path).stat().st_mode)
    if mode & _ANYBODY:
        yield Check("node").warn(
            f"{facts.path} has mode {mode:o}: any process of the host can open the device "
            "without holdfast, which then finds it busy",
            remedy=f"chmod 600 {facts.path}, and remove the udev rule that opens it",
        )


def _accel(node: Node, snapshot: Snapshot, match: PoolFunction) -> Iterator[Finding]:
    """Yield what was found of a chip that is reached by a node of the TPU's own driver."""
    function = match.function
    accel = snapshot.accel.get(function.address)
    path = "" if accel is None else accel.path
    if accel is None or not _left_out_of_copy(node, snapshot.node(path, accel.rdev)):
        faults = accel_faults(snapshot, function)
        if wrong := list(_failed(Check("accel"), faults, "look at its driver")):
            yield from wrong
            return
    yield Check("accel").ok(f"{function.address} is {path}")


def _left_out_of_copy(node: Node, facts: VfioDeviceNode) -> bool:
    """Tell whether a node is missing only because copies of a node have no device nodes."""
    return not node.live and facts.found is None and not facts.exists


def vfio_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the functions that are granted through VFIO."""
    root = node.host
    snapshot = Snapshot(root)
    found = wanted(snapshot, node.settings)
    functions = snapshot.functions
    names = [f"{each.function.address} ({each.model})" for each in (*found.vfio, *found.accel)]
    where = root.sys / "bus/pci/devices"
    yield Check("devices").ok(
        f"to be granted: {', '.join(names)}"
        if names
        else f"no TPU and no function of a pool among {len(functions)} PCI functions in {where}"
    )
    yield from unknown_findings(functions.values())
    if found.vfio:
        yield _iommu(root)
        yield _no_iommu(root)
        yield from _modules(root)
        yield _container(node)
    yield from function_findings(node, snapshot, found)


def _iommu(root: HostRoot) -> Finding:
    folder = root.sys / "kernel/iommu_groups"
    if groups := len(list_names(folder)):
        return Check("iommu").ok(f"it is on: {folder} has {groups} groups")
    line = text_or_empty(root.proc / "cmdline").split()
    told = [word for word in line if word in _OFF]
    why = f"; the kernel was started with {' '.join(told)}" if told else ""
    cpu = text_or_empty(root.proc / "cpuinfo")
    word = "amd_iommu=on" if "AuthenticAMD" in cpu else "intel_iommu=on"
    start = "" if _ARM in cpu else f" and start the kernel with {word} iommu=pt"
    return Check("iommu").fail(
        f"it is off: {folder} has no group{why}",
        remedy=f"turn it on in the firmware (VT-d, AMD-Vi, SMMU){start}; a virtual machine needs "
        "a virtual IOMMU from its host",
    )


def _no_iommu(root: HostRoot) -> Finding:
    path = root.sys / "module/vfio/parameters/enable_unsafe_noiommu_mode"
    groups = root.sys / "kernel/iommu_groups"
    unsafe = [
        name
        for name in names_or_empty(groups)
        if text_or_empty(groups / name / "name") == "vfio-noiommu"
    ]
    if unsafe:
        return Check("no-iommu").fail(
            f"groups {', '.join(unsafe)} in {groups} have no IOMMU: their devices could "
            "write anywhere in the node's memory, and holdfast grants none of them",
            remedy="turn the IOMMU on, set enable_unsafe_noiommu_mode to N and bind them again",
        )
    if text_or_empty(path) in {"Y", "1"}:
        return Check("no-iommu").warn(
            f"{path} is Y: a device without an IOMMU would be bound all the same",
            remedy=f"echo N > {path}, and remove it from /etc/modprobe.d and the kernel's command "
            "line",
        )
    return Check("no-iommu").ok("VFIO takes no device without an IOMMU")


def _modules(root: HostRoot) -> Iterator[Finding]:
    load = "modprobe vfio-pci, and name it in a file of /etc/modules-load.d for the next boot"
    folder = root.sys / "bus/pci/drivers"
    drivers = [name for name in names_or_empty(folder) if is_vfio_driver(name)]
    if not drivers:
        yield Check("module").fail(
            f"{folder} has neither vfio-pci nor a variant of it: no such driver is loaded",
            remedy=load,
        )
    elif not is_folder(root.sys / "module/vfio_iommu_type1"):
        yield Check("module").warn(
            "vfio_iommu_type1 is not loaded: unless the kernel loads it at the first use, "
            "no program can map memory for its device",
            remedy="modprobe vfio_iommu_type1",
        )
    else:
        yield Check("module").ok(f"{', '.join(drivers)} and vfio_iommu_type1 are loaded")


def _container(node: Node) -> Finding:
    path = node.host.node("/dev/vfio/vfio")
    try:
        found = path.stat()
    except PermissionError:
        raise  # the daemon may see what we may not
    except OSError as error:
        if not node.live and not path.parent.is_dir():
            return Check("container").warn(
                f"{path} is not there: a copy has no device nodes",
                remedy="run the doctor on the node itself to have its nodes checked",
            )
        return Check("container").fail(
            f"{path} cannot be looked at ({error.strerror}): no program can open a group "
            "without it",
            remedy="modprobe vfio; where the daemon runs in a container mount the host's /dev/vfio",
        )
    if not stat.S_ISCHR(found.st_mode):
        return Check("container").fail(
            f"{path} is not a character device",
            remedy="remove it, and let the kernel make it again: modprobe -r vfio; modprobe vfio",
        )
    if found.st_mode & _ANYBODY != _ANYBODY:
        return Check("container").warn(
            f"{path} has mode {stat.S_IMODE(found.st_mode):o}: pods that are not root "
            "cannot open it",
            remedy=f"chmod 666 {path}: it gives nothing away, the groups' nodes do",
        )
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return Check("container").ok(f"{path} is there ({number})")
