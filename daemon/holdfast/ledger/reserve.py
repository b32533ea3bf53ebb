"""Room that is kept on the disk, so that a release can be written when it is full."""

import errno
import os
from contextlib import suppress
from pathlib import Path

RESERVE = "reserve"
RESERVE_BYTES = 1 << 20
_ROOM_BYTES = 1 << 16
"""What must be free beside the reserve, or the disk counts as full: a few commits' worth."""


class Reserve:
    """A file that takes up room until it is given up; `full` tells what `keep` found last."""

    def __init__(self, folder: Path) -> None:
        """Keep it in *folder*; nothing is there before `keep`."""
        self._path = folder / RESERVE
        self.full = False

    def keep(self) -> None:
        """Have the room, and find out whether there is some beside it.

        That is tried, for a WAL that is written over does not show that the disk is full.
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
