"""Replaces files as a whole: who reads one finds what it said before or what it says now."""

import contextlib
import os
from pathlib import Path

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
        _sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
