"""Where a path leads: through the links of another root, and onto which mounted filesystem."""

import os
import re
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.host.files.kernelfile import text_or_empty
from holdfast.host.root import HostRoot

_ESCAPE = re.compile(r"\\([0-7]{3})")
_ROOT, _POINT, _OPTIONS = 3, 4, 5
_MOST_LINKS = 40
"""As many as Linux follows; more is a circle."""


class Mount(Struct, frozen=True, kw_only=True):
    """One mount of a process.

    `writable`: neither the mount nor its filesystem is read-only. `devices`: device nodes on it
    can be opened. `top` is the folder of the filesystem that the mount shows.
    """

    point: str
    kind: str
    top: str = "/"
    writable: bool = True
    devices: bool = True
    options: tuple[str, ...] = ()
    """The options of the filesystem, such as ``hidepid=2`` or ``nsdelegate``."""


def mounts(root: HostRoot, process: str = "self") -> tuple[Mount, ...]:
    """Return the mounts of *process* in the order they were made; none if they cannot be read."""
    found: list[Mount] = []
    for line in text_or_empty(root.proc / process / "mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, rest = mount.split(" "), filesystem.split(" ")
        if len(fields) <= _OPTIONS or not rest[0]:
            continue
        options = tuple(rest[-1].split(","))
        found.append(
            Mount(
                point=_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[_POINT]),
                kind=rest[0],
                top=fields[_ROOT],
                devices="nodev" not in fields[_OPTIONS].split(","),
                writable="ro" not in fields[_OPTIONS].split(",") and "ro" not in options,
                options=options,
            )
        )
    return tuple(found)


def mounted_at(seen: tuple[Mount, ...], point: Path) -> Mount | None:
    """Return the mount that is visible at *point* itself; None if nothing is mounted there.

    Of several at one place the last one hides the others.
    """
    return next((mount for mount in reversed(seen) if mount.point == str(point)), None)


def mount_of(seen: tuple[Mount, ...], path: str) -> Mount | None:
    """Return the mount that *path* is on; None if *seen* does not tell.

    *path* must be free of links; it need not exist.
    """
    above = {path, *map(str, PurePosixPath(os.path.normpath(path)).parents)}
    on = [mount for mount in seen if mount.point in above]
    # The deepest; of several at one place the last, which hides the others.
    return max(reversed(on), key=lambda mount: len(mount.point), default=None)


def below(root: Path, path: str) -> Path | None:
    """Return where *path* leads for a process whose root is *root*; None for a circle of links.

    The links of a driver container, or of a copied node, may be absolute. If we followed them
    ourselves, they would lead into our own files. The result need not exist.
    """
    at, links = root, 0
    parts = list(reversed(PurePosixPath(path).parts))
    while parts:
        part = parts.pop()
        if part == "/":
            at = root
        elif part == "..":
            at = at if at == root else at.parent
        else:
            try:
                target = (at / part).readlink()
            except OSError:
                at /= part
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            parts += reversed(target.parts)
    return at
