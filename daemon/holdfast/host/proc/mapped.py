"""Finds which devices a process has mapped, whatever is at their paths by now."""

import os
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from holdfast.host.files.statx import DeviceNumbers
from holdfast.host.proc.inparts import whole_lines
from holdfast.host.proc.mappings import (
    VFIO_DEVICE,
    Mapping,
    mapped_files,
    names_a_device,
    plain_files,
)
from holdfast.host.root import HostRoot

_MOST_RIDDLES = 32
"""One is enough to make a scan incomplete; a few tell people where to look."""
_MOST_DETAILS = 1 << 27
"""So many bytes of smaps files are read in one look, to tell what removed files were."""


class Mapped(Struct, frozen=True, kw_only=True):
    """What one process has mapped: memory of some VFIO device, and devices by their numbers."""

    vfio: bool
    rdevs: frozenset[int]


class MappedDevices:
    """Looks for mappings of devices with given numbers; belongs to one thread."""

    def __init__(self, root: HostRoot, numbers: DeviceNumbers, wanted: Collection[int]) -> None:
        """Look for the device numbers *wanted*, with the paths of nodes below *root*."""
        self._root = root
        self._numbers = numbers
        self._wanted = wanted
        self._details_left = _MOST_DETAILS
        self.riddles: list[str] = []
        """Mappings of something that is gone and might have been wanted, for people."""

    def shown_by(self, folder: str, pid: int, beat: Callable[[], None]) -> Mapped | None:
        """Return what the process in *folder* has mapped; None where nothing is shown at all.

        It can hang. *beat* is called after each part.
        """
        shown, vfio = False, False
        seen: set[tuple[bytes, int, int]] = set()
        rdevs: set[int] = set()
        doubtful: dict[bytes, tuple[bytes, int]] = {}
        for lines in whole_lines(f"{folder}/maps"):
            shown = True
            beat()
            for each in mapped_files(lines):
                file = (each.path, each.filesystem, each.inode)
                if each.path == VFIO_DEVICE:
                    vfio = True
                elif file not in seen:
                    seen.add(file)
                    rdev, certain = self._device(folder, each)
                    if certain:
                        rdevs.add(rdev)
                    else:
                        doubtful[each.start] = each.path, rdev
        if doubtful:
            plain = plain_files(self._details(folder, beat), doubtful)
            left = [doubtful[start] for start in sorted(doubtful.keys() - plain)]
            rdevs.update(rdev for _, rdev in left)
            for path, rdev in left:
                if rdev not in self._wanted:
                    self._puzzle_over(pid, path)
        wanted = frozenset(rdev for rdev in rdevs if rdev in self._wanted)
        return Mapped(vfio=vfio, rdevs=wanted) if shown else None

    def _device(self, folder: str, mapping: Mapping) -> tuple[int, bool]:
        """Return the number of the device that is mapped, 0 for none, and if that is certain."""
        at = self._numbers.file_at(f"{folder}/root".encode() + mapping.path)
        if at is None:
            at = self._numbers.file_at(bytes(self._root.node(os.fsdecode(mapping.path))))
        rdev = at.rdev if at is not None else 0
        # What is at the path now need not be what was mapped by it.
        same = at is not None and (at.filesystem, at.inode) == (mapping.filesystem, mapping.inode)
        return rdev, same or not (rdev in self._wanted or names_a_device(mapping.path))

    def _puzzle_over(self, pid: int, path: bytes) -> None:
        text = path.decode(errors="replace")
        shown = "".join(each if each.isprintable() else "?" for each in text)
        riddle = f"pid {pid} maps {shown}, which is gone: it cannot be told apart"
        if len(self.riddles) < _MOST_RIDDLES and riddle not in self.riddles:
            self.riddles.append(riddle)

    def _details(self, folder: str, beat: Callable[[], None]) -> Iterator[bytes]:
        """Yield the smaps file of a process, within what may be read of all of them."""
        for lines in whole_lines(f"{folder}/smaps"):
            beat()
            self._details_left -= len(lines)
            if self._details_left < 0:
                return
            yield lines
