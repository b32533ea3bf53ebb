"""Which file pynvml calls: the one that is there now, also after the driver was replaced."""

import ctypes
from pathlib import Path

import pynvml

LIBRARY = "libnvidia-ml.so.1"


class Loaded(ctypes.CDLL):
    """A library that was loaded, and how many in this process have it open."""

    def __init__(self, path: Path | None, *, number: int) -> None:
        """Load *path*, the *number*th that this process loads; raise OSError."""
        self.file = _identity(path)
        self.number = number
        self.users = 0
        super().__init__(LIBRARY if path is None else _unheard_of(path, number))


def enter(path: Path | None) -> None:
    """Have pynvml call the library at *path* (None: as the loader finds it), until `leave`.

    While others have one open, all get that one: a handle of one library means nothing to another.
    Raise OSError when it cannot be loaded, NVMLError when there is none to be found by name.
    """
    with pynvml.libLoadLock:
        now = pynvml.nvmlLib
        if not isinstance(now, Loaded) or (not now.users and now.file != _identity(path)):
            now = _load(path, number=now.number + 1 if isinstance(now, Loaded) else 0)
            pynvml.nvmlLib = now
            # It keeps the addresses of functions, which are those of the former library.
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it has no other way
        now.users += 1


def leave() -> None:
    """Take back one `enter`. What was loaded stays mapped: nothing says that it has no threads."""
    with pynvml.libLoadLock:
        pynvml.nvmlLib.users -= 1


def users() -> int:
    """Return how many in this process have a library open."""
    now = pynvml.nvmlLib
    return now.users if isinstance(now, Loaded) else 0


def _load(path: Path | None, *, number: int) -> Loaded:
    try:
        return Loaded(path, number=number)
    except OSError:
        if path is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) from None
        raise


def _unheard_of(path: Path, number: int) -> str:
    """Return *path* in words that the loader has not heard yet.

    It takes a path that it knows for the file that it loaded from there, whatever is there now;
    of one that it does not know, it looks which file it is.
    """
    return f"{path.parent}{'/.' * number}/{path.name}"


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return what tells one file from another; a file that is mapped keeps it to itself."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
