"""Processes that are forked from one that has loaded what they need: to load it takes the longest.

For what one process can do only once, such as to load a library, and for daemons, of which tests
start hundreds.
"""

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

_DAEMONS = ("holdfast.cli.run", "holdfast.app.daemon", "holdfast.settings.sources")
# What `python -m holdfast` does with these arguments, by which it also starts itself again.
_DAEMON = """
import faulthandler, sys
faulthandler.enable()
sys.orig_argv = [sys.executable, "-m", "holdfast", *sys.argv[1:]]
from holdfast.cli import main
sys.exit(main())
"""


class Forked:
    """One of them, with what `subprocess.Popen` has of it that tests need."""

    def __init__(self, place: socket.socket, pid: int) -> None:
        self._place = place
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None: it runs."""
        if self._status is None and _ended(self._fd, 0.0):
            self._reap()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; raise subprocess.TimeoutExpired after *timeout* seconds."""
        if self._status is None and not _ended(self._fd, timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _reap(self) -> None:
        self._place.send(json.dumps({"wait": self.pid}).encode())
        self._status = int(self._place.recv(64))
        os.close(self._fd)


class Talking(Forked):
    """One of them, with its standard input and output."""

    def __init__(self, place: socket.socket, pid: int, stdin: TextIO, stdout: TextIO) -> None:
        super().__init__(place, pid)
        self.stdin = stdin
        self.stdout = stdout

    def wait(self, timeout: float | None = None) -> int:
        """Do as `Forked.wait`, and close what it was talked to by."""
        status = super().wait(timeout)
        self.stdin.close()
        self.stdout.close()
        return status

    def end(self) -> None:
        """Kill it, and return when it has ended."""
        self.kill()
        self.wait()


class Template:
    """The process that they are forked from; it ends with who made it, or when it is closed."""

    def __init__(self, place: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._place = place
        self._process = process

    @classmethod
    def of(cls, *modules: str) -> "Template":
        """Start one that loads *modules*."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        return cls(ours, process)

    @classmethod
    def as_parent(cls) -> "Template":
        """Make this process one of daemons, and return in a child, which has loaded the same.

        When the child ends, so does this process, with the same exit code.
        """
        _load(_DAEMONS)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            theirs.close()
            return cls(ours, None)
        ours.close()
        _serve(theirs)
        _, status = os.waitpid(pid, 0)
        sys.exit(os.waitstatus_to_exitcode(status))

    def start(self, code: str, *arguments: object, environment: Mapping[str, str]) -> Talking:
        """Run *code* in a process of its own, with *arguments* and *environment* beside ours."""
        (stdin, to), (back, stdout) = os.pipe(), os.pipe()
        given = {**os.environ, **environment}
        try:
            pid = self._fork(code, arguments, given, (stdin, stdout))
        finally:
            os.close(stdin)
            os.close(stdout)
        return Talking(self._place, pid, os.fdopen(to, "w"), os.fdopen(back))

    def daemon(
        self, *arguments: str, environment: Mapping[str, str], log: BinaryIO, first: str = ""
    ) -> Forked:
        """Run `holdfast` with *arguments*, in *environment* alone; what it prints goes to *log*.

        *first* is code that runs before it in its process, such as what takes rights from it.
        """
        with Path(os.devnull).open("rb") as nothing:
            fds = (nothing.fileno(), log.fileno(), log.fileno())
            return Forked(self._place, self._fork(first + _DAEMON, arguments, environment, fds))

    def _fork(
        self,
        code: str,
        arguments: Sequence[object],
        environment: Mapping[str, str],
        fds: Sequence[int],
    ) -> int:
        order = {
            "code": code,
            "arguments": list(map(str, arguments)),
            "environment": dict(environment),
        }
        socket.send_fds(self._place, [json.dumps(order).encode()], fds)
        return int(self._place.recv(64))

    def close(self) -> None:
        """Let it end; what was forked from it goes on."""
        self._place.close()
        if self._process is not None:
            self._process.wait()


@functools.cache
def daemons() -> Template:
    """Return the process that this process's daemons are forked from."""
    template = Template.of(*_DAEMONS)
    atexit.register(template.close)
    return template


def _ended(pidfd: int, timeout: float | None) -> bool:
    """Whether the process ends within *timeout* seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def _load(modules: Sequence[str]) -> None:
    # A node has no rich. Where structlog finds it, it loads it, which is most of what structlog takes.
    sys.modules["rich"] = None  # type: ignore[assignment]
    for name in modules:
        importlib.import_module(name)


def _serve(place: socket.socket) -> None:
    """Fork what is ordered at *place*, until nobody can order any more."""
    while True:
        message, fds, _, _ = socket.recv_fds(place, 1 << 20, 3)
        if not message:
            return
        order = json.loads(message)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            place.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if pid == 0:
            place.close()
            _run(order, fds)
        for fd in fds:
            os.close(fd)
        place.send(b"%d" % pid)


def _run(order: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    """Do what was ordered, with *fds* for the standard ones, and end."""
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv[1:] = order["arguments"]
    status = 1
    try:
        exec(order["code"], {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter tells it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    _load(sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
