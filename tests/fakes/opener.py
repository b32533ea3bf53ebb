"""A real process that has a node open, and closes it without ending when a test says so."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simulated.node import SimulatedNode

_CODE = """
import os, sys
opened = [os.open(each, os.O_RDWR | os.O_NOCTTY) for each in sys.argv[2:]]
if sys.argv[1]:
    open("/proc/self/comm", "w").write(sys.argv[1])
print(flush=True)
for line in sys.stdin:
    os.close(opened.pop())
    print(flush=True)
"""


class Opener:
    """Has some nodes open, the last of which is the first that it closes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid
        self._answer()

    def close_one(self) -> None:
        """Have it close a node, and return when it has."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._answer()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "\n", "it has ended"


@contextmanager
def opener(*paths: object, command: str = "") -> Iterator[Opener]:
    """Start a process that has *paths* open; *command* is what the kernel shall call it."""
    arguments: Sequence[str] = [command, *map(str, paths)]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _CODE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Opener(process)
        finally:
            process.kill()


@contextmanager
def stranger(node: SimulatedNode, path: str) -> Iterator[Opener]:
    """Let a process of *node* that is of no pod have a device node open."""
    with opener(node.node(path)) as made:
        node.add_process(made.pid, "/user.slice")
        yield made
