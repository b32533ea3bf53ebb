"""How much memory this process may use: the node's, or the tightest cgroup limit around it."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from holdfast.errors import HostError
from holdfast.host.kernelfile import read_text
from holdfast.host.root import HostRoot

_KIB = 1024


def memory_limit(root: HostRoot) -> int | None:
    """Return the limit in bytes, or None where nothing can be read.

    A limit that is unreadable, odd, or above what the node has counts as none. From inside a
    private cgroup namespace the limits above it cannot be seen.
    """
    total = _total(root)
    limits = [limit for limit in _limits(root) if total is None or limit < total]
    return min(limits, default=total)


def _total(root: HostRoot) -> int | None:
    for line in (_text(root.proc / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            number = _number(value.removesuffix("kB").strip())
            return None if number is None else number * _KIB
    return None


def _limits(root: HostRoot) -> Iterator[int]:
    """Yield the limit of our own cgroup and of every one above it, as far as they can be seen."""
    for line in (_text(root.proc / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for tree in (root.cgroup, root.cgroup / "unified"):
                yield from _up(tree, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _up(root.cgroup / "memory", path, "memory.limit_in_bytes")


def _up(tree: Path, path: str, name: str) -> Iterator[int]:
    inside = PurePosixPath(path.lstrip("/"))
    # Seen from a container, our path may not exist below the mount: its top is then ourselves.
    for folder in (inside, *inside.parents):
        text = _text(tree / folder / name)
        number = None if text is None else _number(text)
        if number is not None:
            yield number


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def _text(path: Path) -> str | None:
    try:
        return read_text(path)
    except HostError:
        return None
