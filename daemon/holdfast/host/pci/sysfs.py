"""Reads PCI functions, IOMMU groups and device classes from sysfs, each once a look."""

import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Mapping

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    is_folder,
    link_or_none,
    list_names,
    rdev_in,
    read_link,
    read_text,
)
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress
from holdfast.model.vfio import (
    FunctionFacts,
    VfioDeviceNode,
    is_bridge,
    is_vfio_driver,
    pending_removal,
)

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
_DECIMAL = re.compile(r"-?[0-9]{1,9}")
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors that say nothing of a file: what it takes to read any is short."""
_IDS = frozenset({"vendor", "device", "class", "subsystem_device"})
"""Without them a function would pass for another, and its device for one that is gone."""
_SHOWN = 40
"""How many characters of an odd file a problem text repeats."""


class PciFunction(Struct, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it.

    An id that cannot be read is 0, any other value None, and `problems` says what is wrong.
    `enable` counts nested enables: for a function on a VFIO driver, 0 means not in use.
    """

    address: PciAddress
    vendor: int
    device: int
    class_code: int
    subsystem_device: int = 0
    driver: str | None = None
    iommu_group: int | None = None
    numa_node: int | None = None
    enable: int | None = None
    problems: tuple[str, ...] = ()


class Binding(Struct, frozen=True):
    """Tells one binding of a function from the next: each makes new inodes in sysfs."""

    function: int
    driver: int


class Sysfs:
    """Reads sysfs below a root. Odd content becomes a problem text, or is left out.

    Raise HostError if a folder of devices or a function's ids cannot be read, or room is short.
    """

    def __init__(self, root: HostRoot) -> None:
        self._sys = root.sys
        self._devices = str(root.sys / "bus/pci/devices")

    @property
    def is_there(self) -> bool:
        """Tell whether this is a kernel's sysfs: each has buses, even without any device."""
        return is_folder(self._sys / "bus")

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Return every PCI function, by address."""
        found = (self.function(PciAddress(name)) for name in list_names(self._devices))
        return tuple(function for function in found if function is not None)

    def function(self, address: PciAddress) -> PciFunction | None:
        """Return one function, or None if its folder is gone or *address* is not a PCI address."""
        folder = f"{self._devices}/{address}"
        if not _ADDRESS.fullmatch(address) or not is_folder(folder):
            return None
        look = _FunctionFolder(folder)
        function = PciFunction(
            address=address,
            vendor=look.id("vendor"),
            device=look.id("device"),
            class_code=look.id("class"),
            subsystem_device=look.id("subsystem_device", required=False),
            driver=look.link("driver"),
            iommu_group=look.group(),
            numa_node=look.numa_node(),
            enable=look.count("enable"),
            problems=tuple(look.problems),
        )
        # A function that was unplugged while we read is gone, not odd.
        return function if is_folder(folder) else None

    def enable(self, address: PciAddress) -> int | None:
        """Return how often the function is enabled; None if that cannot be read.

        One small read, because it is called often.
        """
        try:
            fd = os.open(f"{self._devices}/{address}/enable", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(fd, 32))
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return None

    def pcie_root(self, address: PciAddress) -> str:
        """Return the root of the PCI hierarchy that has the function, such as ``pci0000:00``.

        Empty if there is no such function, or it is not below one.
        """
        devices = os.path.realpath(f"{self._sys}/devices")
        path = os.path.realpath(f"{self._devices}/{address}")
        first = os.path.relpath(path, devices).partition("/")[0]
        return first if _ROOT.fullmatch(first) else ""

    def binding(self, address: PciAddress) -> Binding | None:
        """Return what tells this binding from others; None while the function has no driver."""
        folder = f"{self._devices}/{address}"
        try:
            return Binding(os.stat(folder).st_ino, os.lstat(f"{folder}/driver").st_ino)
        except OSError:
            return None

    def driver(self, address: PciAddress) -> str | None:
        """Return the name of the function's driver, or None; one small read."""
        target = link_or_none(f"{self._devices}/{address}/driver") or ""
        return target.rpartition("/")[2] or None

    def group_members(self, number: int) -> tuple[PciAddress, ...]:
        """Return the functions of an IOMMU group, by address; none if there is no such group."""
        names = list_names(f"{self._sys}/kernel/iommu_groups/{number}/devices")
        return tuple(PciAddress(name) for name in names if _ADDRESS.fullmatch(name))

    def group_rdev(self, number: int) -> int | None:
        """Return the device number of a VFIO group's node; None while it has none."""
        return rdev_in(f"{self._sys}/class/vfio/{number}/dev")

    def vfio_devices(self, address: PciAddress) -> tuple[int, ...]:
        """Return the device numbers of the function's own VFIO nodes (/dev/vfio/devices/NAME).

        Empty on kernels without them, where sysfs names the device but gives no number, and where
        they cannot be read: `enable` tells of whoever has one.
        """
        folder = f"{self._devices}/{address}/vfio-dev"
        try:
            numbers = [rdev_in(f"{folder}/{name}/dev") for name in list_names(folder)]
        except HostError:
            return ()
        return tuple(rdev for rdev in numbers if rdev is not None)

    def accel_nodes(self) -> Mapping[PciAddress, DeviceNode]:
        """Return every node of the accel class that has a number, by its PCI function."""
        folder = f"{self._sys}/class/accel"
        found: dict[PciAddress, DeviceNode] = {}
        for name in list_names(folder):
            rdev = rdev_in(f"{folder}/{name}/dev")
            address = os.path.basename(os.path.realpath(f"{folder}/{name}/device"))
            if rdev is not None and _ADDRESS.fullmatch(address):
                found[PciAddress(address)] = DeviceNode(path=f"/dev/{name}", rdev=rdev)
        return found


class _FunctionFolder:
    """Reads the folder of one function, and collects what is odd about it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.problems: list[str] = []

    def id(self, name: str, *, required: bool = True) -> int:
        known = len(self.problems)
        number = self._number(name, _HEX, 16, "a hexadecimal number")
        if number is None and required and len(self.problems) == known:
            self.problems.append(f"{name} is missing")
        return number or 0

    def count(self, name: str) -> int | None:
        return self._number(name, _DECIMAL, 10, "a number")

    def numa_node(self) -> int | None:
        node = self.count("numa_node")
        return None if node is None or node < 0 else node

    def group(self) -> int | None:
        name = self.link("iommu_group")
        if name is None:
            return None
        if not (name.isascii() and name.isdecimal()):
            self.problems.append(f"iommu_group leads to {_shorten(name)}, not to a number")
            return None
        return int(name)

    def link(self, name: str) -> str | None:
        target = self._read(read_link, name)
        return None if target is None else target.rstrip("/").rpartition("/")[2] or None

    def _number(self, name: str, form: re.Pattern[str], base: int, what: str) -> int | None:
        text = self._read(read_text, name)
        if text is not None and not form.fullmatch(text):
            self.problems.append(f"{name} is {_shorten(text)}, not {what}")
            return None
        return None if text is None else int(text, base)

    def _read(self, read: Callable[[str], str | None], name: str) -> str | None:
        try:
            return read(f"{self._folder}/{name}")
        except HostError as error:
            short = isinstance(error.__cause__, OSError) and error.__cause__.errno in _SHORT
            if short or name in _IDS:
                raise
            self.problems.append(str(error))
            return None


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


class Snapshot:
    """The facts that one scan works from. Blocking: it belongs on a lane."""

    def __init__(self, root: HostRoot, *, known: frozenset[PciAddress] = frozenset()) -> None:
        """Read all PCI functions below *root*; *known* were bound to VFIO in the scan before.

        Raise HostError where there is no sysfs: its devices would all seem to be gone.
        """
        sysfs = self._sysfs = Sysfs(root)
        if not sysfs.is_there:
            raise HostError(
                f"{root.sys} is not a sysfs: it has no folder bus; mount the node's /sys there, or "
                "set host.sys"
            )
        self._root = root
        self._known = known
        self._members: dict[int, tuple[PciFunction, ...]] = {}
        self._nodes: dict[int, VfioDeviceNode] = {}
        self.functions: Mapping[PciAddress, PciFunction] = {
            function.address: function for function in sysfs.pci_functions()
        }
        self._in_group: dict[int | None, set[PciAddress]] = defaultdict(set)
        for function in self.functions.values():
            self._in_group[function.iommu_group].add(function.address)
        self.accel = sysfs.accel_nodes()
        """The nodes of the accel class, with the numbers that sysfs gives them."""

    def members(self, group: int) -> tuple[PciFunction, ...]:
        """Return all functions of IOMMU group *group*, bridges included, by address."""
        if group not in self._members:
            found = {*self._sysfs.group_members(group), *self._in_group[group]}
            known = sorted(found & self.functions.keys())
            self._members[group] = tuple(self.functions[each] for each in known)
        return self._members[group]

    def group_node(self, group: int) -> VfioDeviceNode:
        """Return the node of *group* as sysfs and /dev show it."""
        if group not in self._nodes:
            expected = self._sysfs.group_rdev(group)
            self._nodes[group] = self.node(f"/dev/vfio/{group}", expected)
        return self._nodes[group]

    def node(self, path: str, expected: int | None) -> VfioDeviceNode:
        """Return what is at *path*, which starts with /dev, beside the number sysfs *expected*."""
        exists, found, problem = True, None, ""
        try:
            status = self._root.node(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            exists = False
        except OSError as error:
            exists, problem = False, error.strerror or str(error)
        else:
            found = status.st_rdev if stat.S_ISCHR(status.st_mode) else None
        return VfioDeviceNode(
            path=path, expected=expected, found=found, exists=exists, problem=problem
        )

    def facts(self, function: PciFunction) -> FunctionFacts:
        """Return what the rules need to know of *function*."""
        return FunctionFacts(
            address=function.address,
            driver=function.driver,
            # Who holds it keeps it enabled. Its node may be there for others of its group.
            was_bound=(function.address in self._known and function.enable != 0)
            or self._left_behind(function),
        )

    def grantable(self, function: PciFunction) -> bool:
        """Tell whether `enable` of *function* follows use: it is on VFIO, or just leaving it."""
        if is_vfio_driver(function.driver):
            return True
        group, facts = function.iommu_group, self.facts(function)
        if group is None or not facts.was_bound:  # most functions: spare them a look at the node
            return False
        return pending_removal(facts, self.group_node(group))

    def bound(self) -> frozenset[PciAddress]:
        """Return what the next scan should take for known: functions on VFIO, or leaving it."""
        return frozenset(f.address for f in self.functions.values() if self.grantable(f))

    def _left_behind(self, function: PciFunction) -> bool:
        """Tell whether *function* must have been on VFIO though no scan saw it there.

        The kernel keeps a group's number only while a member is on VFIO, so a group that has one
        with nobody on VFIO has a member that is being removed.
        """
        group = function.iommu_group
        return (
            group is not None
            and function.driver is None
            and not is_bridge(function.class_code)
            and self.group_node(group).expected is not None
            and not any(is_vfio_driver(member.driver) for member in self.members(group))
        )
