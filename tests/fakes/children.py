"""Children of a test that run some Python, and end with it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast

Start = Callable[..., "subprocess.Popen[str]"]
"""Starts a child by its code and its arguments; with its standard input it may be talked to."""


@contextmanager
def children() -> Iterator[Start]:
    """Yield what starts children, all of which are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            # The code that is tested, whatever is installed.
            env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def ready(child: "subprocess.Popen[str]") -> int:
    """Return the pid of *child* once it has written an empty line."""
    assert child.stdout is not None
    assert child.stdout.readline() == "\n"
    return child.pid
