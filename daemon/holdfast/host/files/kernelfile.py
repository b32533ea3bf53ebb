"""Reads small text files, folders and nodes, and tells what is absent from what cannot be seen."""

import errno
import os
import re
import stat
from pathlib import Path

from holdfast.errors import HostError

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.ENXIO})
"""The errors for a file whose process or device is gone, or that never existed."""

_NUMBER = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_SMALL = 65536


def read_text(path: str | Path) -> str | None:
    """Return the text of *path* without white space at the ends; None if there is no such file.

    Raise HostError if it exists and cannot be read.
    """
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace").strip()


def text_or_empty(path: str | Path) -> str:
    """Return the text of *path* as `read_text` does; empty if it is absent or cannot be read."""
    try:
        return read_text(path) or ""
    except HostError:
        return ""


def field_of(text: str, name: str) -> str:
    r"""Return the value on the line ``name: value`` or ``name value``; empty if there is none.

    >>> field_of("Name:\tcat\nVmRSS:\t  1024 kB\n", "VmRSS")
    '1024 kB'
    """
    match = re.search(rf"^{name}[: ](.*)$", text, re.MULTILINE)
    return "" if match is None else match[1].strip()


def read_bytes(path: str | Path, *, most: int | None = None) -> bytes | None:
    """Return the content of *path*, up to *most* bytes; None if there is no such file.

    Raise HostError if it exists and cannot be read.
    """
    # A buffered text file costs three times as much, and a scan reads thousands of files.
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
    """Return the text of the link *path*, or None if there is none, or more than the kernel tells.

    Raise HostError if it exists and cannot be read.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _ABSENT | {errno.EINVAL, errno.ENAMETOOLONG}:
            return None
        raise HostError(f"cannot read link {path}: {error.strerror}") from error


def link_or_none(path: str | Path) -> str | None:
    """Return the text of the link *path*; None if there is none or it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def list_names(path: str | Path) -> tuple[str, ...]:
    """Return the sorted names in the folder *path*; none if there is no such folder.

    Raise HostError if it exists and cannot be read.
    """
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError as error:
        if error.errno in _ABSENT:
            return ()
        raise HostError(f"cannot list {path}: {error.strerror}") from error


def names_or_empty(path: str | Path) -> tuple[str, ...]:
    """Return the sorted names in the folder *path*; none if it is absent or cannot be read."""
    try:
        return list_names(path)
    except HostError:
        return ()


def seen(path: str | Path, *, follow: bool = True) -> os.stat_result | None:
    """Return what stat(2) tells of *path*, or of the link there; None if there is none.

    Raise HostError if that cannot be told. Path.exists and its like say no then, since Python 3.14.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise HostError(f"cannot look at {path}: {error.strerror}") from error
    except ValueError:  # it has a character that no path has
        return None


def is_folder(path: str | Path) -> bool:
    """Tell whether there is a folder at *path*; raise HostError if that cannot be told."""
    found = seen(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: str | Path) -> bool:
    """Tell whether there is a regular file at *path*; raise HostError if that cannot be told."""
    found = seen(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def stat_or_none(path: str | Path) -> os.stat_result | None:
    """Return what stat(2) tells of *path*; None if it cannot be looked at."""
    try:
        return os.stat(path)
    except (OSError, ValueError):  # it has a character that no path has
        return None


def device_number(path: str | Path) -> int | None:
    """Return the number of the character device *path*; None if there is none to be seen."""
    found = stat_or_none(path)
    return found.st_rdev if found is not None and stat.S_ISCHR(found.st_mode) else None


def file_identity(path: str | Path) -> tuple[int, int] | None:
    """Return the filesystem and the inode of the file at *path*; None if none can be seen."""
    found = stat_or_none(path)
    return None if found is None else (found.st_dev, found.st_ino)


def rdev_in(path: str | Path) -> int | None:
    """Return the device number that a file of sysfs has as ``MAJOR:MINOR``; None without one.

    Raise HostError if it exists and cannot be read.
    """
    match = _NUMBER.fullmatch(read_text(path) or "")
    return None if match is None else os.makedev(int(match[1]), int(match[2]))


def device_major(path: str | Path) -> int | None:
    """Return the major number of the character device *path*; None if there is none to be seen."""
    rdev = device_number(path)
    return None if rdev is None else os.major(rdev)
