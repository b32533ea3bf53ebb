"""Checks VFIO: the IOMMU, the kernel's modules, and each function that is to be granted."""

import os
import stat
from collections.abc import Iterator

from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node
from holdfast.doctor.vfio.functions import function_findings, unknown_findings, wanted
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names, names_or_empty, text_or_empty
from holdfast.host.pci.snapshot import Snapshot
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.root import HostRoot
from holdfast.model.vfio.viability import is_vfio_driver

_DEVICES = Check("vfio", "devices")
_IOMMU = Check("vfio", "iommu")
_NO_IOMMU = Check("vfio", "no-iommu")
_MODULE = Check("vfio", "module")
_CONTAINER = Check("vfio", "container")
_OFF = frozenset({"intel_iommu=off", "amd_iommu=off", "iommu=off"})
_ANYBODY = stat.S_IROTH | stat.S_IWOTH


def vfio_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the functions that are granted through VFIO."""
    root = node.host
    try:
        snapshot = Snapshot(root, Sysfs(root))
    except HostError as error:
        yield _DEVICES.warn(str(error), remedy="run the doctor as root, with the host's /sys")
        return
    found = wanted(snapshot, node.settings)
    functions = snapshot.functions
    names = [f"{each.function.address} ({each.model})" for each in (*found.vfio, *found.accel)]
    where = root.sys / "bus/pci/devices"
    yield _DEVICES.ok(
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
    try:
        groups = len(list_names(folder))
    except HostError as error:
        return _IOMMU.warn(str(error), remedy="run the doctor as root")
    if groups:
        return _IOMMU.ok(f"it is on: {folder} has {groups} groups")
    line = text_or_empty(root.proc / "cmdline").split()
    told = [word for word in line if word in _OFF]
    why = f"; the kernel was started with {' '.join(told)}" if told else ""
    amd = "AuthenticAMD" in text_or_empty(root.proc / "cpuinfo")
    word = "amd_iommu=on" if amd else "intel_iommu=on"
    return _IOMMU.fail(
        f"it is off: {folder} has no group{why}",
        remedy=f"turn it on in the firmware (VT-d, AMD-Vi) and start the kernel with {word} "
        "iommu=pt; a virtual machine needs a virtual IOMMU from its host",
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
        return _NO_IOMMU.fail(
            f"groups {', '.join(unsafe)} in {groups} have no IOMMU: their devices could "
            "write anywhere in the node's memory, and holdfast grants none of them",
            remedy="turn the IOMMU on, set enable_unsafe_noiommu_mode to N and bind them again",
        )
    if text_or_empty(path) in {"Y", "1"}:
        return _NO_IOMMU.warn(
            f"{path} is Y: a device without an IOMMU would be bound all the same",
            remedy=f"echo N > {path}, and remove it from /etc/modprobe.d and the kernel's command "
            "line",
        )
    return _NO_IOMMU.ok("VFIO takes no device without an IOMMU")


def _modules(root: HostRoot) -> Iterator[Finding]:
    load = "modprobe vfio-pci, and name it in a file of /etc/modules-load.d for the next boot"
    folder = root.sys / "bus/pci/drivers"
    drivers = [name for name in names_or_empty(folder) if is_vfio_driver(name)]
    if not drivers:
        yield _MODULE.fail(
            f"{folder} has neither vfio-pci nor a variant of it: no such driver is loaded",
            remedy=load,
        )
    elif not (root.sys / "module/vfio_iommu_type1").is_dir():
        yield _MODULE.warn(
            "vfio_iommu_type1 is not loaded: unless the kernel loads it at the first use, "
            "no program can map memory for its device",
            remedy="modprobe vfio_iommu_type1",
        )
    else:
        yield _MODULE.ok(f"{', '.join(drivers)} and vfio_iommu_type1 are loaded")


def _container(node: Node) -> Finding:
    path = node.host.node("/dev/vfio/vfio")
    try:
        found = path.stat()
    except PermissionError:
        raise  # the daemon may see what we may not
    except OSError as error:
        if not node.live and not path.parent.is_dir():
            return _CONTAINER.warn(
                f"{path} is not there: a copy has no device nodes",
                remedy="run the doctor on the node itself to have its nodes checked",
            )
        return _CONTAINER.fail(
            f"{path} cannot be looked at ({error.strerror}): no program can open a group "
            "without it",
            remedy="modprobe vfio; where the daemon runs in a container mount the host's /dev/vfio",
        )
    if not stat.S_ISCHR(found.st_mode):
        return _CONTAINER.fail(
            f"{path} is not a character device",
            remedy="remove it, and let the kernel make it again: modprobe -r vfio; modprobe vfio",
        )
    if found.st_mode & _ANYBODY != _ANYBODY:
        return _CONTAINER.warn(
            f"{path} has mode {stat.S_IMODE(found.st_mode):o}: pods that are not root "
            "cannot open it",
            remedy=f"chmod 666 {path}: it gives nothing away, the groups' nodes do",
        )
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return _CONTAINER.ok(f"{path} is there ({number})")
