"""Finds, in the text of a process's maps file, the mappings that can be a device's memory."""

import re
from collections.abc import Iterator

VFIO_DEVICE = b"anon_inode:[vfio-device]"
"""What the kernel calls the file behind a VFIO device fd, and a mapping of it."""

_REMOVED = b" (deleted)"
# Device memory is mapped shared. Private mappings, the mass of every file, count only below /dev.
_CANDIDATE = re.compile(
    rb"^[0-9a-f-]+ ...(?:"
    rb"s [0-9a-f]+ \S+ \d+ +(?P<shared>anon_inode:\[vfio-device\]"
    rb"|/(?!dev/shm/|dev/zero|dev/hugepages/|memfd:|SYSV|\[aio\]).*)"
    rb"|p [0-9a-f]+ \S+ \d+ +(?P<private>/dev/(?!shm/|zero|hugepages/).*)"
    rb")$",
    re.MULTILINE,
)
_NAMES_A_DEVICE = re.compile(rb"/dev/(?:.*/)?(?:vfio|accel)")


def mapped_files(maps: bytes) -> Iterator[bytes]:
    """Yield the file behind each mapping that can be a device's, once, as the process calls it."""
    seen: set[bytes] = set()
    for match in _CANDIDATE.finditer(maps):
        path = (match["shared"] or match["private"]).removesuffix(_REMOVED)
        if path not in seen:
            seen.add(path)
            yield path


def names_a_device(path: bytes) -> bool:
    """Tell whether *path*, which cannot be looked at, is by its name a node that matters."""
    return _NAMES_A_DEVICE.match(path) is not None
