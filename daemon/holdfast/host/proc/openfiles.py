"""The open files of a process."""

import ctypes
import os
import re
from collections.abc import Collection
from itertools import islice

from msgspec import Struct

from holdfast.host.files.kernelfile import link_or_none, stat_or_none
from holdfast.host.root import HostRoot

RING = b"anon_inode:[io_uring]"
"""The kernel's name for the file behind a ring."""

_IN_FLIGHT = b"scm_fds:"
"""The line of a unix socket's fdinfo with how many files are in messages to it (Linux 5.6)."""
_MOST_INFO = 1 << 16
"""So many bytes of an fdinfo file are read. It has a line for each lock that is on the file."""
MOST_FILES = 1 << 16
"""More take longer to look at than any look has time, at some 5 us each, and 50 bytes each here."""
BEAT = 256
"""How many small reads are made between two calls of `beat`."""
_KCMP = {"x86_64": 312, "aarch64": 272}
"""The number of kcmp(2) on each machine."""
_KCMP_FILES = 2
_PROC_ROOT = 1
"""The inode of procfs's own root, on every kernel."""


class TooMuchError(Exception):
    """A process has more than may be read of it now."""


def open_files(folder: str, *, most: int = MOST_FILES) -> list[bytes]:
    """Return the names in an fd folder; raise TooMuchError if there are more than *most*."""
    size = _size(folder)
    if size > most:
        raise TooMuchError
    if size:
        names = os.listdir(folder.encode())
    else:  # before Linux 6.2 nothing tells how long a list will be; this way is slower
        with os.scandir(folder.encode()) as files:
            names = [each.name for each in islice(files, most + 1)]
    if len(names) > most:
        raise TooMuchError
    return names


def has_more(folder: str, listed: Collection[bytes]) -> bool:
    """Tell whether a process has more files open than were *listed* just now, as far as is known.

    A list is made number by number, so it can miss a file that moves from one number to another.
    The count is of one moment. The folder has to be one of procfs.
    """
    return _size(folder) > len(listed)


def _size(folder: str) -> int:
    """Return how many files an fd folder of procfs has: since Linux 6.2, and 0 before."""
    status = os.stat(folder)
    return 0 if status.st_blocks else status.st_size  # that of a folder on a disk is its own size


def fdinfo_field(path: str, name: bytes) -> bytes | None:
    """Return what an fdinfo file says on the line that begins with *name*.

    None without one, if it is behind so many lines of locks that it is not read, or unreadable.
    """
    try:
        return _field(_fdinfo(path), name)
    except OSError:
        return None


def _fdinfo(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_MOST_INFO)
    except (FileNotFoundError, ProcessLookupError):  # closed since
        return b""


def _field(info: bytes, name: bytes) -> bytes | None:
    line = re.search(rb"^%b(.*)\n" % re.escape(name), info, re.MULTILINE)
    return None if line is None else line[1].strip()


class SocketTable(Struct, frozen=True):
    """Open files of which some are unix sockets: by those others can come and go.

    `folder`: where procfs shows them. `files`: how many they were; None: the kernel does not count.
    """

    folder: str
    files: int | None
    sockets: tuple[bytes, ...]

    def has_more(self) -> bool:
        """Tell whether there are more files than there were, or some in messages to a socket."""
        try:
            if self.files is not None and _size(self.folder) > self.files:
                return True
            return any(files_in_flight(self.folder, name) for name in self.sockets)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:  # whoever looks at all of it is told the same
            return True


def files_in_flight(folder: str, name: bytes) -> int | None:
    """Return how many files are in messages that nobody has taken from a socket; None: no socket.

    Only unix sockets count. *folder* is of the open files, *name* the socket's number there. 1
    where so many locks are on the file that this is not read. Raise OSError if it cannot be read.
    """
    info = _fdinfo(f"{folder}info/{name.decode()}")
    count = _field(info, _IN_FLIGHT)
    if count is None:
        return 1 if len(info) == _MOST_INFO else None
    return int(count)


class FileTables:
    """Compares file tables by kcmp(2), in a microsecond, without reading two lists of files.

    It waits for a process that is in the middle of execve(2), so it can hang.
    """

    def __init__(self, root: HostRoot) -> None:
        """Compare threads as *root*'s proc folder numbers them."""
        ours = is_procfs(root) and link_or_none(root.proc / "self") == str(os.getpid())
        self.usable = ours and os.uname().machine in _KCMP
        if self.usable:
            self._syscall = ctypes.CDLL(None, use_errno=False).syscall
            self._number = _KCMP[os.uname().machine]
            # A kernel without it, or a seccomp profile that forbids it.
            self.usable = self.same(os.getpid(), os.getpid())

    def same(self, one: int, other: int) -> bool:
        """Tell whether threads *one* and *other* are known to share their table of open files."""
        return int(self._syscall(self._number, one, other, _KCMP_FILES, 0, 0)) == 0


def is_procfs(root: HostRoot) -> bool:
    """Tell whether *root* has procfs itself."""
    found = stat_or_none(root.proc)
    return found is not None and found.st_ino == _PROC_ROOT
