"""The files of a ledger on their disk: what lies there, what is kept, and a reserve of room."""

import errno
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.kernelfile import file_identity
from holdfast.host.files.wholefile import sync_folder

RESERVE_BYTES = 1 << 20
_RESERVE = "reserve"
_ROOM_BYTES = 1 << 16
"""What must be free beside the reserve, or the disk counts as full: a few commits' worth."""
_CHUNK = 1 << 16
"""Bytes of one read. A direct read asks for whole blocks in memory that begins at a page."""

_BLOCK = 4096
_READ = os.O_RDONLY | os.O_CLOEXEC
_HEADER, _FRAME = 32, 24
"""Bytes of the header of a WAL and of that of a frame: https://sqlite.org/walformat.html."""
_INDEX = struct.Struct("=14xHI4x8s8s")
"""Of the index of a WAL: the size of a page, how many frames there are, the checksum of the last,
and the salts of the WAL. Holdfast's pages are smaller than 64 KiB."""

Identity = tuple[int, int]
FILE = "ledger.db"
COMPANIONS = ("-wal", "-shm")
"""What SQLite has beside an open ledger, by what its name has after the ledger's."""
NAMES = (FILE, *(FILE + suffix for suffix in COMPANIONS))
_ASIDE = ".unreadable-"
_MOST_ASIDE = 100
LOCK = "lock"
"""What the daemon holds locked while it runs."""
SEAL = "ledger.seal"
_STATE_BYTES = 128


def identity(found: os.stat_result) -> Identity:
    """Return what tells a file from every other one that is in use."""
    return found.st_dev, found.st_ino


class ReadBack:
    """Reads back what SQLite has written to its WAL: only what came since the last time."""

    def __init__(self, wal: Path) -> None:
        """Read back *wal*, from its begin at first; raises OSError.

        The ledger must be open, and stay so until this is closed: with the last of its files, a
        process gives up all its locks on them.
        """
        self._wal = wal
        self._index = os.open(wal.with_name(wal.name.replace("-wal", "-shm")), _READ)
        self._salts, self._end = b"", 0

    def close(self) -> None:
        """Close the index; the ledger must be closed."""
        os.close(self._index)

    def is_stored(self) -> bool:
        """Tell whether all that came is in the file and on the disk; raises OSError.

        What the disk itself has only in a cache of its own cannot be told from what it has stored.
        """
        page, frames, sums, salts = _INDEX.unpack(os.pread(self._index, _INDEX.size, 0))
        end = _HEADER + frames * (_FRAME + page) if frames else 0
        start = self._end if salts == self._salts and self._end <= end else 0
        cached = _read(self._wal, _READ, start, end)
        # The last frame has the checksum that the index has, or it was never written.
        last = len(cached) - page - _FRAME + len(salts)
        if frames and cached[last : last + 16] != salts + struct.pack(
            ">2I", *struct.unpack("=2I", sums)
        ):
            return False
        try:
            stored = _read(self._wal, _READ | os.O_DIRECT, start, end)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            stored = cached  # such as on a tmpfs, where nothing is read past the cache
        self._salts, self._end = salts, end
        return stored == cached


def _read(path: Path, flags: int, start: int, end: int) -> bytes:
    """Return what is between two places in a file, from the block of the first one on."""
    offset, found = start - start % _BLOCK, bytearray()
    fd = os.open(path, flags)
    try:
        with mmap.mmap(-1, _CHUNK) as chunk:
            while offset < end and (count := os.preadv(fd, [chunk], offset)):
                found += chunk[: min(count, end - offset)]
                offset += count
    finally:
        os.close(fd)
    return bytes(found)


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


class Stamp(Struct, frozen=True, kw_only=True):
    """Which ledger it is, and how many commits it has had. An empty *ledger*: not known."""

    ledger: str
    commits: int


class Seal:
    """Remembers beside the ledger what its last commit was, so that an older copy is known.

    It is written after each commit and not synced: it may know of fewer commits, never of more.
    """

    def __init__(self, folder: Path) -> None:
        """Remember in *folder*; nothing is there before `keep`."""
        self._path = folder / SEAL
        self._fd: int | None = None

    def keep(self, stamp: Stamp) -> None:
        """Have *stamp* under the name of the seal, whatever lies there; raises OSError."""
        if self._fd is None or file_identity(self._path) != identity(os.fstat(self._fd)):
            self.close()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.note(stamp)

    def note(self, stamp: Stamp) -> None:
        """Remember *stamp*; raises OSError."""
        if self._fd is not None:
            os.pwrite(self._fd, f"{stamp.ledger} {stamp.commits:020}\n".encode(), 0)

    def forget(self) -> None:
        """Remove what is remembered; raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; what it says stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sealed(folder: Path) -> Stamp | None:
    """Return what the seal in *folder* remembers; None: there was no ledger. Raises OSError."""
    try:
        # A pipe that lies there is read as empty, and not waited for.
        fd = os.open(folder / SEAL, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb", buffering=0) as file:
        words = (file.read(_STATE_BYTES) or b"").decode("ascii", "replace").split()
    if len(words) < 2 or not words[1].isdecimal():  # noqa: PLR2004 - an id and a count
        return Stamp(ledger="", commits=0)
    return Stamp(ledger=words[0], commits=int(words[1]))


class Place:
    """Knows the files of an open ledger as we left them, and tells what was done to them since.

    They must stay open elsewhere: the kernel then gives their numbers to no other file.
    """

    def __init__(self, path: Path) -> None:
        """Remember what lies at *path* and beside it; raises OSError where nothing does."""
        self._paths = tuple(path.with_name(name) for name in NAMES)
        self._wal = path.with_name(f"{FILE}-wal")
        self._left: dict[Path, tuple[int, ...]] = {}
        self.note()

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Return the numbers of the files, in the order of NAMES."""
        return tuple((left[0], left[1]) for left in self._left.values())

    def note(self) -> None:
        """Remember the files as we have written them just now; raises OSError."""
        for path in self._paths:
            self._remember(path)

    def note_commit(self) -> None:
        """Remember the WAL as a commit left it, the only file it writes to; raises OSError."""
        self._remember(self._wal)

    def _remember(self, path: Path) -> None:
        state = _state(path)
        # One that was put there meanwhile is not ours: it is told by the next look.
        if self._left.get(path, state)[:2] == state[:2]:
            self._left[path] = state

    def changes(self) -> tuple[str, ...]:
        """Tell what somebody did to each file; raises OSError when they cannot be looked at."""
        found = []
        for path, left in self._left.items():
            try:
                state = _state(path)
            except (FileNotFoundError, NotADirectoryError):
                found.append(f"{path.name} was removed")
                continue
            if state[:2] != left[:2]:
                found.append(f"another file was put in the place of {path.name}")
            elif state != left:
                found.append(f"{path.name} was changed in its place")
        return tuple(found)


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    if path.name.endswith("-shm"):  # it is mapped, and written by each reader
        return identity(found)
    return (*identity(found), found.st_size, found.st_mtime_ns)


def half(path: Path) -> Path:
    """Return where a ledger is written before it is put at *path*."""
    return path.with_name(f".{path.name}.new")


def remove_half(path: Path) -> None:
    """Remove what an attempt to make *path* left behind, and what a complete one needs no more."""
    made = half(path)
    for suffix in ("-journal", "", *COMPANIONS):
        made.with_name(made.name + suffix).unlink(missing_ok=True)


def link(path: Path) -> None:
    """Put what was made at *path* too; raises FileExistsError where anything lies there."""
    os.link(half(path), path)
    sync_folder(path.parent)


def set_aside(path: Path, ours: tuple[Identity, ...] = ()) -> Path | None:
    """Clear the place of a ledger: remove *ours*, and keep all else beside under another name.

    Return that name, None where nothing had to be kept; raises OSError. The file goes first:
    without its WAL it would pass for a ledger that lacks the last commits.
    """
    theirs = []
    for suffix in ("", *COMPANIONS):
        each = path.with_name(path.name + suffix)
        if file_identity(each) in ours:
            each.unlink()
        elif os.path.lexists(each):
            theirs.append(suffix)
    if not theirs:
        return None
    aside = _free_name(path)
    for suffix in theirs:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    sync_folder(path.parent)
    return aside


def _free_name(path: Path) -> Path:
    for number in range(1, _MOST_ASIDE):
        aside = path.with_name(f"{path.name}{_ASIDE}{number}")
        names = (aside.with_name(aside.name + suffix) for suffix in ("", *COMPANIONS))
        if not any(map(os.path.lexists, names)):
            return aside
    raise FileExistsError(f"there are {_MOST_ASIDE - 1} of {path.name}{_ASIDE}N; remove them")


def kept_aside(path: Path) -> list[Path]:
    """Return what was kept beside *path*, a WAL only where it has no ledger; raises OSError."""
    beside = set(path.parent.glob(f"{path.name}{_ASIDE}*"))
    return [
        each
        for each in beside
        if not any(
            each.name.endswith(suffix) and each.with_name(each.name.removesuffix(suffix)) in beside
            for suffix in COMPANIONS
        )
    ]
