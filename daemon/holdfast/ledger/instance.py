"""Keeps a second daemon out, by locks that the kernel frees when their process ends."""

import fcntl
import os
from abc import ABC, abstractmethod
from pathlib import Path

from holdfast.errors import HostError, LedgerUnusableError, SecondDaemonError
from holdfast.host.files.kernelfile import seen
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.ledger.disk import LOCK, identity


class _Lock(ABC):
    """A flock(2) on what lies at a path; `keep` takes it again when something else lies there."""

    _vital = True
    """Whether the daemon must not run where the file system knows no such locks."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the lock; *what* names in a refusal what one daemon alone may have."""
        self._path = path
        self._what = what
        self._fd: int | None = None
        self.problem = ""
        """Why there is no lock though there is something to lock; empty for no reason."""
        self.keep()

    def keep(self) -> None:
        """Have the lock of what lies at the path now, and of nothing else.

        Raises SecondDaemonError when another process has it, LedgerUnusableError when the path
        cannot be used.
        """
        if self._fd is not None and self._is_there(self._fd):
            return
        fd = self._open()
        if fd is None:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise SecondDaemonError(self._refusal()) from error
        except OSError as error:
            os.close(fd)
            self.problem = f"cannot lock {self._what}: {error.strerror}"
            if self._vital:
                raise LedgerUnusableError(self.problem) from error
            return
        self.close()
        self._fd, self.problem = fd, ""

    def _is_there(self, fd: int) -> bool:
        """Tell whether what is open as *fd* is at the path; it is unless that shows otherwise."""
        try:
            found = seen(self._path)
        except HostError:  # taken once more, the lock would be in its own way
            return True
        return found is not None and identity(found) == identity(os.fstat(fd))

    def close(self) -> None:
        """Give the lock back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @abstractmethod
    def _open(self) -> int | None:
        """Open what is to be locked; None when there is nothing to lock yet."""

    def _refusal(self) -> str:
        # The kernel's own list, whatever tree of files the node is read from.
        pid = Procfs(HostRoot.under()).flock_holder(self._path)
        who = f" (pid {pid})" if pid else ""
        return (
            f"cannot use {self._what}: another holdfast is running on it{who}. Stop that one, or "
            "start this one when it has ended"
        )


class InstanceLock(_Lock):
    """The lock of the state folder: two daemons must never write one ledger."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of *folder*, creating it; raises LedgerUnusableError when it is taken."""
        super().__init__(folder / LOCK, f"the state folder {folder}")

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnusableError(f"cannot use {self._what}: {error.strerror}") from error


class PluginFolderLock(_Lock):
    """The lock of a folder for plugins' sockets: two daemons must never serve one kubelet.

    It is the folder itself that is locked, for kubelet removes files from it when it starts. While
    there is no folder there is no lock, nor a kubelet to serve; `keep` takes it later.
    """

    _vital = False

    def __init__(self, folder: Path, *, what: str = "kubelet's plugin folder") -> None:
        """Take the lock of *folder* if it is there; raises SecondDaemonError when it is taken."""
        super().__init__(folder, f"{what} {folder}")

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
