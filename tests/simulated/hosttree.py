"""Builds a tree of real files and links that reads like the /sys and /dev of a host with devices.

Nodes are links to pseudo-terminals, which are character devices that anybody may make; sysfs names
their real numbers.
"""

import os
import select
import shutil
from collections.abc import Mapping
from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.model.ids import PciAddress

GOOGLE = 0x1AE0
V5E = 0x0063


def replace(file: Path, text: str) -> None:
    """Write *file* so that a reader sees either what it was or all that it becomes."""
    half = file.with_name(f".{file.name}")
    half.write_text(text)
    half.replace(file)


class HostTree:
    """A host below a folder. Every method may be called while somebody reads the tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = HostRoot.under(folder)
        self._masters: dict[str, tuple[int, select.poll]] = {}
        for path in (
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
            "sys/kernel/iommu_groups",
            "sys/class/vfio",
            "sys/class/accel",
            "sys/devices/virtual/vfio",
            "dev/vfio",
            "proc",
            "etc",
        ):
            (folder / path).mkdir(parents=True)
        (folder / "dev/vfio/vfio").symlink_to("/dev/null")

    def close(self) -> None:
        """Give the pseudo-terminals back."""
        for master, _ in self._masters.values():
            os.close(master)
        self._masters.clear()

    def function(
        self,
        address: str,
        *,
        vendor: int = GOOGLE,
        device: int = V5E,
        subsystem: int = 0,
        class_code: int = 0x120000,
        driver: str | None = "vfio-pci",
        group: int | None = None,
        numa: int | None = 0,
        node: bool = True,
    ) -> PciAddress:
        """Add a PCI function; with a group and a VFIO driver, also the group's node."""
        home = self.folder / "sys/devices" / f"pci{address[:7]}" / address
        home.mkdir(parents=True)
        texts = {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device:04x}",
            "subsystem_vendor": f"0x{vendor:04x}",
            "subsystem_device": f"0x{subsystem:04x}",
            "class": f"0x{class_code:06x}",
            "enable": "0",
            "numa_node": "-1" if numa is None else str(numa),
        }
        for name, text in texts.items():
            (home / name).write_text(f"{text}\n")
        self._link(self.folder / "sys/bus/pci/devices" / address, home)
        if group is not None:
            members = self.folder / "sys/kernel/iommu_groups" / str(group) / "devices"
            members.mkdir(parents=True, exist_ok=True)
            self._link(members / address, home)
            self._link(home / "iommu_group", members.parent)
        if driver is not None:
            self.bind(address, driver)
            if group is not None and "vfio" in driver and node:
                self.group_node(group)
        return PciAddress(address)

    def tpu(
        self,
        address: str,
        *,
        group: int,
        device: int = V5E,
        numa: int | None = 0,
        driver: str | None = "vfio-pci",
    ) -> PciAddress:
        """Add one function of a TPU chip behind its IOMMU group."""
        return self.function(address, device=device, group=group, numa=numa, driver=driver)

    def bridge(self, address: str, *, group: int, driver: str | None = "pcieport") -> PciAddress:
        """Add a PCI bridge, which stays enabled all the time."""
        self.function(
            address,
            vendor=0x8086,
            device=0x244E,
            class_code=0x060400,
            driver=driver,
            group=group,
            node=False,
        )
        self.write(address, "enable", "1")
        return PciAddress(address)

    def accel(
        self,
        address: str,
        number: int,
        *,
        device: int = 0x005E,
        subsystem: int = 0,
        numa: int | None = 0,
    ) -> PciAddress:
        """Add a TPU chip behind /dev/accelN."""
        self.function(address, device=device, subsystem=subsystem, driver="accel", numa=numa)
        self.write(address, "enable", "1")
        home = self.path(address)
        entry = home / "accel" / f"accel{number}"
        entry.mkdir(parents=True)
        self._link(entry / "device", home)
        self._link(self.folder / "sys/class/accel" / entry.name, entry)
        rdev = self.terminal(f"/dev/accel{number}")
        (entry / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")
        return PciAddress(address)

    def group_node(self, group: int) -> None:
        """Add the group's node and its number, as the kernel does at the first bind to VFIO."""
        entry = self.folder / "sys/devices/virtual/vfio" / str(group)
        if entry.exists():
            return
        rdev = self.terminal(f"/dev/vfio/{group}")
        entry.mkdir(parents=True)
        (entry / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")
        self._link(self.folder / "sys/class/vfio" / str(group), entry)

    def drop_group_node(self, group: int) -> None:
        """Take the group's node and number away, as the kernel does at the last unbind."""
        (self.folder / "sys/class/vfio" / str(group)).unlink()
        shutil.rmtree(self.folder / "sys/devices/virtual/vfio" / str(group))
        self.node(f"/dev/vfio/{group}").unlink()

    def regroup(self, groups: Mapping[PciAddress, int]) -> None:
        """Give each function its new group number, with nodes as after a boot."""
        for address in groups:
            link = self.path(address) / "iommu_group"
            old = link.resolve()
            shutil.rmtree(old)
            link.unlink()
            self.drop_group_node(int(old.name))
            master, _ = self._masters.pop(f"/dev/vfio/{old.name}")
            os.close(master)
        for address, group in groups.items():
            members = self.folder / "sys/kernel/iommu_groups" / str(group) / "devices"
            members.mkdir(parents=True)
            self._link(members / address, self.path(address))
            self._link(self.path(address) / "iommu_group", members.parent)
            self.group_node(group)

    def bind(self, address: str, driver: str) -> None:
        """Give the function a driver, in place of the one it has."""
        self.unbind(address)
        home = self.folder / "sys/bus/pci/drivers" / driver
        home.mkdir(exist_ok=True)
        self._link(self.path(address) / "driver", home)

    def unbind(self, address: str) -> None:
        """Take the function's driver link away, and nothing else."""
        (self.path(address) / "driver").unlink(missing_ok=True)

    def unplug(self, address: str) -> None:
        """Take the function out of the host; its group's node is left to the caller."""
        home = self.path(address)
        link = home / "iommu_group"
        if link.is_symlink():
            (link.resolve() / "devices" / address).unlink()
        (self.folder / "sys/bus/pci/devices" / address).unlink()
        shutil.rmtree(home)

    def write(self, address: str, name: str, text: str) -> None:
        """Write one of the function's files; like the kernel's, it is never seen half written."""
        replace(self.path(address) / name, f"{text}\n")

    def path(self, address: str) -> Path:
        """Return the function's folder."""
        return self.folder / "sys/devices" / f"pci{address[:7]}" / address

    def node(self, path: str) -> Path:
        """Return where *path*, which starts with /dev, lies in the tree."""
        return self.folder / path.removeprefix("/")

    def terminal(self, path: str) -> int:
        """Make *path* a character device of its own; return its device number."""
        master, slave = os.openpty()
        hang_up = select.poll()
        hang_up.register(master, 0)
        self._masters[path] = master, hang_up
        self.node(path).symlink_to(os.ttyname(slave))
        rdev = os.fstat(slave).st_rdev
        os.close(slave)
        return rdev

    def rename(self, path: str, new: str) -> None:
        """Let the terminal at *path* be at *new*."""
        self.node(path).rename(self.node(new))
        self._masters[new] = self._masters.pop(path)

    def in_use(self, path: str) -> bool:
        """Tell whether any process has the node at *path* open.

        Once its other end was open and is not any more, a terminal's master reports a hang-up.
        """
        _, hang_up = self._masters[path]
        return not hang_up.poll(0)

    @staticmethod
    def _link(link: Path, target: Path) -> None:
        # Like the kernel's, a link's text ends with the name of what it leads to.
        link.symlink_to(Path(os.path.relpath(target.parent, link.parent)) / target.name)
