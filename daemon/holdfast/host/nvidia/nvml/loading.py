"""Which library file pynvml calls: the current one, also after the driver was replaced."""

import ctypes
from pathlib import Path

import pynvml

LIBRARY = "libnvidia-ml.so.1"


class Loaded(ctypes.CDLL):
    """A loaded library, and how many users in this process have it open."""

    def __init__(self, path: Path | None, *, number: int) -> None:
        """Load *path* as the *number*th library of this process; raise OSError if that fails."""
        self.file = _identity(path)
        self.number = number
        self.users = 0
        super().__init__(LIBRARY if path is None else _unheard_of(path, number))


def enter(path: Path | None) -> None:
    """Make pynvml call the library at *path* (None: as the loader finds it), until `leave`.

    While other users have a library open, all get that one: handles of one library mean nothing
    to another. Raise OSError if it cannot be loaded, NVMLError if none is found by name.
    """
    with pynvml.libLoadLock:
        now = pynvml.nvmlLib
        if not isinstance(now, Loaded) or (not now.users and now.file != _identity(path)):
            now = _load(path, number=now.number + 1 if isinstance(now, Loaded) else 0)
            pynvml.nvmlLib = now
            # This cache has the addresses of functions in the previous library.
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it has no other way
        now.users += 1


def leave() -> None:
    """Undo one `enter`. The library stays mapped, because it may still have threads."""
    with pynvml.libLoadLock:
        pynvml.nvmlLib.users -= 1


def users() -> int:
    """Return how many users in this process have a library open."""
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
    """Return *path* spelled in a way that the loader does not know yet.

    For a path that it knows, the loader returns the library that it loaded from there, whatever
    is there now. Only for an unknown path does it look at the file.
    """
    return f"{path.parent}{'/.' * number}/{path.name}"


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return what tells one file from another; no new file gets that of a mapped one."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
