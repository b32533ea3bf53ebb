"""PCI and IOMMU facts from sysfs; odd content is a problem text, never an exception."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.model.ids import PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One PCI function as sysfs shows it; -1 and None stand for what could not be read."""

    address: PciAddress
    vendor: int
    device: int
    subsystem_device: int | None
    class_code: int
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    enable: int | None
    problems: tuple[str, ...] = ()


class Sysfs:
    """Reads below one root."""

    def __init__(self, root: HostRoot) -> None:
        """Read below *root*'s sys folder."""
        self._devices = root.sys / "bus/pci/devices"
        self._groups = root.sys / "kernel/iommu_groups"
        self._class = root.sys / "class"

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """Return every PCI function, by address; empty where there is no PCI bus."""
        found = (self.function(PciAddress(name)) for name in _names(self._devices))
        return tuple(each for each in found if each is not None)

    def function(self, address: PciAddress) -> PciFunction | None:
        """Return the function at *address*, or None when its folder is gone."""
        folder = self._devices / address
        if not folder.exists():
            return None
        problems: list[str] = []
        group = _link_name(folder / "iommu_group")
        if group is not None and not group.isdecimal():
            problems.append(f"{folder / 'iommu_group'} leads to {group!r}, which is no number")
            group = None
        # A kernel built without NUMA has no such file, and the device is none the worse for it.
        numa_node = _number(folder / "numa_node", problems, required=False)
        return PciFunction(
            address=address,
            vendor=_or_minus(_number(folder / "vendor", problems)),
            device=_or_minus(_number(folder / "device", problems)),
            subsystem_device=_number(folder / "subsystem_device", problems, required=False),
            class_code=_or_minus(_number(folder / "class", problems)),
            driver=_link_name(folder / "driver"),
            iommu_group=int(group) if group is not None else None,
            numa_node=None if numa_node is None or numa_node < 0 else numa_node,
            enable=_number(folder / "enable", problems),
            problems=tuple(problems),
        )

    def enable(self, address: PciAddress) -> int | None:
        """Return the function's enable count; None when it is gone or unreadable."""
        try:
            fd = os.open(self._devices / address / "enable", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return int(os.read(fd, 32))
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def group_members(self, number: int) -> tuple[PciAddress, ...]:
        """Return the functions of an IOMMU group, bridges among them; empty when it is gone."""
        return tuple(PciAddress(name) for name in _names(self._groups / str(number) / "devices"))

    def group_rdev(self, number: int) -> int | None:
        """Return the device number of /dev/vfio/<number>, or None while there is none."""
        return _rdev(self._class / "vfio" / str(number) / "dev")

    def vfio_devices(self, address: PciAddress) -> tuple[tuple[str, int], ...]:
        """Return name and device number of the function's nodes in /dev/vfio/devices."""
        folder = self._devices / address / "vfio-dev"
        found = ((name, _rdev(folder / name / "dev")) for name in _names(folder))
        return tuple((name, rdev) for name, rdev in found if rdev is not None)

    def accel_nodes(self) -> Mapping[str, tuple[int, PciAddress]]:
        """Return, for each /dev/accelN by name, its device number and its PCI function."""
        folder = self._class / "accel"
        found: dict[str, tuple[int, PciAddress]] = {}
        for name in _names(folder):
            rdev, address = _rdev(folder / name / "dev"), _link_name(folder / name / "device")
            if rdev is not None and address is not None:
                found[name] = (rdev, PciAddress(address))
        return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _link_name(link: Path) -> str | None:
    try:
        return link.readlink().name
    except OSError:
        return None


def _number(path: Path, problems: list[str], *, required: bool = True) -> int | None:
    try:
        return int(path.read_bytes(), 0)
    except OSError as error:
        if required:
            problems.append(f"cannot read {path}: {error.strerror}")
    except ValueError:
        problems.append(f"cannot read {path}: it holds no number")
    return None


def _or_minus(number: int | None) -> int:
    return -1 if number is None else number


def _rdev(path: Path) -> int | None:
    try:
        major, minor = path.read_text("ascii").strip().split(":")
        return os.makedev(int(major), int(minor))
    except (OSError, ValueError):
        return None
