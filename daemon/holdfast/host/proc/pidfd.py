"""Processes by pidfd: their exit, signals that reach no other, and who is behind a unix socket."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.proc.procfs import Procfs
from holdfast.model.ids import ProcessId

_CREDENTIALS = struct.Struct("3i")
_PATIENCE = 1.0
"""How long a socket may take to be connected to, in seconds."""


class Pidfds:
    """Open pidfds, each checked against the start time of its process."""

    def __init__(self, procfs: Procfs) -> None:
        """Check start times through *procfs*."""
        self._procfs = procfs
        self._watched: dict[ProcessId, int] = {}
        self._held: dict[ProcessId, list[int]] = defaultdict(list)

    @property
    def watched(self) -> frozenset[ProcessId]:
        """Return the processes whose exit is watched."""
        return frozenset(self._watched)

    def watch(self, process: ProcessId, exited: Callable[[ProcessId], None]) -> bool:
        """Call *exited* on the loop once, when all threads of the process are gone.

        Return False if it is gone already; *exited* is then not called. Raise HostError if the
        kernel gives no pidfd, or does not tell which process it is of.
        """
        if process in self._watched:
            return True
        fd = self._open(process)
        if fd is None:
            return False
        self._watched[process] = fd

        def readable() -> None:
            self.unwatch(process)
            exited(process)

        asyncio.get_running_loop().add_reader(fd, readable)
        return True

    def unwatch(self, process: ProcessId) -> None:
        """Stop watching the exit of a process."""
        fd = self._watched.pop(process, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    @contextlib.contextmanager
    def holding(self, processes: Iterable[ProcessId]) -> Iterator[frozenset[ProcessId]]:
        """Hold *processes* for `send` meanwhile; yield those that are not gone.

        Several callers may hold one process. Raise HostError if the kernel gives no pidfd.
        """
        held: list[ProcessId] = []
        try:
            held.extend(each for each in processes if self._hold(each))
            yield frozenset(held)
        finally:
            for each in held:
                self._release(each)

    def _hold(self, process: ProcessId) -> bool:
        fd = self._open(process)
        if fd is not None:
            self._held[process].append(fd)
        return fd is not None

    def _release(self, process: ProcessId) -> None:
        os.close(self._held[process].pop())
        if not self._held[process]:
            del self._held[process]

    def send(self, process: ProcessId, number: signal.Signals) -> str:
        """Signal a held process; return ``sent``, ``gone``, or ``refused``.

        Raise HostError for a process that is not held: its pid alone could be another's now.
        """
        held = self._held.get(process)
        if held is None:
            raise HostError(f"cannot signal pid {process}: no pidfd of it is held")
        try:
            signal.pidfd_send_signal(held[0], number)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            return "refused"
        return "sent"

    def close(self) -> None:
        """Stop watching all."""
        for process in list(self._watched):
            self.unwatch(process)

    def _open(self, process: ProcessId) -> int | None:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError as error:
            # The id of a thread, not of a process: EINVAL, since Linux 6.9 ENOENT.
            if error.errno in {errno.ESRCH, errno.EINVAL, errno.ENOENT}:
                return None
            raise HostError(f"cannot open a pidfd of {process.pid}: {error.strerror}") from error
        # From now on the pid cannot be given to another process.
        try:
            gone = self._procfs.has_ended(process)
        except HostError:
            os.close(fd)
            raise
        if gone:
            os.close(fd)
            return None
        return fd


def listener(path: Path) -> int:
    """Return the pid that listens on the socket at *path*; raise OSError if nobody answers.

    The kernel fixes the credentials at listen(), so a connection is enough and nothing is sent.
    0 stands for a process outside our pid namespace.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return int(pid)


def peer_of(path: Path, procfs: Procfs) -> ProcessId | None:
    """Return the process that listens on the socket at *path*; None if nobody answers.

    None also for a process that cannot be seen from here.
    """
    try:
        pid = listener(path)
    except OSError:
        return None
    ticks = procfs.start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)
