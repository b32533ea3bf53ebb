"""This process itself: the boot it runs in, its memory and its limit of open files."""

import ctypes
import gc
import re
import resource

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_text
from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt(3)."""
_LARGE = 128 << 10
"""Bytes from which on a block is returned to the node when it is freed: glibc's first value."""
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


def keep_freed_memory_small() -> None:
    """Have the C library keep less of what is freed; call it before there are threads.

    glibc has an arena for each thread, and memory that is free in one is of no use to another. And
    after the first large block is freed, it keeps blocks of that size too. Both let the process
    grow for as long as pods come and go, though nothing leaks.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # a C library other than glibc
        return
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_THRESHOLD, _LARGE)


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
