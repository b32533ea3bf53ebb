"""What one process has of given devices, from its open files and its mappings."""

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.host.mappings import VFIO_DEVICE, mapped_files, names_a_device
from holdfast.host.root import HostRoot
from holdfast.host.statx import DeviceNumbers
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.model.use import Grip, ScanTarget

_SLASH = ord("/")
_PART = 1 << 16
_A_LOT = 1 << 14
"""More open files than this are kept as bits, not as names."""
_MOST_RIDDLES = 32
"""One is enough to make a scan incomplete; a few tell people where to look."""
_SYSPATH = b"vfio-device-syspath:"
"""The line of fdinfo that names a VFIO device fd's function, since Linux 6.18."""


class Grasp:
    """What one process has: grips on devices, and VFIO device fds that nothing says more about."""

    def __init__(self) -> None:
        self.grips: dict[DeviceName, set[Grip]] = defaultdict(set)
        self.loose: set[Grip] = set()
        self.loose_fds = 0
        self.groups: dict[DeviceName | int, int] = {}
        """How many device fds belong to each device, or other group, whose node is open."""

    def __bool__(self) -> bool:
        return bool(self.grips or self.loose)

    def attribute(self) -> None:
        """Tell device fds that the kernel does not name by the group nodes beside them.

        A group node explains one device fd for each of its functions; only what is left over
        (gVisor's leak: the node closed, the device fd not) stays loose.
        """
        if not self.loose or not self.groups:
            return
        devices = [device for device in self.groups if isinstance(device, DeviceName)]
        if len(devices) == 1:
            self.grips[devices[0]] |= self.loose
        if self.loose_fds <= sum(self.groups.values()):
            self.loose.clear()


class GripSearch:
    """Looks at one process after the other for the same targets; belongs to one thread."""

    def __init__(
        self, root: HostRoot, targets: Sequence[ScanTarget], vfio: int | None, *, thorough: bool
    ) -> None:
        """Look below *root*; *vfio* is the major number of VFIO's group nodes, where known.

        *thorough*: look at mappings too, and at threads that have a file table of their own.
        """
        self._root = root
        self._proc = str(root.proc)
        self._vfio = vfio
        self._thorough = thorough
        self._numbers = DeviceNumbers()
        self._by_rdev: dict[int, list[ScanTarget]] = defaultdict(list)
        self._by_address: dict[PciAddress, list[DeviceName]] = defaultdict(list)
        self.riddles: list[str] = []
        """Mappings of something that is gone and might have been a target, for people."""
        for target in targets:
            for rdev in target.rdevs:
                self._by_rdev[rdev].append(target)
            for address in target.addresses:
                self._by_address[address].append(target.device)

    def at(self, pid: int) -> Grasp:
        """Return what *pid* has. Raise OSError where it cannot be looked at, or is gone."""
        grasp = Grasp()
        folder = f"{self._proc}/{pid}"
        names = _open_files(f"{folder}/fd")
        self._files(f"{folder}/fd", names, grasp)
        # A leader that has exited shows nothing, while its threads have everything still.
        threads = _threads(folder, pid) if self._thorough or not names else []
        for thread in threads:
            own = _open_files(f"{thread}/fd")
            if own != names:
                self._files(f"{thread}/fd", own, grasp)
        if self._thorough:
            self._mappings((folder, *threads), pid, grasp)
        grasp.attribute()
        return grasp

    def _files(self, folder: str, names: "list[bytes] | _Many", grasp: Grasp) -> None:
        if not names:
            return
        readlink, number, by_rdev, vfio = os.readlink, self._numbers.of, self._by_rdev, self._vfio
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                try:
                    text = readlink(name, dir_fd=opened)
                except FileNotFoundError:  # closed meanwhile
                    continue
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    text = b"/"
                # The text tells only sockets, pipes and the like from files that have a path.
                if text[0] == _SLASH:
                    rdev = number(opened, name)
                    if rdev and (rdev in by_rdev or os.major(rdev) == vfio):
                        self._node(f"{folder}info/{name.decode()}", rdev, grasp)
                elif text == VFIO_DEVICE:
                    self._device_fd(f"{folder}info/{name.decode()}", grasp)
        finally:
            os.close(opened)

    def _node(self, info: str, rdev: int, grasp: Grasp) -> None:
        if _is_reference(info):
            return
        targets = self._by_rdev.get(rdev)
        if targets is None:
            grasp.groups[rdev] = 1
            return
        for target in targets:
            grasp.grips[target.device].add(Grip.NODE)
            if target.addresses or os.major(rdev) == self._vfio:
                grasp.groups[target.device] = len(target.addresses) or 1

    def _device_fd(self, info: str, grasp: Grasp) -> None:
        for line in _fdinfo(info):
            if line.startswith(_SYSPATH):
                address = PciAddress(line.rpartition(b"/")[2].strip().decode(errors="replace"))
                for device in self._by_address.get(address, ()):
                    grasp.grips[device].add(Grip.DEVICE_FD)
                return
        grasp.loose.add(Grip.DEVICE_FD)
        grasp.loose_fds += 1

    def _mappings(self, folders: Iterable[str], pid: int, grasp: Grasp) -> None:
        for folder in folders:
            mapped = False
            seen: set[bytes] = set()
            for lines in _whole_lines(f"{folder}/maps"):
                mapped = True
                for path in mapped_files(lines):
                    if path == VFIO_DEVICE:
                        grasp.loose.add(Grip.MAPPED)
                    elif path not in seen:
                        seen.add(path)
                        self._mapping(f"{folder}/root".encode() + path, path, pid, grasp)
            if mapped:  # all threads share one
                return

    def _mapping(self, full: bytes, path: bytes, pid: int, grasp: Grasp) -> None:
        rdev = self._numbers.of(None, full)
        if rdev is None:
            rdev = self._numbers.of(None, bytes(self._root.node(os.fsdecode(path))))
        if rdev is None and names_a_device(path):
            riddle = f"pid {pid} maps {os.fsdecode(path)}, which is gone: it cannot be told apart"
            if len(self.riddles) < _MOST_RIDDLES and riddle not in self.riddles:
                self.riddles.append(riddle)
        for target in self._by_rdev.get(rdev or 0, ()):
            grasp.grips[target.device].add(Grip.MAPPED)


def _threads(folder: str, pid: int) -> list[str]:
    """Return the folders of the process's threads but its leader."""
    try:
        tasks = os.listdir(f"{folder}/task")
    except FileNotFoundError:
        return []
    return [f"{folder}/task/{task}" for task in tasks if task != str(pid)]


def _is_reference(info: str) -> bool:
    """Tell whether a file was opened with O_PATH: the driver never hears of that."""
    for line in _fdinfo(info):
        if line.startswith(b"flags:"):
            digits = line.partition(b":")[2].strip()
            return digits.isdigit() and bool(int(digits, 8) & os.O_PATH)
    return False


def _fdinfo(path: str) -> list[bytes]:
    """Return the lines of an fdinfo file; none where they cannot be read: they only add to it."""
    try:
        return _content(path).splitlines()
    except OSError:
        return []


class _Many(Struct, frozen=True):
    """The numbers of a process's open files, a bit for each: a million names take 50 MiB."""

    bits: bytes

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __iter__(self) -> Iterator[bytes]:
        for byte, bits in enumerate(self.bits):
            for bit in range(8):
                if bits >> bit & 1:
                    yield b"%d" % (8 * byte + bit)


def _many(folder: str) -> _Many:
    bits = bytearray()
    with os.scandir(folder.encode()) as files:
        for file in files:
            byte, bit = divmod(int(file.name), 8)
            bits.extend(bytes(max(0, byte + 1 - len(bits))))
            bits[byte] |= 1 << bit
    return _Many(bytes(bits))


def _open_files(folder: str) -> list[bytes] | _Many:
    # The size tells how many there are since Linux 6.2, and is 0 before.
    return _many(folder) if os.stat(folder).st_size > _A_LOT else os.listdir(folder.encode())


def _whole_lines(path: str) -> Iterator[bytes]:
    """Yield the text of *path* in parts that end with a line; nothing where it is gone.

    A program with a lot of memory has tens of megabytes of them, and our own memory is small.
    """
    rest = b""
    try:
        with open(path, "rb", buffering=_PART) as file:
            while part := file.read(_PART):
                lines, end, tail = part.rpartition(b"\n")
                if end:
                    yield rest + lines
                    rest = tail
                else:
                    rest += part
    except (FileNotFoundError, ProcessLookupError):
        return
    if rest:
        yield rest


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
