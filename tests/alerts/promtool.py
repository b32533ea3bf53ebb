"""Prometheus' own checker of rules: the machine's, or one that is fetched and never installed."""

import fcntl
import platform
import shutil
from pathlib import Path

import pytest

from alerts.queries import REPOSITORY
from vm.packages import unpacked
from vm.parts import LackingError

_WORK = REPOSITORY / "build/promtool"


def promtool() -> Path:
    """Return where promtool is; skip the test with the reason where there is none to be had."""
    found = shutil.which("promtool")
    if found:
        return Path(found)
    _WORK.mkdir(parents=True, exist_ok=True)
    try:
        suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        with (_WORK / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tree = unpacked(_WORK, "prometheus", suite, tell=print)
    except (LackingError, OSError) as error:
        pytest.skip(f"promtool is not on PATH and cannot be fetched: {error}")
    return tree / "usr/bin/promtool"
