"""What one process has of given devices, by its open files and its mappings."""

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

from holdfast.host.files.paths import DeviceNumbers
from holdfast.host.proc.mappings import VFIO_DEVICE, MappedDevices
from holdfast.host.proc.openfiles import (
    BEAT,
    MOST_FILES,
    RING,
    FileTables,
    SocketTable,
    fdinfo_field,
    files_in_flight,
    has_more,
    is_procfs,
    open_files,
)
from holdfast.host.proc.procfs import process_at
from holdfast.host.root import HostRoot
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.model.use.holders import DeviceAccess, ScanTarget

_ALONE = 3
"""How many links the task folder has for a process with one thread; one more for each other."""
_TABLES = 4
"""With how many of a process's file tables a thread is compared, before its files are read."""
_WORTH_KEEPING = 64
"""A table with so many files is kept, for others that share it."""
_MOST_RETURNS = 3
"""How often a file is asked for that may be closed and open again by turns."""
_SYSPATH = b"vfio-device-syspath:"
"""The line of fdinfo that names a VFIO device fd's function, since Linux 6.18."""
_MOST_LISTS = 8
"""How often the files of a process are listed that closes some while they are looked at."""
_OF_A_RING = "it has an io_uring, and what that has registered is not read"
_MOST_SOCKETS = 256
"""A table with more unix sockets is not looked at again for what comes and goes by them."""
_PIDFDS = (b"anon_inode:[pidfd]", b"pidfd:")
"""Before Linux 6.9, and since."""


class ProcessUse:
    """What one process has of the targets. `unnamed`: VFIO device fds of an unknown function."""

    def __init__(self) -> None:
        self.access: dict[DeviceName, set[DeviceAccess]] = defaultdict(set)
        self.unnamed: set[DeviceAccess] = set()
        self.unnamed_fds = 0
        self.groups: dict[DeviceName | int, int] = {}
        """How many device fds belong to each target, or other group, whose node is open."""
        self.unseen = ""
        """What of it could not be seen, and why."""
        self.in_flight = False
        """Whether files are in messages to its unix sockets; which files, nobody is told."""
        self.exiting = False
        """Whether its files may be being closed, which it shows no more."""
        self.takes = False
        """Whether it has a pidfd, by which it can take files out of another process."""
        self.tables: list[SocketTable] = []
        """Its open files, where some are unix sockets."""

    def __bool__(self) -> bool:
        return bool(self.access or self.unnamed)

    def add_files(self, other: "ProcessUse") -> None:
        """Add the open files of *other*."""
        for device, access in other.access.items():
            self.access[device] |= access
        self.unnamed |= other.unnamed
        self.unnamed_fds += other.unnamed_fds
        self.groups.update(other.groups)
        self.in_flight |= other.in_flight
        self.takes |= other.takes
        self.unseen = self.unseen or other.unseen

    def attribute(self) -> None:
        """Attribute unnamed device fds to the group nodes that the process has open.

        A group node explains one device fd for each of its functions. What is left over stays
        unnamed: gVisor's leak closes the node and keeps the device fd.
        """
        if not self.unnamed or not self.groups:
            return
        devices = [device for device in self.groups if isinstance(device, DeviceName)]
        if len(devices) == 1:
            self.access[devices[0]] |= self.unnamed
        if self.unnamed_fds <= sum(self.groups.values()):
            self.unnamed.clear()


@dataclass(eq=False)
class AccessSearch:
    """Looks at one process after another for the same targets. Belongs to one thread.

    `vfio` is the major number of VFIO's group nodes, if known. `tables` tells which threads have
    their own file table. `maps`: it looks at mappings too. `hidden`: and for signs of files that no
    process shows.
    """

    root: HostRoot
    targets: Sequence[ScanTarget]
    vfio: int | None
    tables: FileTables
    _: KW_ONLY
    maps: bool
    hidden: bool

    def __post_init__(self) -> None:
        self._proc = str(self.root.proc)
        self._counts = is_procfs(self.root)
        self._numbers = DeviceNumbers()
        self._read: dict[int, tuple[int, ProcessUse]] = {}
        self._by_rdev: dict[int, list[ScanTarget]] = defaultdict(list)
        self._by_address: dict[PciAddress, list[DeviceName]] = defaultdict(list)
        self._mapped = MappedDevices(self.root, self._numbers, self._by_rdev.keys())
        for target in self.targets:
            for rdev in target.rdevs:
                self._by_rdev[rdev].append(target)
            for address in target.addresses:
                self._by_address[address].append(target.device)

    @property
    def unexplained(self) -> list[str]:
        """Return the mappings of removed files that might have been a target, as texts."""
        return self._mapped.unexplained

    def at(
        self,
        pid: int,
        *,
        careful: bool = False,
        beat: Callable[[], None] = lambda: None,
        most: int = MOST_FILES,
    ) -> ProcessUse:
        """Return what *pid* has. Raise OSError if it is gone or cannot be looked at.

        *careful*: read nothing that can hang. *beat* is called every few reads. Raise TooMuchError
        if it has more than *most* files open.
        """
        use = ProcessUse()
        folder = f"{self._proc}/{pid}"
        shared = None if careful else self._of_same_table(pid)
        if shared is not None:
            use.add_files(shared)
            exited = False
        else:
            names = self._files(f"{folder}/fd", use, beat, most=most)
            self._note_exit(folder, pid, names, use)
            exited = not names
            if len(names) >= _WORTH_KEEPING:
                self._keep(pid, use)
        self._other_tables(folder, pid, use, compare=not careful, exited=exited, beat=beat)
        if self.maps and careful:
            use.unseen = "what it has mapped could not be read in time"  # to read that could hang
        elif self.maps:
            self._mappings(folder, pid, use, beat)
        use.attribute()
        return use

    @contextmanager
    def following(self, pid: int) -> Iterator[Callable[[], bool]]:
        """Yield what tells whether *pid* is still the same process; raise OSError if it is gone."""
        # Kept open: of one that nobody has open, procfs makes another when memory is short, with
        # another inode, and the process would seem to have ended.
        kept = os.open(f"{self._proc}/{pid}", os.O_PATH)
        try:
            inode = os.fstat(kept).st_ino
            yield lambda: self._folder(pid) == inode
        finally:
            os.close(kept)

    def _keep(self, pid: int, use: ProcessUse) -> None:
        """Keep the open files of *pid*: others may share its table, as all of a gVisor sandbox."""
        inode = self._folder(pid)
        if inode is None:
            return
        if pid not in self._read and len(self._read) >= _TABLES:
            del self._read[next(iter(self._read))]
        kept = ProcessUse()
        kept.add_files(use)
        self._read[pid] = inode, kept

    def _of_same_table(self, pid: int) -> ProcessUse | None:
        """Return what was read of another process, if *pid* has the same table of open files.

        Tables are shared from a process's birth on, so what is said of one is said of both.
        """
        if not self.tables.usable:
            return None
        for other, (inode, use) in self._read.items():
            # In this order: a pid that went to another process meanwhile has another inode.
            same = other != pid and self.tables.same(other, pid)
            # Two that have closed all of their files in their exit have the same table: none.
            if same and self._folder(other) == inode and self._has_files(pid):
                return use
        return None

    def _has_files(self, pid: int) -> bool:
        try:
            with os.scandir(f"{self._proc}/{pid}/fd") as files:
                return next(files, None) is not None
        except OSError:
            return False

    def _folder(self, pid: int) -> int | None:
        """Return the inode that procfs made for the process: no other has it. None: it is gone."""
        try:
            return os.stat(f"{self._proc}/{pid}").st_ino
        except (FileNotFoundError, ProcessLookupError):
            return None

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
        cannot be compared, each thread's files are read: equal file numbers prove nothing. A thread
        that ends may have handed its table on to one that was born since the list was made.
        """
        compare = compare and self.tables.usable
        known = [] if exited else [pid]
        looked_at: set[int] = set()
        for _ in range(_MOST_LISTS):
            new = [each for each in self._threads(folder, pid) if each not in looked_at]
            looked_at.update(new)
            ended = False
            for thread in new:
                beat()
                if compare and any(self.tables.same(each, thread) for each in known):
                    continue
                if not self._has_table(f"{folder}/task/{thread}", thread, use, beat):
                    ended = True
                elif len(known) < _TABLES:
                    known.append(thread)
            if not ended:
                return
        use.unseen = "its threads come and go faster than they can be looked at"

    def _has_table(
        self, folder: str, thread: int, use: ProcessUse, beat: Callable[[], None]
    ) -> bool:
        """Look at the files of one thread; return whether it had any."""
        try:
            names = self._files(f"{folder}/fd", use, beat)
        except (FileNotFoundError, ProcessLookupError):  # it has ended, and the others have not
            return False
        self._note_exit(folder, thread, names, use)
        return bool(names)

    def _note_exit(self, folder: str, pid: int, names: Collection[bytes], use: ProcessUse) -> None:
        """Note that a process or thread exits and shows no files: one can take long to close."""
        if self.hidden and not names:
            facts = process_at(folder, pid)
            use.exiting |= facts is not None and facts.exiting and not facts.kernel_thread

    def _threads(self, folder: str, pid: int) -> list[int]:
        """Return the process's threads except its leader."""
        try:
            if self.tables.usable and os.stat(f"{folder}/task").st_nlink == _ALONE:
                return []
            return [int(each) for each in os.listdir(f"{folder}/task") if each != str(pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def _files(
        self, folder: str, use: ProcessUse, beat: Callable[[], None], *, most: int = MOST_FILES
    ) -> list[bytes]:
        """Look at all open files, and return those that were there at first.

        A file that is moved from number to number is in no list, or is closed when it is looked at.
        So a list counts if the kernel then counted no more files and none of it was closed before
        it was looked at; if either was so, it takes two such lists in a row.
        """
        first = listed = names = open_files(folder, most=most)
        sockets: list[bytes] = []
        quiet = 1
        for _ in range(_MOST_LISTS):
            moves = self._counts and has_more(folder, listed)
            moves |= bool(names) and self._some_vanished(folder, names, use, sockets, beat)
            quiet = 2 if moves else quiet - 1
            if not quiet:
                if 0 < len(sockets) <= _MOST_SOCKETS:
                    count = len(listed) if self._counts else None
                    use.tables.append(SocketTable(folder, count, tuple(sockets)))
                return first
            listed = open_files(folder)
            names = list(set(listed).difference(names))
        use.unseen = "it opens and closes files faster than they can be looked at"
        return first

    def _some_vanished(
        self,
        folder: str,
        names: Collection[bytes],
        use: ProcessUse,
        sockets: list[bytes],
        beat: Callable[[], None],
    ) -> bool:
        """Look at the open files *names*; return whether some were closed before.

        Add those that are unix sockets to *sockets*.
        """
        number, by_rdev, vfio = self._numbers.of_open_file, self._by_rdev, self.vfio
        hidden = self.hidden
        vanished = False
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for place, name in enumerate(names):
                if not place % BEAT:
                    beat()
                rdev = number(opened, name)
                if rdev is None:
                    vanished |= not self._by_text(opened, name, folder, use)
                elif rdev and (rdev in by_rdev or os.major(rdev) == vfio):
                    self._node(opened, name, folder, rdev, use)
                elif hidden and not rdev and self._numbers.shows_socket:
                    count = files_in_flight(folder, name)
                    if count is not None:
                        use.in_flight |= count > 0
                        sockets.append(name)
        finally:
            os.close(opened)
        return vanished

    def _by_text(self, opened: int, name: bytes, folder: str, use: ProcessUse) -> bool:
        """Look at an open file of which only the text of its link tells; return if it is open."""
        text = _text(opened, name)
        if text is None:
            return False
        if text == VFIO_DEVICE:
            self._device_fd(f"{folder}info/{name.decode()}", use)
        elif text == RING:
            self._note_ring(use)
        elif text.startswith(_PIDFDS):
            use.takes = self.hidden
        elif text.startswith(b"/"):
            # It was closed when its number was asked for, and is back now: not looked at yet.
            for _ in range(_MOST_RETURNS):
                if self._numbers.of_open_file(opened, name) is not None or not _text(opened, name):
                    return False
            # A security module can refuse the file itself, and still show its path.
            if text.startswith(b"/dev/"):
                raise PermissionError(errno.EACCES, "an open device cannot be looked at")
        return True

    def _note_ring(self, use: ProcessUse) -> None:
        """Note that it has an io_uring, whose files need no number and are not read.

        The kernel writes the whole of its fdinfo at once, in memory that counts as the reader's,
        since Linux 6.13 with the path of each file: that can be hundreds of megabytes.
        """
        if self.hidden:
            use.unseen = use.unseen or _OF_A_RING

    def _node(self, opened: int, name: bytes, folder: str, rdev: int, use: ProcessUse) -> None:
        if _is_reference(opened, name, folder):
            return
        targets = self._by_rdev.get(rdev)
        if targets is None:
            use.groups[rdev] = 1
            return
        for target in targets:
            use.access[target.device].add(DeviceAccess.NODE)
            if target.addresses or os.major(rdev) == self.vfio:
                use.groups[target.device] = len(target.addresses) or 1

    def _device_fd(self, info: str, use: ProcessUse) -> None:
        path = fdinfo_field(info, _SYSPATH)
        if path is not None:
            address = PciAddress(path.rpartition(b"/")[2].decode(errors="replace"))
            for device in self._by_address.get(address, ()):
                use.access[device].add(DeviceAccess.DEVICE_FD)
            return
        use.unnamed.add(DeviceAccess.DEVICE_FD)
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
            use.unnamed.add(DeviceAccess.MAPPED)
        if found.ring:
            self._note_ring(use)
        for rdev in found.rdevs:
            for target in self._by_rdev[rdev]:
                use.access[target.device].add(DeviceAccess.MAPPED)


def _text(folder: int, name: bytes) -> bytes | None:
    """Return what the link of an open file says; empty if it says too much, None if it was closed.

    Raise OSError if this process may not know.
    """
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return b""


def _is_reference(opened: int, name: bytes, folder: str) -> bool:
    """Tell whether a file was opened with O_PATH, which the driver never sees.

    What is open for reading or writing shows that in the mode of its link. Only of what is neither,
    and can have no locks, fdinfo is read: the kernel makes it whole, with a line for each lock, in
    memory that counts as the reader's.
    """
    try:
        if os.lstat(name, dir_fd=opened).st_mode & (stat.S_IRUSR | stat.S_IWUSR):
            return False
    except OSError:  # closed since
        return False
    digits = fdinfo_field(f"{folder}info/{name.decode()}", b"flags:") or b""
    return digits.isdigit() and bool(int(digits, 8) & os.O_PATH)
