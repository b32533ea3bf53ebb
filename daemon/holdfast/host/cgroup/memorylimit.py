"""How much memory a process may use: the node's, or the tightest cgroup limit around it."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.kernelfile import field_of, is_folder, text_or_empty
from holdfast.host.files.paths import Mount, mounted_at, mounts
from holdfast.host.proc.procfs import effective_capabilities
from holdfast.host.root import HostRoot
from holdfast.model.node.memory import UNSEEN, CgroupMemory, Memlock, Memory

_KIB = 1024
_NUMBER = re.compile(r"[0-9]{1,20}")
_IPC_LOCK = 14
"""CAP_IPC_LOCK as a bit of CapEff."""


class _Files(Struct, frozen=True, kw_only=True):
    """The names of files in one version of the memory controller."""

    limit: str
    usage: str
    cache: tuple[str, ...]
    high: str = ""


_V2 = _Files(
    limit="memory.max",
    usage="memory.current",
    cache=("active_file", "inactive_file"),
    high="memory.high",
)
_V1 = _Files(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache=("total_active_file", "total_inactive_file"),
)
_V1_HIERARCHY = "hierarchical_memory_limit"
"""The tightest limit of all ancestors, including those that no mount shows us."""


class MemoryReader:
    """Reads memory limits and use below one root. It blocks: run it on a lane.

    What cannot be read or makes no sense counts as no limit, because a wrong limit would stop
    something that works. Raise HostError if it cannot be told whether a cgroup is there.
    """

    def __init__(self, root: HostRoot) -> None:
        """Read *root*'s proc and cgroup folders, as they are mounted now."""
        self._root = root
        self._cgroups = Cgroups(root)
        # Version 2 can be alone, or beside version 1, then usually without memory.
        self._v2 = (root.cgroup, root.cgroup / "unified")
        self._v1 = root.cgroup / "memory"
        seen = mounts(root)
        self._tops = {tree: _top(mounted_at(seen, tree)) for tree in (*self._v2, self._v1)}

    def own(self) -> Memory:
        """Return what this process may use.

        In a private cgroup namespace, the limits above it show only if the host's tree is mounted.
        """
        return self._memory("self", _read, ours=True)

    def of_process(self, pid: int) -> Memory:
        """Return what process *pid* may use; without any cgroup if its own cannot be seen."""
        return self.of_processes([pid])[pid]

    def of_processes(self, pids: Iterable[int]) -> dict[int, Memory]:
        """Return the same of each of *pids*; a cgroup around several of them is read once."""
        read = cache(_read)
        return {pid: self._memory(str(pid), read, ours=False) for pid in pids}

    def resident(self) -> int | None:
        """Return how many bytes of this process are in memory."""
        return _kib(field_of(self._text("self/status"), "VmRSS"))

    def memlock(self, pid: int) -> Memlock | None:
        """Return how much memory *pid* may lock; None if that cannot be read."""
        match = re.search(r"^Max locked memory +(\S+)", self._text(f"{pid}/limits"), re.MULTILINE)
        if match is None or not (match[1] == "unlimited" or _NUMBER.fullmatch(match[1])):
            return None
        status = self._text(f"{pid}/status")
        able = effective_capabilities(status)
        return Memlock(
            limit=None if match[1] == "unlimited" else int(match[1]),
            exempt=able is not None and bool(able >> _IPC_LOCK & 1),
            locked=_kib(field_of(status, "VmLck")),
        )

    def _memory(self, process: str, read: "_Read", *, ours: bool) -> Memory:
        node = self._text("meminfo")
        found = tuple(self._around(self._text(f"{process}/cgroup"), read, ours=ours))
        # The host's root cgroup has no limits. It counts only if there is no other.
        telling = tuple(each for each in found if each != CgroupMemory(path=each.path))
        return Memory(
            total=_kib(field_of(node, "MemTotal")) or None,
            available=_kib(field_of(node, "MemAvailable")),
            cgroups=telling or found[:1],
        )

    def _around(self, text: str, read: "_Read", *, ours: bool) -> Iterator[CgroupMemory]:
        """Yield the cgroup that *text* names and those above it, as far as they show."""
        for line in text.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                for tree in self._v2:
                    yield from self._up(tree, path, _V2, read, ours=ours)
            elif "memory" in controllers.split(","):
                yield from self._up(self._v1, path, _V1, read, ours=ours)

    def _up(
        self, tree: Path, path: str, files: _Files, read: "_Read", *, ours: bool
    ) -> Iterator[CgroupMemory]:
        place = self._place(tree, path)
        if place is None or not is_folder(tree / place.lstrip("/")):
            if not ours:
                return
            # In a container our path may not be below the mount: then its top is our own cgroup.
            place = "/"
        inside = PurePosixPath(place.lstrip("/"))
        found = [read(tree, folder, files) for folder in (inside, *inside.parents)]
        yield from found
        lowest = min((each.limit for each in found if each.limit is not None), default=None)
        beyond = _number(field_of(text_or_empty(tree / inside / "memory.stat"), _V1_HIERARCHY))
        if beyond is not None and (lowest is None or beyond < lowest):
            yield CgroupMemory(path=UNSEEN, limit=beyond)

    def _place(self, tree: Path, path: str) -> str | None:
        """Return where a process's cgroup *path* is below *tree*; None if it is not there."""
        top = self._tops[tree]
        if path.startswith("/.."):
            found = None if top == "/" else self._cgroups.absolute(path)
            return None if found is None or found.startswith("/..") else found
        if top is None or top.startswith("/.."):
            return os.path.normpath(f"{self._namespace()}{path}")
        # Older runtimes mount only a container's own part of the tree.
        if top == "/" or not PurePosixPath(path).is_relative_to(top):
            return path
        return f"/{PurePosixPath(path).relative_to(top)}"

    def _namespace(self) -> str:
        """Return where our own cgroup namespace begins; empty if it is the host's."""
        return (self._cgroups.namespace_root if self._cgroups.is_private else None) or ""

    def _text(self, name: str) -> str:
        return text_or_empty(self._root.proc / name)


def _top(mount: Mount | None) -> str | None:
    """Return which cgroup, as this process calls it, is at the top of *mount*, if that shows."""
    return mount.top if mount is not None and mount.kind.startswith("cgroup") else None


_Read = Callable[[Path, PurePosixPath, _Files], CgroupMemory]


def _read(tree: Path, cgroup: PurePosixPath, files: _Files) -> CgroupMemory:
    """Return what one cgroup says; it has no such files if the controller is off."""
    folder = str(tree / cgroup)
    used = _number(text_or_empty(f"{folder}/{files.usage}"))
    stat = text_or_empty(f"{folder}/memory.stat")
    cached = sum(_number(field_of(stat, each)) or 0 for each in files.cache)
    return CgroupMemory(
        path=str("/" / cgroup),
        limit=_number(text_or_empty(f"{folder}/{files.limit}")) or None,
        high=_number(text_or_empty(f"{folder}/{files.high}")) if files.high else None,
        usage=None if used is None else max(0, used - cached),
    )


def _kib(text: str) -> int | None:
    number = _number(text.removesuffix("kB").strip())
    return None if number is None else number * _KIB


def _number(text: str) -> int | None:
    """Return the number. Version 1's number for "no limit" is larger than any node's memory."""
    return int(text) if _NUMBER.fullmatch(text) else None
