"""NVIDIA's driver on the node: in the kernel, its library, its device nodes, MIG's nodes."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    device_major,
    device_number,
    file_identity,
    is_file,
    is_folder,
    link_or_none,
    names_or_empty,
    rdev_in,
    read_bytes,
    seen,
    text_or_empty,
)
from holdfast.host.files.paths import below, mount_of, mounts
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.roots import DriverFacts, RootFacts

_LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
"""Where distributions have libraries, below a root."""
MOUNTED = Path("/driver-root")
"""Where NVIDIA's chart mounts the driver's root in its container."""
OPERATOR = "nvidia/driver"
"""Where GPU Operator mounts the driver container's root, below /run."""
_VALIDATIONS, _READY = "nvidia/validations", ".driver-ctr-ready"
"""The folder below /run in which GPU Operator's containers leave status files, and the file of the
driver container: it is there while the driver is up, and removed before the driver is unloaded."""
_IMEX, _IMEX_MAJOR = "nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels"
# The names that drivers have used for the device over time.
_MAJORS = ("nvidia-frontend", "nvidia", "nvidiactl")
_CONTROL: Mapping[str, tuple[str, ...]] = {
    "nvidiactl": _MAJORS,
    "nvidia-uvm": ("nvidia-uvm",),
    "nvidia-uvm-tools": ("nvidia-uvm",),
    "nvidia-modeset": ("nvidia-modeset", *_MAJORS),
}
"""The names in /proc/devices that the driver of each node may have."""
_DRM = re.compile(r"(card|renderD)[0-9]{1,9}")
_CAPS, _MIG_MINORS = "nvidia-caps", "driver/nvidia-caps/mig-minors"
_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")


class NvidiaFiles:
    """Reads what the node shows of the driver. It blocks: run it on a lane."""

    def __init__(
        self,
        root: HostRoot,
        *,
        driver_root: str = "",
        driver_root_on_host: str = "",
        dev_root: str = "",
        mounted: Path = MOUNTED,
    ) -> None:
        """Look below *root*, and first below the configured roots.

        *driver_root* and *dev_root* are the roots of filesystems; empty: not configured.
        *driver_root_on_host* is the path of *driver_root* on the host; empty: the same. If only
        that one is configured, or none, *mounted* is the driver's root where it exists: what the
        host calls it is then the host's own root, unless it is configured.
        """
        if not driver_root and mounted.is_dir():
            driver_root, driver_root_on_host = str(mounted), driver_root_on_host or "/"
        driver_root = driver_root or driver_root_on_host
        self._root = root
        self._procfs = Procfs(root)
        self.driver_root = driver_root
        self.driver_root_on_host = driver_root_on_host or driver_root
        self._dev_root = dev_root or driver_root
        self._dev_root_on_host = dev_root or self.driver_root_on_host

    @property
    def present(self) -> bool:
        """Tell whether the kernel shows the driver; a single stat, because it is called often."""
        return os.path.isdir(self._root.proc / "driver/nvidia")

    @property
    def ready(self) -> bool | None:
        """Tell whether GPU Operator's driver container is up, as it says; None without one."""
        for run in (self._root.run, self._root.proc / "1/root/run"):
            folder = run / _VALIDATIONS
            with suppress(HostError):
                if seen(folder):
                    return seen(folder / _READY) is not None
        return None

    def facts(self) -> DriverFacts:
        """Return the facts that decide which library and which nodes are the driver's.

        Raise HostError where it cannot be told whether the kernel has the driver, or which.
        """
        if not is_folder(self._root.proc / "driver/nvidia"):
            return DriverFacts(present=False)
        majors = (self._procfs.char_major(name) for name in _MAJORS)
        version = read_bytes(self._root.proc / "driver/nvidia/version") or b""
        return DriverFacts(
            present=True,
            libraries=tuple(self._libraries()),
            roots=tuple(self._device_roots()),
            major=next((major for major in majors if major is not None), None),
            load=f"{version.decode(errors='replace')} load {driver_load(self._root)}",
            ready=self.ready,
        )

    def rdev(self, root: RootFacts, minor: int) -> int | None:
        """Return the device number of a GPU's node in *root*; None without one of that major."""
        found = device_number(root.folder / f"nvidia{minor}")
        return found if found is not None and os.major(found) == root.control else None

    def mig_nodes(self, root: RootFacts) -> Mapping[tuple[int, int, int], tuple[DeviceNode, ...]]:
        """Return the nodes that let a process use a MIG slice, by their host paths in *root*.

        They are by the GPU's minor number, GPU instance and compute instance: the GPU instance's
        first. A slice that lacks one of them cannot be used, and is left out.
        """
        minors: dict[tuple[int, int, int | None], int] = {}
        for line in text_or_empty(self._root.proc / _MIG_MINORS).splitlines():
            # "gpu3/gi7/access 30" or "gpu3/gi7/ci0/access 31"; "config 1", "monitor 2" are no slice
            match = _MIG_MINOR.fullmatch(line.strip())
            if match is not None:
                gpu, gi, ci, minor = match.groups()
                minors[int(gpu), int(gi), None if ci is None else int(ci)] = int(minor)
        major = self._procfs.char_major(_CAPS)
        return {
            (gpu, gi, ci): tuple(
                DeviceNode(
                    path=f"{root.host}/nvidia-caps/nvidia-cap{each}", rdev=os.makedev(major, each)
                )
                for each in (minors[gpu, gi, None], minor)
            )
            for (gpu, gi, ci), minor in minors.items()
            if major is not None and ci is not None and (gpu, gi, None) in minors
        }

    def control(self, root: RootFacts) -> tuple[str, ...]:
        """Return the nodes that every user of GPUs needs, if they exist, by their host paths.

        A node with another driver's major number is left out: an earlier driver left it.
        """
        return tuple(
            f"{root.host}/{name}"
            for name, drivers in _CONTROL.items()
            if self._is_of(device_major(root.folder / name), drivers)
        )

    def imex(self, root: RootFacts) -> str:
        """Return the host path of the node of IMEX channel 0 in *root*; empty if there is none."""
        found = device_major(root.folder / _IMEX)
        return f"{root.host}/{_IMEX}" if self._is_of(found, (_IMEX_MAJOR,)) else ""

    def numa_node(self, address: str) -> int | None:
        """Return the NUMA node of a PCI function; None if it has none."""
        text = text_or_empty(self._root.sys / "bus/pci/devices" / address / "numa_node")
        return int(text) if text.isdecimal() else None  # -1 says that it has none

    def drm_nodes(self, address: PciAddress) -> tuple[DeviceNode, ...]:
        """Return the nodes in /dev/dri by which programs draw on a GPU, as sysfs has them."""
        folder = self._root.sys / "bus/pci/devices" / address / "drm"
        names = [name for name in names_or_empty(folder) if _DRM.fullmatch(name)]
        found = ((name, rdev_in(folder / name / "dev")) for name in names)
        return tuple(
            DeviceNode(path=f"/dev/dri/{name}", rdev=rdev)
            for name, rdev in found
            if rdev is not None
        )

    def pci_class(self, address: str) -> str:
        """Return the class of a PCI function, such as ``0x030200``; empty if it is not told."""
        return text_or_empty(self._root.sys / "bus/pci/devices" / address / "class")

    def pci_config(self, address: str) -> bytes:
        """Return the configuration space of a PCI function; empty if it cannot be read.

        It is no more than its first 64 bytes without CAP_SYS_ADMIN.
        """
        try:
            return read_bytes(self._root.sys / "bus/pci/devices" / address / "config") or b""
        except HostError:
            return b""

    @property
    def machine(self) -> str:
        """Return what the machine's firmware calls it; empty if it does not tell."""
        return text_or_empty(self._root.sys / "class/dmi/id/product_name")

    def is_on_driver(self, address: str) -> bool:
        """Tell whether a PCI function is on the bus and bound to NVIDIA's driver."""
        driver = link_or_none(self._root.sys / "bus/pci/devices" / address / "driver")
        return driver is not None and Path(driver).name == "nvidia"

    def _libraries(self) -> Iterator[Path]:
        roots = [Path(self.driver_root)] if self.driver_root else []
        for root in (*roots, self._root.run / OPERATOR):
            for folder in LIBRARY_FOLDERS:
                file = below(root, f"{folder}/{_LIBRARY}")
                if file is not None and is_file(file):
                    yield file

    def _is_of(self, major: int | None, drivers: tuple[str, ...]) -> bool:
        """Tell whether a node is of one of *drivers*; yes also if none has a known number."""
        known = {self._procfs.char_major(name) for name in drivers} - {None}
        return major is not None and (not known or major in known)

    def _device_roots(self) -> Iterator[RootFacts]:
        seen = mounts(self._root)
        for folder, host in self._device_folders():
            on = mount_of(seen, str(folder.resolve()))
            own = host == "/dev"
            yield RootFacts(
                folder=folder,
                host=host,
                control=device_major(folder / "nvidiactl"),
                own=own,
                place=file_identity(folder),
                nodev=on is not None and not on.devices,
                # The kernel's own devtmpfs is shared; a runtime makes each container its own tmpfs.
                private=own and on is not None and on.kind == "tmpfs",
            )

    def _device_folders(self) -> Iterator[tuple[Path, str]]:
        if self._dev_root:
            yield Path(self._dev_root) / "dev", f"{self._dev_root_on_host.rstrip('/')}/dev"
        yield self._root.dev, "/dev"
        yield self._root.run / OPERATOR / "dev", f"/run/{OPERATOR}/dev"


def driver_load(root: HostRoot) -> int | None:
    """Return a number that tells one load of the kernel module from the next; None without it.

    It is the inode of the module's folder in sysfs, which is never used again. Raise HostError if
    that cannot be told.
    """
    found = seen(root.sys / "module/nvidia")
    return None if found is None else found.st_ino
