"""What one process has of given devices, by its open files and its mappings."""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence

from holdfast.host.files.statx import DeviceNumbers
from holdfast.host.proc.mappings import VFIO_DEVICE, MappedDevices
from holdfast.host.proc.openfiles import BEAT, FileTables, Many, fdinfo, open_files
from holdfast.host.root import HostRoot
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.model.use.holders import Grip, ScanTarget

_ALONE = 3
"""How many links the task folder has for a process with one thread; one more for each other."""
_TABLES = 4
"""With how many of a process's file tables a thread is compared, before its files are read."""
_SYSPATH = b"vfio-device-syspath:"
"""The line of fdinfo that names a VFIO device fd's function, since Linux 6.18."""


class ProcessUse:
    """What one process has of the targets. `unnamed`: VFIO device fds of an unknown function."""

    def __init__(self) -> None:
        self.grips: dict[DeviceName, set[Grip]] = defaultdict(set)
        self.unnamed: set[Grip] = set()
        self.unnamed_fds = 0
        self.groups: dict[DeviceName | int, int] = {}
        """How many device fds belong to each target, or other group, whose node is open."""
        self.maps_left_out = False
        """Whether its mappings were asked for but not read, because that could hang."""

    def __bool__(self) -> bool:
        return bool(self.grips or self.unnamed)

    def attribute(self) -> None:
        """Attribute unnamed device fds to the group nodes that the process has open.

        A group node explains one device fd for each of its functions. What is left over stays
        unnamed: gVisor's leak closes the node and keeps the device fd.
        """
        if not self.unnamed or not self.groups:
            return
        devices = [device for device in self.groups if isinstance(device, DeviceName)]
        if len(devices) == 1:
            self.grips[devices[0]] |= self.unnamed
        if self.unnamed_fds <= sum(self.groups.values()):
            self.unnamed.clear()


class GripSearch:
    """Looks at one process after another for the same targets. Belongs to one thread."""

    def __init__(
        self,
        root: HostRoot,
        targets: Sequence[ScanTarget],
        vfio: int | None,
        tables: FileTables,
        *,
        maps: bool,
    ) -> None:
        """Look below *root*; *vfio* is the major number of VFIO's group nodes, if known.

        *tables* tells which threads have their own file table. *maps*: look at mappings too.
        """
        self._root = root
        self._proc = str(root.proc)
        self._vfio = vfio
        self._tables = tables
        self._maps = maps
        self._numbers = DeviceNumbers()
        self._by_rdev: dict[int, list[ScanTarget]] = defaultdict(list)
        self._by_address: dict[PciAddress, list[DeviceName]] = defaultdict(list)
        self._mapped = MappedDevices(root, self._numbers, self._by_rdev.keys())
        for target in targets:
            for rdev in target.rdevs:
                self._by_rdev[rdev].append(target)
            for address in target.addresses:
                self._by_address[address].append(target.device)

    @property
    def unexplained(self) -> list[str]:
        """Return the mappings of removed files that might have been a target, as texts."""
        return self._mapped.unexplained

    def at(
        self, pid: int, *, careful: bool = False, beat: Callable[[], None] = lambda: None
    ) -> ProcessUse:
        """Return what *pid* has. Raise OSError if it is gone or cannot be looked at.

        *careful*: read nothing that can hang. *beat* is called every few reads.
        """
        use = ProcessUse()
        folder = f"{self._proc}/{pid}"
        names = open_files(f"{folder}/fd", beat)
        self._files(f"{folder}/fd", names, use, beat)
        self._other_tables(folder, pid, use, compare=not careful, exited=not names, beat=beat)
        if self._maps and careful:
            use.maps_left_out = True
        elif self._maps:
            self._mappings(folder, pid, use, beat)
        use.attribute()
        return use

    def _other_tables(
        self,
        folder: str,
        pid: int,
        use: ProcessUse,
        *,
        compare: bool,
        exited: bool,
        beat: Callable[[], None],
    ) -> None:
        """Look at the files of threads that do not share the leader's table.

        A leader that has exited shows no files, while its threads still have them all. If tables
        cannot be compared, each thread's files are read: equal file numbers prove nothing.
        """
        compare = compare and self._tables.usable
        known = [] if exited else [pid]
        for thread in self._threads(folder, pid):
            beat()
            if compare and any(self._tables.same(each, thread) for each in known):
                continue
            try:
                names = open_files(f"{folder}/task/{thread}/fd", beat)
                self._files(f"{folder}/task/{thread}/fd", names, use, beat)
            except (FileNotFoundError, ProcessLookupError):  # this thread alone has ended
                continue
            if len(known) < _TABLES:
                known.append(thread)

    def _threads(self, folder: str, pid: int) -> list[int]:
        """Return the process's threads except its leader."""
        try:
            if self._tables.usable and os.stat(f"{folder}/task").st_nlink == _ALONE:
                return []
            return [int(each) for each in os.listdir(f"{folder}/task") if each != str(pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def _files(
        self, folder: str, names: "list[bytes] | Many", use: ProcessUse, beat: Callable[[], None]
    ) -> None:
        if not names:
            return
        number, by_rdev, vfio = self._numbers.of_open_file, self._by_rdev, self._vfio
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for place, name in enumerate(names):
                if not place % BEAT:
                    beat()
                rdev = number(opened, name)
                if rdev is None:
                    text = _text(opened, name)
                    if text == VFIO_DEVICE:
                        self._device_fd(f"{folder}info/{name.decode()}", use)
                    # A security module can refuse the file itself, and still show its path.
                    elif text.startswith(b"/dev/") and self._numbers.of(opened, name) is None:
                        raise PermissionError(errno.EACCES, "an open device cannot be looked at")
                elif rdev and (rdev in by_rdev or os.major(rdev) == vfio):
                    self._node(f"{folder}info/{name.decode()}", rdev, use)
        finally:
            os.close(opened)

    def _node(self, info: str, rdev: int, use: ProcessUse) -> None:
        if _is_reference(info):
            return
        targets = self._by_rdev.get(rdev)
        if targets is None:
            use.groups[rdev] = 1
            return
        for target in targets:
            use.grips[target.device].add(Grip.NODE)
            if target.addresses or os.major(rdev) == self._vfio:
                use.groups[target.device] = len(target.addresses) or 1

    def _device_fd(self, info: str, use: ProcessUse) -> None:
        for line in fdinfo(info):
            if line.startswith(_SYSPATH):
                address = PciAddress(line.rpartition(b"/")[2].strip().decode(errors="replace"))
                for device in self._by_address.get(address, ()):
                    use.grips[device].add(Grip.DEVICE_FD)
                return
        use.unnamed.add(Grip.DEVICE_FD)
        use.unnamed_fds += 1

    def _mappings(self, folder: str, pid: int, use: ProcessUse, beat: Callable[[], None]) -> None:
        found = self._mapped.shown_by(folder, pid, beat)
        if found is None:  # the leader has exited, and all threads share one memory
            tasks = (f"{folder}/task/{each}" for each in self._threads(folder, pid))
            shown = (self._mapped.shown_by(each, pid, beat) for each in tasks)
            found = next((each for each in shown if each is not None), None)
        if found is None:
            return
        if found.vfio:
            use.unnamed.add(Grip.MAPPED)
        for rdev in found.rdevs:
            for target in self._by_rdev[rdev]:
                use.grips[target.device].add(Grip.MAPPED)


def _text(folder: int, name: bytes) -> bytes:
    """Return what the link of an open file says; empty if it was closed, or says too much.

    Raise OSError if this process may not know.
    """
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return b""


def _is_reference(info: str) -> bool:
    """Tell whether a file was opened with O_PATH, which the driver never sees."""
    for line in fdinfo(info):
        if line.startswith(b"flags:"):
            digits = line.partition(b":")[2].strip()
            return digits.isdigit() and bool(int(digits, 8) & os.O_PATH)
    return False
