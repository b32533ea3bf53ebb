"""A cgroup and namespaces of our own, in which nothing of anybody else can be reached; all ends with them."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hostile.programs import Programs
from hostile.scene import kill, remove

_CROWD = 400
_PROCESSORS = Path("/sys/fs/cgroup/cpu")
"""Where the tree of processors' time is if it is one of version 1 beside that of version 2."""
_MOUNTS = "/proc/self/mounts"


@contextlib.contextmanager
def own_cgroup(folder: Path) -> Iterator[Path | str]:
    """Yield the folder of a cgroup of ours, or why there can be none; end all in it afterwards.

    *folder* is where the tree is mounted if it is not yet.
    """
    with _tree(folder) as tree:
        if isinstance(tree, str):
            yield tree
            return
        own = tree / f"holdfast-hostile-{os.getpid()}"
        try:
            own.mkdir()
        except OSError as error:
            yield f"cgroup v2 cannot be written at {tree}: {error.strerror}"
            return
        try:
            yield own
        finally:
            for _ in range(500):
                kill(own)
                remove(own)
                if not own.exists():
                    break
                time.sleep(0.02)


@contextlib.contextmanager
def own_share(link: Path) -> Iterator[None]:
    """Let *link* lead to a group that shares the processors with what is not in it, if one can be.

    Kubelet gives each pod such a share. Where version 2 has the processors, `mount_tree` does it.
    """
    own = _PROCESSORS / f"holdfast-hostile-{os.getpid()}"
    try:
        own.mkdir()
    except OSError:
        yield
        return
    (own / "cpu.shares").write_text("256")
    link.symlink_to(own)
    try:
        yield
    finally:
        for _ in range(500):
            remove(own)
            if not own.exists():
                break
            time.sleep(0.02)


def run_inside(cgroup: Path, programs: Programs, left: Path, words: Sequence[str]) -> int:
    """Run this package with *words* inside; return its status.

    What attacks leave in files is left in *left*.
    """
    inside = [programs.init, sys.executable, "-m", "hostile", "--inside", *words]
    unshare = [
        programs.tied,
        "unshare",
        *("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup"),
        *inside,
    ]
    enter = f"echo $$ >{shlex.quote(str(cgroup / 'cgroup.procs'))} && exec {shlex.join(unshare)}"
    environment = {**os.environ, "GRPC_VERBOSITY": "ERROR", "TMPDIR": str(left)}
    return subprocess.run(["/bin/sh", "-c", enter], check=False, env=environment).returncode


def lacks() -> str:
    """Return what this machine or user lacks for namespaces, or nothing."""
    if os.geteuid():
        return "it needs root, to make namespaces and cgroups"
    for program in ("unshare", "mount"):
        if shutil.which(program) is None:
            return f"it needs the program {program}"
    made = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--cgroup", "true"],
        check=False,
        capture_output=True,
        text=True,
    )
    return f"namespaces cannot be made: {made.stderr.strip()}" if made.returncode else ""


def mount_tree(folder: Path) -> None:
    """Mount the part of the cgroup tree that is ours, on *folder*, and leave its top."""
    subprocess.run(["mount", "-t", "cgroup2", "none", str(folder)], check=True)
    service = folder / "system.slice"
    service.mkdir()
    for pid in (1, os.getpid()):
        (service / "cgroup.procs").write_text(str(pid))
    if "cpu" in (folder / "cgroup.controllers").read_text().split():
        (folder / "cgroup.subtree_control").write_text("+cpu")
        (service / "cpu.weight").write_text("400")


def gather_crowd(programs: Programs) -> None:
    """Let as many processes be there as on a node with a few pods: a look at all takes its time."""
    command = programs.command(["floods", "processes", str(_CROWD), "1"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"!")
        process.stdin.flush()
        told = process.stdout.readline().decode().strip()
    if told != "set":
        raise AssertionError(f"the crowd did not come: {told}")


@contextlib.contextmanager
def _tree(folder: Path) -> Iterator[Path | str]:
    """Yield where cgroup v2 is mounted, or why it is not."""
    for line in Path(_MOUNTS).read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            yield Path(where)
            return
    made = subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        yield f"there is no cgroup v2: {made.stderr.strip()}"
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
