"""Whether the names of files that are open still lead to these files."""

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

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


def identity(found: os.stat_result) -> Identity:
    """Return what tells a file from every other one that is in use."""
    return found.st_dev, found.st_ino
