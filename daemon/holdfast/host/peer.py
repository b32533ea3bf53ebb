"""Who is behind a unix socket, by the kernel's word."""

import socket
import struct
from pathlib import Path

from holdfast.host.procfs import Procfs
from holdfast.model.ids import ProcessId

_CREDENTIALS = struct.Struct("3i")


def peer_of(path: Path, procfs: Procfs, *, patience: float = 1.0) -> ProcessId | None:
    """Return the process that listens on the socket at *path*; None when nobody answers.

    The kernel fixes the credentials at listen(), so a connection is enough and nothing is sent.
    *patience* is in seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        try:
            connection.connect(str(path))
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid, _, _ = _CREDENTIALS.unpack(raw)
    ticks = procfs.start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)
