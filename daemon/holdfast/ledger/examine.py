"""Looks whether a ledger's file could be used, and changes nothing, not even beside it."""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.ledger.disk import FILE, Stamp, sealed
from holdfast.ledger.readonly import has_wal, inspect

_TRIES = 5


def examine(folder: Path, *, in_use: bool) -> None:
    """Raise LedgerUnusableError when a daemon could not use the ledger in *folder*.

    *in_use*: a daemon has it open. Raise LedgerError when that could not be found out.
    """
    path = folder / FILE
    wal = path.with_name(f"{FILE}-wal")
    try:
        if not os.access(path, os.R_OK):  # of which SQLite says only that it cannot open it
            raise LedgerError(f"cannot read the ledger {path}: permission denied")  # noqa: TRY301 - all that is wrong with the file in one place
        known = sealed(folder)
        if not has_wal(folder):
            # Opened as any other file of this kind, it would get two files beside it.
            inspect(path, known, how="immutable=1")
        elif in_use:
            inspect(path, known)  # everything beside it is there, and locked as among neighbours
        else:
            _inspect_copy(path, wal, known)
    except LedgerError:
        raise
    except (sqlite3.Error, ValueError) as error:
        raise LedgerUnusableError(f"cannot use the ledger {path}: {error}") from error
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror or error}") from error


def _inspect_copy(path: Path, wal: Path, known: Stamp | None) -> None:
    """Look at a copy: a WAL that a crash left would be folded back by whoever opens it.

    Where a daemon is at work all the same, its two files must be of one moment.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        for _ in range(_TRIES):
            before = _moment(path, wal)
            for file in (path, wal):
                shutil.copyfile(file, Path(folder) / file.name)
            if _moment(path, wal) == before:
                inspect(Path(folder) / path.name, known)
                return
    raise LedgerError(f"cannot read the ledger {path}: it is being written all the time")


def _moment(*files: Path) -> list[tuple[int, int, int]]:
    found = [file.stat() for file in files]
    return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]
