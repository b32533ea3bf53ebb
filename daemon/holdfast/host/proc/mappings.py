"""Finds, in the text of a process's maps files, the mappings that can be a device's memory."""

import os
import re
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

VFIO_DEVICE = b"anon_inode:[vfio-device]"
"""What the kernel calls the file behind a VFIO device fd, and a mapping of it."""

_REMOVED = b" (deleted)"
# Device memory is mapped shared. Private mappings, the mass of every file, count only below /dev.
_CANDIDATE = re.compile(
    rb"^(?P<start>[0-9a-f]+)-[0-9a-f]+ ...(?:"
    rb"s [0-9a-f]+ (?P<fs1>\S+) (?P<inode1>\d+) +(?P<shared>anon_inode:\[vfio-device\]"
    rb"|/(?!dev/shm/|dev/zero|dev/hugepages/|memfd:|SYSV|\[aio\]).*)"
    rb"|p [0-9a-f]+ (?P<fs2>\S+) (?P<inode2>\d+) +(?P<private>/dev/(?!shm/|zero|hugepages/).*)"
    rb")$",
    re.MULTILINE,
)
_NAMES_A_DEVICE = re.compile(rb"/dev/(?:.*/)?(?:vfio|accel)")
_DETAIL = re.compile(rb"^(?:(?P<start>[0-9a-f]+)-[0-9a-f]+ |VmFlags:(?P<flags>.*)$)", re.MULTILINE)
_DEVICE_FLAGS = frozenset({b"io", b"pf", b"mm"})
"""VM_IO, VM_PFNMAP and VM_MIXEDMAP: what a driver maps has one of them, a plain file has none."""


class Mapping(Struct, frozen=True):
    """A file that is mapped at *start*, by the path that the process or its mount calls it.

    `filesystem` and `inode` tell which file it is, whatever is at its path by now.
    """

    start: bytes
    path: bytes
    filesystem: int
    inode: int


def mapped_files(maps: bytes) -> Iterator[Mapping]:
    """Yield the file behind each mapping that can be a device's, once for each."""
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for match in _CANDIDATE.finditer(maps):
        path = (match["shared"] or match["private"]).removesuffix(_REMOVED)
        filesystem, inode = match["fs1"] or match["fs2"], match["inode1"] or match["inode2"]
        if (path, filesystem, inode) not in seen:
            seen.add((path, filesystem, inode))
            major, _, minor = filesystem.partition(b":")
            yield Mapping(
                match["start"], path, os.makedev(int(major, 16), int(minor, 16)), int(inode)
            )


def names_a_device(path: bytes) -> bool:
    """Tell whether *path*, which cannot be looked at, is by its name a node that matters."""
    return _NAMES_A_DEVICE.match(path) is not None


def plain_files(parts: Iterable[bytes], starts: Collection[bytes]) -> frozenset[bytes]:
    """Return which of the mappings that begin at *starts* are of no device.

    *parts* are the text of a process's smaps file, cut between lines. A path says nothing: anybody
    may call a plain file as a device is called, and remove it.
    """
    found: set[bytes] = set()
    start = b""
    for part in parts:
        for match in _DETAIL.finditer(part):
            if match["start"] is not None:
                start = match["start"]
            elif start in starts and not _DEVICE_FLAGS.intersection(match["flags"].split()):
                found.add(start)
    return frozenset(found)
