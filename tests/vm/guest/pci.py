"""PCI functions of the guest: what sysfs says of them, and binding them to drivers."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vm.guest.waits import wait_until

PCI = Path("/sys/bus/pci")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_IDENTITY = Path("/sys/module/faketpu/parameters/identity")


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function by its address, such as 0000:00:05.0."""

    address: str

    @property
    def folder(self) -> Path:
        return PCI / "devices" / self.address

    @property
    def present(self) -> bool:
        return self.folder.exists()

    @property
    def enable(self) -> int:
        """How often the kernel has enabled it; bound to vfio-pci, 0 means not in use."""
        return int((self.folder / "enable").read_text())

    @property
    def driver(self) -> str | None:
        try:
            return (self.folder / "driver").readlink().name
        except FileNotFoundError:
            return None

    @property
    def group(self) -> int:
        """The number of its IOMMU group."""
        return int((self.folder / "iommu_group").readlink().name)

    @property
    def node(self) -> Path:
        """The group's node, which is there while a function of the group is bound to vfio-pci."""
        return Path(f"/dev/vfio/{self.group}")

    @property
    def group_members(self) -> list[str]:
        folder = Path(f"/sys/kernel/iommu_groups/{self.group}/devices")
        return sorted(entry.name for entry in folder.iterdir())

    def bind(self, driver: str = "vfio-pci") -> None:
        """Give it to *driver*, and to no other."""
        if self.driver == driver:
            return
        self.unbind()
        (self.folder / "driver_override").write_text(driver)
        (PCI / "drivers_probe").write_text(self.address)
        assert self.driver == driver, f"{self.address} did not go to {driver} but {self.driver}"
        if driver == "vfio-pci":
            wait_until(self.node.exists, what=f"{self.node}")

    def unbind(self) -> None:
        """Take it from its driver; this blocks for as long as somebody has it open."""
        if self.driver:
            (self.folder / "driver/unbind").write_text(self.address)
        (self.folder / "driver_override").write_text("\n")

    def remove(self) -> None:
        """Take it out of the kernel, which finds it again at a rescan."""
        (self.folder / "remove").write_text("1")

    def become(self, identity: str) -> None:
        """Take on another vendor:device; it must have no driver."""
        _IDENTITY.write_text(f"{self.address}={identity}")


def below(port: str) -> list[Function]:
    """Return the functions directly below a bridge or root port, by address."""
    names = sorted(entry.name for entry in (PCI / "devices" / port).iterdir())
    return [Function(name) for name in names if _ADDRESS.fullmatch(name)]


def opened(path: Path | str) -> str:
    """Open *path* as a driver's user would, close it, and return "ok" or the name of the error."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"
