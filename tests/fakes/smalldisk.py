"""A disk that is soon full."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(disk: Path, *, size: str = "3m") -> Iterator[Path]:
    """Make the folder *disk* a file system of *size*; the test is skipped where that is forbidden."""
    disk.mkdir(exist_ok=True)
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", f"size={size}", "holdfast-test", str(disk)]
    if (
        mount is None
        or subprocess.run([mount, *options], check=False, capture_output=True).returncode
    ):
        pytest.skip("a small disk to fill needs root and mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on *disk*; return the file that has it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return filler
