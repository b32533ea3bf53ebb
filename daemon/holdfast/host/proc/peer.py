"""Which process is behind a unix socket or a locked file, as the kernel tells it."""

import os
import socket
import struct
from pathlib import Path

from holdfast.host.proc.procfs import Procfs
from holdfast.model.ids import ProcessId

_CREDENTIALS = struct.Struct("3i")


def listener(path: Path, *, patience: float = 1.0) -> int:
    """Return the pid that listens on the socket at *path*; raise OSError if nobody answers.

    The kernel fixes the credentials at listen(), so a connection is enough and nothing is sent.
    0 stands for a process outside our pid namespace. *patience* is in seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        connection.connect(str(path))
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return int(pid)


def peer_of(path: Path, procfs: Procfs, *, patience: float = 1.0) -> ProcessId | None:
    """Return the process that listens on the socket at *path*; None if nobody answers.

    None also for a process that cannot be seen from here. *patience* is in seconds.
    """
    try:
        pid = listener(path, patience=patience)
    except OSError:
        return None
    ticks = procfs.start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)


def lock_holder(procfs: Procfs, lock: Path) -> int | None:
    """Return the pid that holds *lock* by flock(2), from the kernel's list of locks.

    Taking the lock to find out would change something. None if nobody holds it, or if the kernel
    lists the file under another number. 0 stands for a process outside our pid namespace.
    """
    try:
        found = lock.stat()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return procfs.flock_holder(device)
