"""Tells whether two threads have one table of open files, without reading what is in it."""

import ctypes
import os

from holdfast.host.root import HostRoot

_KCMP = {"x86_64": 312, "aarch64": 272}
_FILES = 2
_PROC_ROOT = 1
"""The inode of procfs's own root, on every kernel."""


class FileTables:
    """Asks the kernel by kcmp(2), which takes a microsecond where two lists of files take many.

    It waits for a process that is in the middle of execve(2): it can hang.
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
        """Tell whether threads *one* and *other* are known to share a table of open files."""
        return int(self._syscall(self._number, one, other, _FILES, 0, 0)) == 0


def _numbers_are_ours(root: HostRoot) -> bool:
    """Tell whether this is procfs itself, and of our own pid namespace."""
    try:
        own = os.readlink(f"{root.proc}/self")
        return os.stat(root.proc).st_ino == _PROC_ROOT and own == str(os.getpid())
    except OSError:
        return False
