"""A real cgroup v2, in which real processes live, end, and fork on."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.host.root import HostRoot
from waiting import wait_until

_REAPER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(int(sys.argv[2])):
    if not os.fork():
        break
else:
    sys.stdin.read()
    os._exit(0)
with open(sys.argv[1], "w") as procs:
    procs.write("0")
os.write(1, b".")
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""
"""A reaper outside the cgroup, and in it processes that fork and end, and so do their children."""

_CHAINS = 8
"""How many chains of processes fork."""


@contextlib.contextmanager
def cgroup2(name: str) -> Iterator[Path]:
    """Yield a new cgroup called *name* of this kernel; skip where none can be made.

    Its processes are killed in the end.
    """
    with tempfile.TemporaryDirectory(prefix="hf-cg-") as mount:
        done = subprocess.run(
            ["mount", "-t", "cgroup2", "none", mount], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount cgroup v2 here: {done.stderr.strip()}")
        folder = Path(mount) / f"hf-{os.getpid()}"
        made = folder / name
        try:
            made.mkdir(parents=True)
            yield made
        finally:
            wait_until(lambda: _killed(folder), what="the end of the cgroup's processes")
            for below, _, _ in os.walk(folder, topdown=False):
                Path(below).rmdir()
            subprocess.run(["umount", mount], check=True)


def _killed(folder: Path) -> bool:
    """Kill what lives in *folder*, and tell whether nobody does any more."""
    for below in folder.rglob("cgroup.freeze"):
        below.write_text("0")
    (folder / "cgroup.kill").write_text("1")
    # That does not reach a process whose first thread has exited.
    for listed in folder.rglob("cgroup.procs"):
        for pid in listed.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    return not populated(folder)


def host(cgroup: Path) -> HostRoot:
    """Return this host, with the tree that *cgroup* is in the middle of as all of its cgroups."""
    mount = next(each for each in cgroup.parents if each.is_mount())
    return replace(HostRoot.under(), cgroup=mount)


def populated(cgroup: Path) -> bool:
    return "populated 1" in (cgroup / "cgroup.events").read_text()


def enter(cgroup: Path, pid: int) -> None:
    (cgroup / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def fork_chains(cgroup: Path) -> Iterator[None]:
    """Let processes live in *cgroup* of which each is another one every millisecond."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _REAPER,
        str(cgroup / "cgroup.procs"),
        f"{_CHAINS}",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reaper:
        # All of them: who enters after the end of a pod is not one that forked away from it.
        assert reaper.stdout is not None
        assert reaper.stdout.read(_CHAINS) == b"." * _CHAINS
        try:
            yield
        finally:
            reaper.stdin.close() if reaper.stdin else None
