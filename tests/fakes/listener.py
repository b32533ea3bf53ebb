"""Processes of a chosen name that listen on sockets, as kubelet and plugins do."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_LISTEN = """
import socket, sys
kept = []
for path in sys.argv[1].split(","):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(path)
    kept[-1].listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listening(name: str, folder: Path, paths: list[Path], *arguments: str) -> Iterator[int]:
    """Let a process called *name* listen on *paths*."""
    program = folder / name
    if not program.exists():
        program.symlink_to(sys.executable)
    command = [str(program), "-c", _LISTEN, ",".join(map(str, paths)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield process.pid
        finally:
            process.terminate()
