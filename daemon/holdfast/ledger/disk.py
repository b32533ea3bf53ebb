"""The disk under the ledger: its files' identity, what they read as, and a reserve of room."""

import errno
import hashlib
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

RESERVE_BYTES = 1 << 20
_RESERVE = "reserve"
_ROOM_BYTES = 1 << 16
"""What must be free beside the reserve, or the disk counts as full: a few commits' worth."""
_CHUNK = 1 << 16
"""Bytes of one read. A direct read asks for whole blocks in memory that begins at a page."""

Identity = tuple[int, int]


class Strayed(Struct, frozen=True, kw_only=True):
    """The names that lead to nothing any more, and those that lead to another file."""

    gone: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class Place:
    """Remembers which file lies at each of some paths, and tells which of them have changed.

    The files must stay open elsewhere: the kernel then gives their numbers to no other file.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        """Remember what lies at *paths* now; raises OSError where nothing does."""
        self._files = {path: identity(path.stat()) for path in paths}

    def pin(self, path: Path) -> "Pinned | None":
        """Return the file at *path* pinned, if it is the one that lay there; raises OSError."""
        try:
            found = Pinned(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found.identity == self._files[path]:
            return found
        found.close()
        return None

    def strayed(self) -> Strayed:
        """Compare the paths with what lay there; raises OSError when they cannot be looked at."""
        gone, replaced = [], []
        for path, known in self._files.items():
            try:
                found = identity(path.stat())
            except (FileNotFoundError, NotADirectoryError):
                gone.append(path.name)
            else:
                if found != known:
                    replaced.append(path.name)
        return Strayed(gone=tuple(gone), replaced=tuple(replaced))


class Pinned:
    """A file whose numbers the kernel gives to no other one while this is open."""

    def __init__(self, path: Path) -> None:
        """Pin what lies at *path*; raises OSError."""
        self._fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self.identity = identity(os.fstat(self._fd))

    def lies_at(self, path: Path) -> bool:
        """Tell whether *path* leads to it; raises OSError."""
        try:
            return identity(path.stat()) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Let the kernel give its numbers away when it is removed."""
        os.close(self._fd)


def identity(found: os.stat_result) -> Identity:
    """Return what tells a file from every other one that is in use."""
    return found.st_dev, found.st_ino


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


class Reserve:
    """Room on the disk, so that a release can be written when the disk is full.

    A file takes it up until it is given up; `full` tells what `keep` found last.
    """

    def __init__(self, folder: Path) -> None:
        """Keep it in *folder*; nothing is there before `keep`."""
        self._path = folder / _RESERVE
        self.full = False

    def keep(self) -> None:
        """Have the room, and find out whether there is some beside it.

        That is tried, because a WAL that is written over does not show that the disk is full.
        """
        self.full = False
        try:
            with self._path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                self.full = not _has_room(file.fileno())
        except OSError as error:  # it is tried again with the next proof
            self.full = _means_full(error)
            with suppress(OSError):
                self._path.unlink()

    def give_up(self) -> bool:
        """Make room on a full disk; return whether there was a reserve to give up."""
        try:
            self._path.unlink()
        except OSError:
            return False
        self.full = True
        return True


def _has_room(reserve: int) -> bool:
    """Tell whether the open file of the reserve could be larger than it is."""
    try:
        os.posix_fallocate(reserve, RESERVE_BYTES, _ROOM_BYTES)
    except OSError as error:
        if _means_full(error):
            return False
        raise
    finally:
        os.ftruncate(reserve, RESERVE_BYTES)
    return True


def _means_full(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT}
