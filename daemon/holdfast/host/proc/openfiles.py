"""The open files of a process, and whether two threads share one table of them."""

import ctypes
import os
from collections.abc import Callable, Iterator

from msgspec import Struct

from holdfast.host.root import HostRoot

_A_LOT = 1 << 14
"""More open files than this are kept as bits, not as names."""
BEAT = 256
"""How many small reads are made between two calls of `beat`."""
_KCMP = {"x86_64": 312, "aarch64": 272}
"""The number of kcmp(2) on each machine."""
_KCMP_FILES = 2
_PROC_ROOT = 1
"""The inode of procfs's own root, on every kernel."""


class Many(Struct, frozen=True):
    """The numbers of a process's open files, one bit each. A million names would take 50 MiB."""

    bits: bytes

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __iter__(self) -> Iterator[bytes]:
        for byte, bits in enumerate(self.bits):
            for bit in range(8):
                if bits >> bit & 1:
                    yield b"%d" % (8 * byte + bit)


def _many(folder: str, beat: Callable[[], None]) -> Many:
    bits = bytearray()
    with os.scandir(folder.encode()) as files:
        for place, file in enumerate(files):
            if not place % BEAT:
                beat()
            byte, bit = divmod(int(file.name), 8)
            bits.extend(bytes(max(0, byte + 1 - len(bits))))
            bits[byte] |= 1 << bit
    return Many(bytes(bits))


def open_files(folder: str, beat: Callable[[], None] = lambda: None) -> list[bytes] | Many:
    """Return the names in an fd folder; of very many, *beat* is called every few."""
    # The size tells how many there are since Linux 6.2, and is 0 before.
    if os.stat(folder).st_size > _A_LOT:
        return _many(folder, beat)
    return os.listdir(folder.encode())


def fdinfo(path: str) -> list[bytes]:
    """Return the lines of an fdinfo file; none if it is gone or cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().splitlines()
    except OSError:
        return []


class FileTables:
    """Compares file tables by kcmp(2), in a microsecond, without reading two lists of files.

    It waits for a process that is in the middle of execve(2), so it can hang.
    """

    def __init__(self, root: HostRoot) -> None:
        """Compare threads as *root*'s proc folder numbers them."""
        self.usable = _numbers_are_ours(root) and os.uname().machine in _KCMP
        if self.usable:
            self._syscall = ctypes.CDLL(None, use_errno=False).syscall
            self._number = _KCMP[os.uname().machine]
            # A kernel without it, or a seccomp profile that forbids it.
            self.usable = self.same(os.getpid(), os.getpid())

    def same(self, one: int, other: int) -> bool:
        """Tell whether threads *one* and *other* are known to share their table of open files."""
        return int(self._syscall(self._number, one, other, _KCMP_FILES, 0, 0)) == 0


def _numbers_are_ours(root: HostRoot) -> bool:
    """Tell whether *root* has procfs itself, with the pids of our own namespace."""
    try:
        own = os.readlink(f"{root.proc}/self")
        return os.stat(root.proc).st_ino == _PROC_ROOT and own == str(os.getpid())
    except OSError:
        return False
