"""What Python has no functions for: own namespaces, mounts, and the errors of the C library's calls."""

import ctypes
import os
import signal
from pathlib import Path

READ_ONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, RECURSIVE = 1, 2, 4, 8, 32, 4096, 16384
PRIVATE, SLAVE, SHARED = 1 << 18, 1 << 19, 1 << 20
NEW_MOUNTS, NEW_CGROUP, NEW_UTS = 0x00020000, 0x02000000, 0x04000000
NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x08000000, 0x20000000, 0x40000000
_DEATH_SIGNAL = 1

libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces that *flags* say; that of pids is for the children alone."""
    check(libc.unshare(flags), "unshare")


def stay_outside() -> None:
    """Return in a child, the first process of its pid namespace.

    This process waits for its end, passes SIGTERM on to it, and has its exit status.
    """
    child = os.fork()
    if not child:
        check(libc.prctl(_DEATH_SIGNAL, signal.SIGKILL), "set the death signal")
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def mount(
    source: Path | str, target: Path | str, kind: str = "", *, flags: int = 0, options: str = ""
) -> None:
    """Do what mount(2) does."""
    done = libc.mount(
        *(str(source).encode(), str(target).encode(), kind.encode() or None),
        *(ctypes.c_ulong(flags), options.encode() or None),
    )
    check(done, f"mount {source} at {target}")


def check(result: int, what: str) -> None:
    """Raise OSError with the error of libc's last call if its *result* says that it failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot {what}: {os.strerror(error)}")
