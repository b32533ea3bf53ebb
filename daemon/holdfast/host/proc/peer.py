"""Who is behind a unix socket, by the kernel's word."""

import socket
import struct
from pathlib import Path

from holdfast.host.proc.procfs import Procfs
from holdfast.model.ids import ProcessId

_CREDENTIALS = struct.Struct("3i")


def listener(path: Path, *, patience: float = 1.0) -> int:
    """Return the pid of who listens on the socket at *path*; raise OSError when nobody answers.

    The kernel fixes the credentials at listen(), so a connection is enough and nothing is sent.
    0 stands for a process outside of our pid namespace. *patience* is in seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        connection.connect(str(path))
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return int(pid)


def peer_of(path: Path, procfs: Procfs, *, patience: float = 1.0) -> ProcessId | None:
    """Return the process that listens on the socket at *path*; None when nobody answers.

    None, too, for a process that cannot be seen from here. *patience* is in seconds.
    """
    try:
        pid = listener(path, patience=patience)
    except OSError:
        return None
    ticks = procfs.start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)
