"""Processes that are forked from one that has loaded what they need: to load it takes the longest.

For what one process can do only once, such as to load a library.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import TextIO

_TEMPLATE = """
import importlib, json, os, socket, sys, traceback
place = socket.socket(fileno=int(sys.argv[1]))
for name in sys.argv[2:]:
    importlib.import_module(name)
while True:
    message, fds, _, _ = socket.recv_fds(place, 1 << 20, 2)
    if not message:
        break
    order = json.loads(message)
    if "wait" in order:
        _, status = os.waitpid(order["wait"], 0)
        place.send(b"%d" % os.waitstatus_to_exitcode(status))
        continue
    pid = os.fork()
    if pid == 0:
        place.close()
        for fd, standard in zip(fds, (0, 1)):
            os.dup2(fd, standard)
            os.close(fd)
        os.environ.update(order["environment"])
        sys.argv[1:] = order["arguments"]
        status = 1
        try:
            exec(order["code"], {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    for fd in fds:
        os.close(fd)
    place.send(b"%d" % pid)
"""


class Forked:
    """One of them, with its standard input and output."""

    def __init__(self, place: socket.socket, pid: int, stdin: TextIO, stdout: TextIO) -> None:
        self._place = place
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout

    def end(self) -> None:
        """Kill it, and return when it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Return its exit code once it has ended."""
        self._place.send(json.dumps({"wait": self.pid}).encode())
        status = int(self._place.recv(64))
        self.stdin.close()
        self.stdout.close()
        return status


class Template:
    """The process that they are forked from; it ends with who made it, or when it is closed."""

    def __init__(self, *modules: str) -> None:
        """Load *modules*."""
        self._place, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, str(theirs.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(self, code: str, *arguments: object, environment: Mapping[str, str]) -> Forked:
        """Run *code* in a process of its own, with *arguments* and *environment* beside ours."""
        (stdin, to), (back, stdout) = os.pipe(), os.pipe()
        order = {
            "code": code,
            "arguments": list(map(str, arguments)),
            "environment": dict(environment),
        }
        socket.send_fds(self._place, [json.dumps(order).encode()], [stdin, stdout])
        for fd in (stdin, stdout):
            os.close(fd)
        pid = int(self._place.recv(64))
        return Forked(self._place, pid, os.fdopen(to, "w"), os.fdopen(back))

    def close(self) -> None:
        self._place.close()
        self._process.wait()
