"""The files of a ledger: made whole beside their place, and put there over nothing of anybody's."""

import os
from pathlib import Path

FILE = "ledger.db"
COMPANIONS = ("-wal", "-shm")
"""What SQLite has beside an open ledger, by what its name has after the ledger's."""
NAMES = (FILE, *(FILE + suffix for suffix in COMPANIONS))
LOCK = "lock"
"""What the daemon holds locked while it runs."""


def half(path: Path) -> Path:
    """Return where a ledger is written before it is put at *path*."""
    return path.with_name(f".{path.name}.new")


def remove_half(path: Path) -> None:
    """Remove what an attempt to make *path* left behind."""
    made = half(path)
    for suffix in ("-journal", "", *COMPANIONS):
        made.with_name(made.name + suffix).unlink(missing_ok=True)


def replace(path: Path) -> None:
    """Put what was made in the place of *path*."""
    half(path).replace(path)
    _sync(path.parent)


def link(path: Path) -> None:
    """Put what was made at *path*; raises FileExistsError where anything lies there."""
    made = half(path)
    os.link(made, path)
    made.unlink()
    _sync(path.parent)


def move_companions_aside(path: Path) -> None:
    """Rename what another ledger at *path* left: SQLite would take its WAL for the next one's."""
    for suffix in COMPANIONS:
        left = path.with_name(path.name + suffix)
        if left.exists():
            left.replace(left.with_name(f"{left.name}.stale"))


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
