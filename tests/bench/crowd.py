"""Many processes with many open files each, such as a busy node has.

Run as a script: crowd.py PROCESSES FILES [NODE…]. It prints the pids, and ends with its standard
input.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def crowd(processes: int, files: int, nodes: Sequence[Path] = ()) -> Iterator[list[int]]:
    """Keep *processes* alive with *files* open in each, and yield their pids.

    The first has the first of *nodes* open as well, the second the second, and so on.
    """
    command = [sys.executable, "-I", "-S", __file__, str(processes), str(files), *map(str, nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        if parent.stdin is None or parent.stdout is None:
            raise RuntimeError("no pipes")
        try:
            yield [int(pid) for pid in parent.stdout.readline().split()]
        finally:
            parent.stdin.close()
            parent.wait()


def main() -> None:
    processes, files = map(int, sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids = [_fork(files, sys.argv[3 + place : 4 + place]) for place in range(processes)]
    print(*pids, flush=True)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def _fork(files: int, nodes: Sequence[str]) -> int:
    """Start one process; half of its files are sockets and pipes, half lie on a disk."""
    opened, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        os.read(opened, 1)
        os.close(opened)
        return pid
    keep = [socket.socketpair() for _ in range(files // 8)]
    pipes = [os.pipe() for _ in range(files // 8)]
    for node in nodes:
        os.open(node, os.O_RDWR | os.O_NOCTTY)
    with tempfile.TemporaryFile() as file:
        open_now = 5 + 2 * len(keep) + 2 * len(pipes) + 1  # standard streams and the pipe above
        for _ in range(files - open_now):
            os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        os.write(tell, b"!")
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
