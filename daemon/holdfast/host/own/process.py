"""This process itself: the boot it runs in, its memory and its limit of open files."""

import ctypes
import gc
import re
import resource

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_text
from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId

_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def boot_id(root: HostRoot) -> BootId:
    """Return the random id that the kernel gave this boot; raise HostError if it has none.

    Without it, a lock of this boot and a lock of an earlier boot look the same. So nothing is
    guessed.
    """
    path = root.proc / "sys/kernel/random/boot_id"
    text = read_text(path)
    if text is None or not _BOOT_ID.fullmatch(text):
        seen = "it is missing" if text is None else f"it says {text[:40]!r}"
        raise HostError(f"cannot read the boot id from {path}: {seen}; mount the host's /proc")
    return BootId(text)


def give_back_memory() -> None:
    """Collect garbage, and have the C library return its free pages to the node.

    The C library keeps freed memory for later, and the cgroup counts it as used. This takes tens
    of milliseconds: run it on a lane, and rarely.
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # a C library other than glibc
        return
    trim(0)


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    Each followed process, watched file and call from kubelet is an open file. systemd's default
    soft limit of 1024 is meant for programs that use select(2), which this one does not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
