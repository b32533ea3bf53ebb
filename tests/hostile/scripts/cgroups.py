"""A process that has the node, and does something with cgroups: cgroups.py NAME NUMBER NODE.

Run as a script, which imports nothing of holdfast; the environment names its cgroup and the tree's top.
It says "holds" on standard output when it is set.
"""

import os
import sys
import time
from pathlib import Path

_OWN, _TOP = Path(os.environ["HOSTILE_CGROUP"]), Path(os.environ["HOSTILE_TOP"])


def between(microseconds: int) -> None:
    """Go from one cgroup to another and back, for ever."""
    first, second = _made(_OWN / "one"), _made(_OWN / "two")
    _enter(first)
    _say()
    while True:
        _enter(second)
        time.sleep(microseconds / 1e6)
        _enter(first)
        time.sleep(microseconds / 1e6)


def deep(levels: int) -> None:
    """Be many levels down."""
    folder = _OWN
    for _ in range(levels):
        folder = _made(folder / "level")
    _enter(folder)
    _say()


def many(count: int) -> None:
    """Be in the last of many."""
    for place in range(count):
        _made(_OWN / f"place{place}")
    _enter(_OWN / f"place{count - 1}")
    _say()


def deepest(levels: int) -> None:
    """Be so far down that no path leads there, by names that are no UTF-8."""
    os.chdir(_OWN)
    for _ in range(levels):
        os.chdir(_made(Path("\udcff" * 250)))
    Path("cgroup.procs").write_text(str(os.getpid()))
    _say()


def threaded(_: int) -> None:
    """Be in a cgroup of threads, which lists no processes."""
    folder = _made(_OWN / "threads")
    (folder / "cgroup.type").write_text("threaded")
    _enter(folder)
    _say()


def leaves(_: int) -> None:
    """Leave the pod."""
    _enter(_made(_TOP / "hostile-elsewhere"))
    _say()


def frozen(_: int) -> None:
    """Freeze ourselves."""
    _say()
    (_OWN / "cgroup.freeze").write_text("1")


def churn(count: int) -> None:
    """Make and remove cgroups, for ever."""
    _say()
    while True:
        for place in range(count):
            _made(_OWN / f"brief{place}")
        for place in range(count):
            (_OWN / f"brief{place}").rmdir()


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _enter(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def _say() -> None:
    print("holds", flush=True)


_ALL = (between, deep, deepest, many, threaded, leaves, frozen, churn)
_KINDS = {each.__name__: each for each in _ALL}

if __name__ == "__main__":
    os.open(sys.argv[3], os.O_RDWR | os.O_NOCTTY)
    _KINDS[sys.argv[1]](int(sys.argv[2]))
    time.sleep(1e6)
