"""A disk that fails on demand, without root: a C library that a daemon has preloaded.

And a real one, where root may mount: an ext4 that can be shut down as a power failure does it.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32), as the kernel's fs/ext4/ext4.h has it."""
_WITHOUT_FLUSHING = 2


def not_here(reason: str) -> None:
    """Skip for want of *reason*; on CI a machine is known to have all it takes, and it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def preloaded(source: str, folder: Path) -> Path:
    """Return the library of *source*, built in *folder*; skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        not_here("what answers with errors needs a C compiler (cc, gcc or clang)")
    library = folder / f"{source}.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    beside = str(Path(__file__).with_name(source))
    subprocess.run([str(compiler), *flags, "-o", str(library), beside, "-ldl"], check=True)
    return library


class FaultyDisk:
    """Faults for a process that is started with `environment`, in its files below *under*."""

    def __init__(self, folder: Path, under: Path) -> None:
        """Build the library in *folder*, or skip the test where there is no C compiler."""
        self._faults, self.synced = folder / "faults", folder / "synced"
        self._faults.mkdir(parents=True)
        self.synced.mkdir()
        self.environment = {
            "LD_PRELOAD": str(preloaded("faultydisk.c", folder)),
            "FAULTY_DISK": str(self._faults),
            "FAULTY_DISK_UNDER": str(under.resolve()),
            "FAULTY_DISK_SYNCED": str(self.synced),
        }

    def breaks(self, fault: str) -> None:
        """Have *fault*, one of those that the C source names, from now on."""
        (self._faults / fault).touch()

    def is_mended(self) -> None:
        """Have no fault any more."""
        for fault in self._faults.iterdir():
            fault.unlink()


class Ext4:
    """A mounted file system of its own, on a file."""

    def __init__(self, folder: Path) -> None:
        self._image, self.path = folder / "disk.img", folder / "disk"

    def mount(self) -> None:
        """Mount it, as a node does that comes up."""
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)

    def power_fails(self) -> None:
        """Lose all that was not synced; from now on nothing can be read or written."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING))
        finally:
            os.close(fd)

    def goes_read_only(self) -> None:
        """Do as ext4 does after an error: it takes no write any more, not even in open files."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.path)], check=True)

    def unmount(self) -> None:
        """Unmount it; nobody may have a file of it open."""
        subprocess.run(["umount", str(self.path)], check=True)

    def make(self) -> None:
        """Make it, or skip the test where that needs more than there is."""
        with self._image.open("wb") as file:
            file.truncate(16 << 20)
        self.path.mkdir()
        try:
            subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
            self.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a file system of its own needs root, loop devices and mkfs.ext4: {error}")


@contextmanager
def ext4(folder: Path) -> Iterator[Ext4]:
    """Yield an empty ext4 that is mounted below *folder*; skip where root may not mount."""
    disk = Ext4(folder)
    disk.make()
    try:
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", str(disk.path)], check=True, capture_output=True)
