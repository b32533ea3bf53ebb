"""Reads and writes the small text files of the kernel's own filesystems."""

import errno
import os
from pathlib import Path

from holdfast.errors import HostError

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.ENXIO})
"""What the kernel says of a file whose process or device is gone, or that it never had."""

_SMALL = 65536


def read_text(path: str | Path) -> str | None:
    """Return what *path* says, without white space at the ends; None when there is no such file.

    Raise HostError where it exists and cannot be read.
    """
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace").strip()


def read_bytes(path: str | Path, *, most: int | None = None) -> bytes | None:
    """Return the whole of *path*, or None when there is no such file; *most* bytes at the most.

    Raise HostError where it exists and cannot be read.
    """
    # Opened bare: a buffered text file costs three times as much, and the scan reads thousands.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            content = part = os.read(fd, _SMALL)
            while part and (most is None or len(content) < most):
                part = os.read(fd, _SMALL)
                content += part
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise HostError(f"cannot read {path}: {error.strerror}") from error
    return content[:most]


def read_link(path: str | Path) -> str | None:
    """Return the text of the link *path*, or None where there is none.

    Raise HostError where it exists and cannot be read.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _ABSENT or error.errno == errno.EINVAL:
            return None
        raise HostError(f"cannot read link {path}: {error.strerror}") from error


def list_names(path: str | Path) -> tuple[str, ...]:
    """Return the names in the folder *path*, in order; none where there is no such folder.

    Raise HostError where it exists and cannot be read.
    """
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError as error:
        if error.errno in _ABSENT:
            return ()
        raise HostError(f"cannot list {path}: {error.strerror}") from error
