"""Follows a path in a file system that is not ours, as a process there would follow it."""

from pathlib import Path, PurePosixPath

_MOST_LINKS = 40
"""As many as Linux follows; more is a circle."""


def below(root: Path, path: str) -> Path | None:
    """Return where *path* leads for a process whose root is *root*; None for a circle of links.

    The links of a driver container, or of a copied node, may be absolute: followed by us they
    would lead into our own files. What it leads to need not exist.
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
