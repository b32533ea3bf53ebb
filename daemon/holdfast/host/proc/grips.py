"""What one process has of given devices, from its open files and its mappings."""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence

from holdfast.host.files.statx import DeviceNumbers
from holdfast.host.proc.filetables import FileTables
from holdfast.host.proc.inparts import BEAT, Many, fdinfo, open_files
from holdfast.host.proc.mapped import MappedDevices
from holdfast.host.proc.mappings import VFIO_DEVICE
from holdfast.host.root import HostRoot
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.model.use.use import Grip, ScanTarget

_SLASH = ord("/")
_ALONE = 3
"""How many links the task folder of a process with one thread has: one more for each other."""
_TABLES = 4
"""With so many file tables of one process a thread is compared; any other is read."""
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
        self.maps_left_out = False
        """Its mappings were asked for, and reading them could hang."""

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
        self,
        root: HostRoot,
        targets: Sequence[ScanTarget],
        vfio: int | None,
        tables: FileTables,
        *,
        maps: bool,
    ) -> None:
        """Look below *root*; *vfio* is the major number of VFIO's group nodes, where known.

        *tables* tells which threads have a file table of their own; *maps*: look at mappings too.
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
    def riddles(self) -> list[str]:
        """Return mappings of something that is gone and might have been a target, for people."""
        return self._mapped.riddles

    def at(
        self, pid: int, *, careful: bool = False, beat: Callable[[], None] = lambda: None
    ) -> Grasp:
        """Return what *pid* has. Raise OSError where it cannot be looked at, or is gone.

        *careful*: read nothing that can hang. *beat* is called every few reads.
        """
        grasp = Grasp()
        folder = f"{self._proc}/{pid}"
        names = open_files(f"{folder}/fd", beat)
        self._files(f"{folder}/fd", names, grasp, beat)
        self._other_tables(folder, pid, grasp, compare=not careful, exited=not names, beat=beat)
        if self._maps and careful:
            grasp.maps_left_out = True
        elif self._maps:
            self._mappings(folder, pid, grasp, beat)
        grasp.attribute()
        return grasp

    def _other_tables(
        self,
        folder: str,
        pid: int,
        grasp: Grasp,
        *,
        compare: bool,
        exited: bool,
        beat: Callable[[], None],
    ) -> None:
        """Look at the files of threads that do not share the leader's table.

        A leader that has exited shows nothing, while its threads have everything still. Where
        tables cannot be compared each thread's files are read: the same numbers prove nothing.
        """
        compare = compare and self._tables.usable
        known = [] if exited else [pid]
        for thread in self._threads(folder, pid):
            beat()
            if compare and any(self._tables.same(each, thread) for each in known):
                continue
            try:
                names = open_files(f"{folder}/task/{thread}/fd", beat)
                self._files(f"{folder}/task/{thread}/fd", names, grasp, beat)
            except (FileNotFoundError, ProcessLookupError):  # this thread alone has ended
                continue
            if len(known) < _TABLES:
                known.append(thread)

    def _threads(self, folder: str, pid: int) -> list[int]:
        """Return the process's threads but its leader."""
        try:
            if self._tables.usable and os.stat(f"{folder}/task").st_nlink == _ALONE:
                return []
            return [int(each) for each in os.listdir(f"{folder}/task") if each != str(pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def _files(
        self, folder: str, names: "list[bytes] | Many", grasp: Grasp, beat: Callable[[], None]
    ) -> None:
        if not names:
            return
        readlink, number, by_rdev, vfio = os.readlink, self._numbers.of, self._by_rdev, self._vfio
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for place, name in enumerate(names):
                if not place % BEAT:
                    beat()
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
        for line in fdinfo(info):
            if line.startswith(_SYSPATH):
                address = PciAddress(line.rpartition(b"/")[2].strip().decode(errors="replace"))
                for device in self._by_address.get(address, ()):
                    grasp.grips[device].add(Grip.DEVICE_FD)
                return
        grasp.loose.add(Grip.DEVICE_FD)
        grasp.loose_fds += 1

    def _mappings(self, folder: str, pid: int, grasp: Grasp, beat: Callable[[], None]) -> None:
        found = self._mapped.shown_by(folder, pid, beat)
        if found is None:  # the leader has exited, and all threads share one memory
            tasks = (f"{folder}/task/{each}" for each in self._threads(folder, pid))
            shown = (self._mapped.shown_by(each, pid, beat) for each in tasks)
            found = next((each for each in shown if each is not None), None)
        if found is None:
            return
        if found.vfio:
            grasp.loose.add(Grip.MAPPED)
        for rdev in found.rdevs:
            for target in self._by_rdev[rdev]:
                grasp.grips[target.device].add(Grip.MAPPED)


def _is_reference(info: str) -> bool:
    """Tell whether a file was opened with O_PATH: the driver never hears of that."""
    for line in fdinfo(info):
        if line.startswith(b"flags:"):
            digits = line.partition(b":")[2].strip()
            return digits.isdigit() and bool(int(digits, 8) & os.O_PATH)
    return False
