"""Where a path leads, onto which mounted filesystem, and the device number of a file."""

import ctypes
import os
import re
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.host.files.kernelfile import link_or_none, text_or_empty
from holdfast.host.root import HostRoot

_AT_FDCWD = -100
_AT_NO_AUTOMOUNT = 0x800
_AT_STATX_DONT_SYNC = 0x4000
_FLAGS = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
_STATX_TYPE = 1
_STATX_INO = 0x100
_SIZE = 256
# Places of struct statx's fields, counted in words of 32 bits.
_MODE = 7
_INODE = 8
_RDEV_MAJOR = 32
_RDEV_MINOR = 33
_DEV_MAJOR = 34
_DEV_MINOR = 35
_MODE_BITS = 0xFFFF
_TYPE_BITS = 0xF000
_ESCAPE = re.compile(r"\\([0-7]{3})")
_ROOT, _POINT, _OPTIONS = 3, 4, 5
_OF_PROCESS = re.compile("(.*/proc/[0-9]+/root)(/.*)")
_MOST_LINKS = 40
"""As many as Linux follows; more is a circle."""


class DeviceNumbers:
    """Reads device numbers by statx(2), which os.stat cannot do.

    stat(2) of an open file on NFS or FUSE waits for its server, so one dead server would stop
    each look at the node's processes. With AT_STATX_DONT_SYNC the kernel answers from its cache.
    Not for two threads at once: the answers share a buffer.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SIZE)
        self._answer = ctypes.byref(self._buffer)
        self._words = memoryview(self._buffer).cast("B").cast("I")
        self._statx = _system_call() or partial(_by_stat, self._words)
        self._anonymous = _filesystem_of_anonymous_files()

    @property
    def shows_socket(self) -> bool:
        """Tell whether the open file that was looked at last, and is no device, is a socket."""
        return self._words[_MODE] & _TYPE_BITS == stat.S_IFSOCK

    def of(self, path: bytes) -> int | None:
        """Return the device number of the character device at *path*, 0 for other files.

        None if *path* cannot be looked at.
        """
        if self._statx(_AT_FDCWD, path, _FLAGS, _STATX_TYPE | _STATX_INO, self._answer):
            return None
        words = self._words
        if not stat.S_ISCHR(words[_MODE] & _MODE_BITS):
            return 0
        return os.makedev(words[_RDEV_MAJOR], words[_RDEV_MINOR])

    def of_open_file(self, folder: int, name: bytes) -> int | None:
        """Return the device number of the open file that the link *name* stands for.

        0 for what is no device: a plain file, a socket, a pipe, a folder. None where only the text
        of the link can tell: an anonymous file, or one that cannot be looked at.
        """
        # Called for each open file of the node: no argtypes, which cost more than the system call's
        # own way in, and no call between.
        if self._statx(folder, name, _FLAGS, _STATX_TYPE, self._answer):
            return None
        words = self._words
        kind = words[_MODE] & _TYPE_BITS
        if kind == stat.S_IFCHR:
            return os.makedev(words[_RDEV_MAJOR], words[_RDEV_MINOR])
        known = kind and self._anonymous is not None and words[_DEV_MINOR] != self._anonymous
        return 0 if known else None

    def file_at(self, path: bytes) -> "FileAt | None":
        """Return which file is at *path*; None if it cannot be looked at."""
        rdev = self.of(path)
        if rdev is None:
            return None
        words = self._words
        inode = int.from_bytes(words[_INODE : _INODE + 2].tobytes(), sys.byteorder)
        filesystem = os.makedev(words[_DEV_MAJOR], words[_DEV_MINOR])
        return FileAt(rdev=rdev, filesystem=filesystem, inode=inode)


def _system_call() -> Callable[..., int] | None:
    """Return statx(2) of the C library; None where it cannot be used."""
    try:
        statx: Callable[..., int] = ctypes.CDLL(None, use_errno=False).statx
    except AttributeError:  # a C library before glibc 2.28 or musl 1.2.5
        return None
    answer = ctypes.create_string_buffer(_SIZE)
    forbidden = statx(_AT_FDCWD, b"/", _FLAGS, _STATX_TYPE, answer)  # by a seccomp profile
    return None if forbidden else statx


def _by_stat(words: memoryview, folder: int, path: bytes, *_: object) -> int:
    """Fill *words* as statx(2) does, by stat(2), which waits for servers; not 0 if that fails."""
    try:
        status = os.stat(path, dir_fd=None if folder == _AT_FDCWD else folder)
    except OSError:
        return -1
    words[_MODE] = status.st_mode
    words[_INODE : _INODE + 2] = memoryview(status.st_ino.to_bytes(8, sys.byteorder)).cast("I")
    words[_RDEV_MAJOR], words[_RDEV_MINOR] = os.major(status.st_rdev), os.minor(status.st_rdev)
    words[_DEV_MAJOR], words[_DEV_MINOR] = os.major(status.st_dev), os.minor(status.st_dev)
    return 0


def _filesystem_of_anonymous_files() -> int | None:
    """Return the minor number of the kernel's filesystem for anonymous files, None if unknown.

    Such files have no type so far, which no document promises. An eventfd is on the same one.
    """
    try:
        with os.fdopen(os.eventfd(0), "rb", buffering=0) as opened:
            return os.minor(os.fstat(opened.fileno()).st_dev)
    except OSError:  # no more files can be opened, or a seccomp profile forbids it
        return None


class FileAt(Struct, frozen=True, kw_only=True):
    """One file: its device number, 0 for none, the device of its filesystem, and its inode."""

    rdev: int
    filesystem: int
    inode: int


class Mount(Struct, frozen=True, kw_only=True):
    """One mount of a process.

    `writable`: neither the mount nor its filesystem is read-only. `devices`: device nodes on it
    can be opened. `top` is the folder of the filesystem that the mount shows.
    """

    point: str
    kind: str
    top: str = "/"
    writable: bool = True
    devices: bool = True
    options: tuple[str, ...] = ()
    """The options of the filesystem, such as ``hidepid=2`` or ``nsdelegate``."""


def mounts(root: HostRoot, process: str = "self") -> tuple[Mount, ...]:
    """Return the mounts of *process* in the order they were made; none if they cannot be read."""
    found: list[Mount] = []
    for line in text_or_empty(root.proc / process / "mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, rest = mount.split(" "), filesystem.split(" ")
        if len(fields) <= _OPTIONS or not rest[0]:
            continue
        options = tuple(rest[-1].split(","))
        found.append(
            Mount(
                point=_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[_POINT]),
                kind=rest[0],
                top=fields[_ROOT],
                devices="nodev" not in fields[_OPTIONS].split(","),
                writable="ro" not in fields[_OPTIONS].split(",") and "ro" not in options,
                options=options,
            )
        )
    return tuple(found)


def mounted_at(seen: tuple[Mount, ...], point: Path) -> Mount | None:
    """Return the mount that is visible at *point* itself; None if nothing is mounted there.

    Of several at one place the last one hides the others.
    """
    return next((mount for mount in reversed(seen) if mount.point == str(point)), None)


def mount_of(seen: tuple[Mount, ...], path: str) -> Mount | None:
    """Return the mount that *path* is on; None if *seen* does not tell.

    *path* must be free of links; it need not exist.
    """
    above = {path, *map(str, PurePosixPath(os.path.normpath(path)).parents)}
    on = [mount for mount in seen if mount.point in above]
    # The deepest; of several at one place the last, which hides the others.
    return max(reversed(on), key=lambda mount: len(mount.point), default=None)


def own_root(folder: str) -> Callable[[bytes], bytes | None]:
    """Return what tells where a path leads that the kernel tells of the process in *folder*.

    Such a path begins at the top of that process's mounts, and the process's root may be below, by
    chroot(2). None for what is outside: at the same name below the root is another file.
    """
    root = f"{folder}/root"
    top = os.fsencode(link_or_none(root) or "/").rstrip(b"/")

    def inside(path: bytes) -> bytes | None:
        return root.encode() + path.removeprefix(top) if path.startswith(top + b"/") else None

    return inside


def below(root: Path, path: str) -> Path | None:
    """Return where *path* leads for a process whose root is *root*; None for a circle of links.

    The links of a driver container, or of a copied node, may be absolute. If we followed them
    ourselves, they would lead into our own files. The result need not exist.
    """
    at, links = root, 0
    parts = list(reversed(PurePosixPath(path).parts))
    while parts:
        part = parts.pop()
        if part.startswith("/"):  # POSIX has two slashes at the beginning be a root of its own
            at = root
        elif part == "..":
            at = at if at == root else at.parent
        else:
            try:
                target = (at / part).readlink()
            except OSError:
                at /= part
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            parts += reversed(target.parts)
    return at


def as_its_process(path: str) -> Path:
    """Return *path*; below a process's root (/proc/PID/root), where it leads for that process."""
    found = _OF_PROCESS.fullmatch(path)
    return (below(Path(found[1]), found[2]) if found else None) or Path(path)
