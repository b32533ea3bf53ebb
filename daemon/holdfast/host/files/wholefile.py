"""Replaces files as a whole, and tells whether another file or a later write is at a path."""

import contextlib
import os
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.kernelfile import seen
from holdfast.model.ids import CheckpointId

_MODE = 0o644


def replace_whole(path: Path, content: bytes, *, temporary: Path) -> None:
    """Make *content* all that *path* says, for everybody to read.

    *temporary* is a path in the same folder, of a name that its readers ignore. Raise OSError;
    *temporary* is then removed.
    """
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, _MODE)  # whatever the umask
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Have what *folder* lists outlive a power cut; raise OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileId(Struct, frozen=True):
    """Which file lies at a path, and which of its contents.

    Inode numbers are given away again at once, so the time of the last write (ns) is part of it.
    """

    device: int
    inode: int
    written_ns: int
    size: int

    @property
    def checkpoint(self) -> CheckpointId:
        """Return the same for the ledger, which compares it and reads nothing out of it."""
        return CheckpointId(f"{self.device}:{self.inode}:{self.written_ns}:{self.size}")

    @classmethod
    def of(cls, path: Path) -> "FileId | None":
        """Return the identity of what lies at *path*, None if nothing does.

        Raise HostError if that cannot be told.
        """
        found = seen(path, follow=False)
        return None if found is None else cls.from_stat(found)

    @classmethod
    def from_stat(cls, found: os.stat_result) -> "FileId":
        """Return the identity in an answer of stat."""
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
