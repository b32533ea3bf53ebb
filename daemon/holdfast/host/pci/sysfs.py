"""Reads PCI functions, IOMMU groups and device classes from sysfs."""

import os
import re
from collections.abc import Mapping

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    list_names,
    names_or_empty,
    rdev_in,
    read_link,
    read_text,
)
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
_DECIMAL = re.compile(r"-?[0-9]{1,9}")
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

    Raise HostError only if a whole folder that lists devices cannot be read.
    """

    def __init__(self, root: HostRoot) -> None:
        self._sys = root.sys
        self._devices = str(root.sys / "bus/pci/devices")

    @property
    def is_there(self) -> bool:
        """Tell whether this is a kernel's sysfs: each has buses, even without any device."""
        return os.path.isdir(self._sys / "bus")

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Return every PCI function, by address."""
        found = (self.function(PciAddress(name)) for name in list_names(self._devices))
        return tuple(function for function in found if function is not None)

    def function(self, address: PciAddress) -> PciFunction | None:
        """Return one function, or None if its folder is gone or *address* is not a PCI address."""
        folder = f"{self._devices}/{address}"
        if not _ADDRESS.fullmatch(address) or not os.path.isdir(folder):
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
        return function if os.path.isdir(folder) else None

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
        try:
            target = os.readlink(f"{self._devices}/{address}/driver")
        except OSError:
            return None
        return target.rpartition("/")[2] or None

    def group_members(self, number: int) -> tuple[PciAddress, ...]:
        """Return the functions of an IOMMU group, by address; none if there is no such group."""
        names = names_or_empty(f"{self._sys}/kernel/iommu_groups/{number}/devices")
        return tuple(PciAddress(name) for name in names if _ADDRESS.fullmatch(name))

    def group_rdev(self, number: int) -> int | None:
        """Return the device number of a VFIO group's node; None while it has none."""
        return rdev_in(f"{self._sys}/class/vfio/{number}/dev")

    def vfio_devices(self, address: PciAddress) -> tuple[int, ...]:
        """Return the device numbers of the function's own VFIO nodes (/dev/vfio/devices/NAME).

        Empty on kernels without them, where sysfs names the device but gives no number.
        """
        folder = f"{self._devices}/{address}/vfio-dev"
        numbers = (rdev_in(f"{folder}/{name}/dev") for name in names_or_empty(folder))
        return tuple(rdev for rdev in numbers if rdev is not None)

    def accel_nodes(self) -> Mapping[PciAddress, DeviceNode]:
        """Return every node of the accel class that has a number, by its PCI function."""
        folder = f"{self._sys}/class/accel"
        found: dict[PciAddress, DeviceNode] = {}
        for name in names_or_empty(folder):
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
        text = self._text(name)
        if text is None:
            if required and len(self.problems) == known:
                self.problems.append(f"{name} is missing")
            return 0
        if not _HEX.fullmatch(text):
            self.problems.append(f"{name} is {_shorten(text)}, not a hexadecimal number")
            return 0
        return int(text, 16)

    def count(self, name: str) -> int | None:
        text = self._text(name)
        if text is None:
            return None
        if not _DECIMAL.fullmatch(text):
            self.problems.append(f"{name} is {_shorten(text)}, not a number")
            return None
        return int(text)

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
        try:
            target = read_link(f"{self._folder}/{name}")
        except HostError as error:
            self.problems.append(str(error))
            return None
        return None if target is None else target.rstrip("/").rpartition("/")[2] or None

    def _text(self, name: str) -> str | None:
        try:
            return read_text(f"{self._folder}/{name}")
        except HostError as error:
            self.problems.append(str(error))
            return None


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
