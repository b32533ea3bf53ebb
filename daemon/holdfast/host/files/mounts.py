"""Which filesystem a path is on, by the kernel's list of mounts."""

import os
import re
from pathlib import PurePosixPath

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_text
from holdfast.host.root import HostRoot

_ESCAPE = re.compile(r"\\([0-7]{3})")
_POINT, _OPTIONS = 4, 5


class Mount(Struct, frozen=True, kw_only=True):
    """One mount. `writable`: neither it nor its filesystem is read-only; `devices`: nodes open."""

    point: str
    kind: str
    writable: bool = True
    devices: bool = True
    options: tuple[str, ...] = ()
    """Those of the filesystem, such as ``hidepid=2`` or ``nsdelegate``."""


def mounts(root: HostRoot, process: str = "self") -> tuple[Mount, ...]:
    """Return the mounts that *process* sees, in the order they were made; none if untold."""
    try:
        text = read_text(root.proc / process / "mountinfo") or ""
    except HostError:
        return ()
    found: list[Mount] = []
    for line in text.splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, rest = mount.split(" "), filesystem.split(" ")
        if len(fields) <= _OPTIONS or not rest[0]:
            continue
        options = tuple(rest[-1].split(","))
        found.append(
            Mount(
                point=_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[_POINT]),
                kind=rest[0],
                devices="nodev" not in fields[_OPTIONS].split(","),
                writable="ro" not in fields[_OPTIONS].split(",") and "ro" not in options,
                options=options,
            )
        )
    return tuple(found)


def mount_of(seen: tuple[Mount, ...], path: str) -> Mount | None:
    """Return the one of *seen* that *path* is on; None where that cannot be told.

    *path* must be free of links; it need not exist.
    """
    above = {path, *map(str, PurePosixPath(os.path.normpath(path)).parents)}
    on = [mount for mount in seen if mount.point in above]
    # The deepest, and of several at one place the last, which hides the others.
    return max(reversed(on), key=lambda mount: len(mount.point), default=None)
