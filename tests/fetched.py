"""Programs that tests hold ours against: the machine's own, or fetched and never installed."""

import fcntl
import platform
import shutil
from pathlib import Path

import pytest

from vm.packages import unpacked
from vm.parts import LackingError

_WORK = Path(__file__).resolve().parents[1] / "build/fetched"


def program(name: str, *, package: str) -> Path:
    """Return where *name* is, by *package* of the machine's own Debian where PATH has none.

    Skips the test with the reason where it is not to be had.
    """
    found = shutil.which(name)
    if found:
        return Path(found)
    _WORK.mkdir(parents=True, exist_ok=True)
    try:
        suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        with (_WORK / f"{package}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tree = unpacked(_WORK, package, suite, tell=print)
    except (LackingError, OSError) as error:
        pytest.skip(f"{name} is not on PATH and cannot be fetched: {error}")
    return tree / "usr/bin" / name
