"""Which devices a process has mapped, whatever is at their paths now."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.paths import DeviceNumbers, own_root
from holdfast.host.proc.openfiles import RING, TooMuchError
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.text import printable

VFIO_DEVICE = b"anon_inode:[vfio-device]"
"""The kernel's name for the file behind a VFIO device fd, and for a mapping of it."""

_PART = 1 << 16
_LONGEST_LINE = 1 << 20
"""In bytes. A path may be as long as anybody's folders are deep."""
_REMOVED = b" (deleted)"
_SIGNS = (b"-s ", b"xs ", b"/dev/", _REMOVED)
"""Device memory is mapped shared. Most mappings are private: those count only below /dev, and where
their file was removed. So only lines with one of these, which are few, are taken apart."""
_RUN = re.compile(
    rb"(?P<start>[0-9a-f]+)-[0-9a-f]+ ...(?P<kind>[sp]) [0-9a-f]+ "
    rb"(?P<file>(?P<filesystem>\S+) (?P<inode>\d+) +(?P<path>\S.*))"
    rb"(?:\n\S+ ...(?P=kind) \S+ (?P=file)$)*+",
    re.MULTILINE,
)
"""A mapping and those after it of the same file: a gVisor sandbox maps its memory in thousands."""
_MEMORY = re.compile(
    rb"/(?:(?P<own>dev/zero|memfd:.*|SYSV.*)|dev/(?:shm|hugepages)/.*|\[aio\]|anon_hugepage)"
)
"""Removed files of these names are memory, and some programs have much of it. Those of `own` are
on a filesystem of the kernel's own, where nobody can make a node; the names prove nothing."""
_NEWLINE = b"\\012"
"""What the kernel writes for one in a path, as it does for a name that has these characters."""
_NAMES_A_DEVICE = re.compile(rb"/dev/(?:.*/)?(?:vfio|accel)")
_DETAIL = re.compile(rb"^(?:(?P<start>[0-9a-f]+)-[0-9a-f]+ |VmFlags:(?P<flags>.*)$)", re.MULTILINE)
_DEVICE_FLAGS = frozenset({b"io", b"pf", b"mm"})
"""VM_IO, VM_PFNMAP and VM_MIXEDMAP: a driver's mapping has one of them, a plain file has none."""
_MOST_SHOWN = 200
"""Characters of a path."""
_MOST_UNEXPLAINED = 32
"""One is enough to make a scan incomplete. A few tell people where to look."""
_MOST_DETAILS = 1 << 27
"""How many bytes of smaps files one look reads, to tell what removed files were."""


class Mapping(Struct, frozen=True, kw_only=True):
    """A file that is mapped at `start`, by its path in the process's own mounts."""

    start: bytes
    path: bytes
    filesystem: int
    inode: int
    removed: bool

    @property
    def file(self) -> tuple[int, int]:
        """Which file it is: no other has its inode while it is mapped."""
        return self.filesystem, self.inode


class ProcessMappings(Struct, frozen=True, kw_only=True):
    """What one process has mapped: any VFIO device, any io_uring, and which devices by number."""

    vfio: bool
    ring: bool
    rdevs: frozenset[int]


class MappedDevices:
    """Looks for mappings of devices with given numbers; belongs to one thread."""

    def __init__(self, root: HostRoot, numbers: DeviceNumbers, wanted: Collection[int]) -> None:
        """Look for the device numbers *wanted*, with the paths of nodes below *root*."""
        self._root = root
        self._numbers = numbers
        self._wanted = wanted
        self._details_left = _MOST_DETAILS
        self._memory = _filesystem_of_memory()
        self._plain: set[tuple[int, int]] = set()
        """Removed files that are no devices. After an upgrade many map the same library."""
        self.unexplained: list[str] = []
        """Mappings of a removed file that might have been a wanted device, as texts."""

    def shown_by(self, folder: str, pid: int, beat: Callable[[], None]) -> ProcessMappings | None:
        """Return what the process in *folder* has mapped; None if its maps file is empty.

        It can hang. *beat* is called after each part.
        """
        shown, inside = False, own_root(folder)
        seen: set[tuple[bytes, bytes, bytes]] = set()
        anonymous: set[bytes] = set()
        rdevs: set[int] = set()
        doubtful: dict[bytes, tuple[Mapping, int]] = {}
        for lines in _whole_lines(f"{folder}/maps"):
            shown = True
            beat()
            for each in _mapped_files(lines, seen):
                if each.path in {VFIO_DEVICE, RING}:
                    anonymous.add(each.path)
                    continue
                if each.removed and self._is_memory(each):
                    continue
                rdev, certain = self._device(inside, each)
                if certain:
                    rdevs.add(rdev)
                else:
                    doubtful[each.start] = each, rdev
        if doubtful:
            plain = _plain_files(self._details(folder, beat), doubtful)
            self._plain.update(doubtful[start][0].file for start in plain)
            left = [doubtful[start] for start in sorted(doubtful.keys() - plain)]
            rdevs.update(rdev for _, rdev in left)
            for each, rdev in left:
                if rdev not in self._wanted and self._may_live(pid):
                    self._leave_unexplained(pid, each.path)
        wanted = frozenset(rdev for rdev in rdevs if rdev in self._wanted)
        vfio, ring = VFIO_DEVICE in anonymous, RING in anonymous
        return ProcessMappings(vfio=vfio, ring=ring, rdevs=wanted) if shown else None

    def _device(
        self, inside: Callable[[bytes], bytes | None], mapping: Mapping
    ) -> tuple[int, bool]:
        """Return the mapped device's number, 0 for none, and whether that is certain."""
        if mapping.file in self._plain:
            return 0, True
        path = None if _NEWLINE in mapping.path else inside(mapping.path)
        at = None if path is None else self._numbers.file_at(path)
        elsewhere = at is None
        if at is None:
            at = self._numbers.file_at(bytes(self._root.node(os.fsdecode(mapping.path))))
        rdev = at.rdev if at is not None else 0
        # The file at the path now need not be the one that was mapped.
        same = at is not None and (at.filesystem, at.inode) == mapping.file
        # A node may be made anywhere, and be removed once it is mapped.
        named = rdev in self._wanted or _NAMES_A_DEVICE.match(mapping.path) is not None
        return rdev, same or not (elsewhere or mapping.removed or named)

    def _is_memory(self, mapping: Mapping) -> bool:
        match = _MEMORY.fullmatch(mapping.path)
        if match is None:
            return False
        return match["own"] is None or self._memory in {None, mapping.filesystem}

    def _may_live(self, pid: int) -> bool:
        """Tell whether *pid* has not ended meanwhile: then nothing is at its paths any more.

        Who inherited its mappings was born before that, and is looked at as well.
        """
        try:
            facts = Procfs(self._root).certain(pid)
        except HostError:  # nothing shows that it has
            return True
        return facts is not None and facts.can_act

    def _leave_unexplained(self, pid: int, path: bytes) -> None:
        # Whoever makes its folders chooses the text, which comes into the ledger and into answers.
        shown = printable(path.decode(errors="backslashreplace"), _MOST_SHOWN)
        text = f"pid {pid} maps {shown}, which is gone: it cannot be told apart"
        if len(self.unexplained) < _MOST_UNEXPLAINED and text not in self.unexplained:
            self.unexplained.append(text)

    def _details(self, folder: str, beat: Callable[[], None]) -> Iterator[bytes]:
        """Yield the smaps file of a process in parts, until `_MOST_DETAILS` is used up."""
        for lines in _whole_lines(f"{folder}/smaps"):
            beat()
            self._details_left -= len(lines)
            if self._details_left < 0:
                return
            yield lines


def _filesystem_of_memory() -> int | None:
    """Return the kernel's filesystem for memory that processes share; None if it is unknown."""
    try:
        with os.fdopen(os.memfd_create("holdfast"), "rb", buffering=0) as made:
            return os.fstat(made.fileno()).st_dev
    except OSError:  # no more files can be opened, or a seccomp profile forbids it
        return None


def _mapped_files(maps: bytes, seen: set[tuple[bytes, bytes, bytes]]) -> Iterator[Mapping]:
    """Yield the file behind each mapping that can be a device's, unless it was *seen* before."""
    for match in _runs_with_a_sign(maps):
        if not match["path"].startswith((b"/", VFIO_DEVICE, RING)):
            continue
        path = match["path"].removesuffix(_REMOVED)
        removed = path != match["path"]
        if match["kind"] == b"p" and not (removed or path.startswith(b"/dev/")):
            continue
        file = path, match["filesystem"], match["inode"]
        if file not in seen:
            seen.add(file)
            major, _, minor = match["filesystem"].partition(b":")
            yield Mapping(
                start=match["start"],
                path=path,
                filesystem=os.makedev(int(major, 16), int(minor, 16)),
                inode=int(match["inode"]),
                removed=removed,
            )


def _runs_with_a_sign(maps: bytes) -> Iterator[re.Match[bytes]]:
    for sign in _SIGNS:
        at = maps.find(sign)
        while at >= 0:
            match = _RUN.match(maps, maps.rfind(b"\n", 0, at) + 1)
            if match is not None:
                yield match
            at = maps.find(sign, maps.find(b"\n", at) if match is None else match.end())


def _plain_files(parts: Iterable[bytes], starts: Collection[bytes]) -> frozenset[bytes]:
    """Return which of the mappings that begin at *starts* are of plain files, not of devices.

    *parts* are the text of a process's smaps file, cut between lines. The path proves nothing:
    anybody can give a plain file a device's name, and remove it.
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


def _whole_lines(path: str) -> Iterator[bytes]:
    """Yield the text of *path* in parts that end with a line; nothing if it is gone.

    A large program has tens of megabytes of such text, and our own memory is small. Raise
    TooMuchError for a line of more than 1 MiB.
    """
    rest = b""
    try:
        with open(path, "rb", buffering=_PART) as file:
            while part := file.read(_PART):
                lines, end, tail = part.rpartition(b"\n")
                if end:
                    yield rest + lines
                    rest = tail
                elif len(rest) < _LONGEST_LINE:
                    rest += part
                else:
                    raise TooMuchError
    except (FileNotFoundError, ProcessLookupError):
        return
    if rest:
        yield rest
