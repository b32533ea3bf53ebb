"""Reads a file through descriptors of its own: as the kernel caches it, and as the disk has it."""

import errno
import hashlib
import mmap
import os
from pathlib import Path

_CHUNK = 1 << 16
"""Bytes of one read. A direct read asks for whole blocks in memory that begins at a page."""


def cached(path: Path) -> bytes:
    """Return a digest of what the kernel shows of a file; raises OSError."""
    return _digest(path, os.O_RDONLY)


def stored(path: Path) -> bytes | None:
    """Return a digest of what the disk has of a file; raises OSError.

    None where the file system reads nothing past its cache, such as a tmpfs. What the disk itself
    has only in a cache of its own cannot be told from what it has stored.
    """
    try:
        return _digest(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return None
        raise


def _digest(path: Path, flags: int) -> bytes:
    digest, offset = hashlib.blake2b(digest_size=16), 0
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, _CHUNK) as chunk:
            while count := os.preadv(fd, [chunk], offset):
                digest.update(chunk[:count])
                offset += count
    finally:
        os.close(fd)
    return digest.digest()
