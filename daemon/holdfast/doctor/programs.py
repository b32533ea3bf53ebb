"""Programs of the node: where they are, which run, what they say, and who answers on a socket."""

import os
import signal
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from holdfast.doctor.finding import Node, ProgramOutput
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import stat_or_none
from holdfast.host.proc.pidfd import listener
from holdfast.host.proc.procfs import ProcessFacts, Procfs
from holdfast.host.root import HostRoot
from holdfast.names import CONTROL_SOCKET

FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
)
"""Where programs of services are by default, and where Kubernetes distributions have theirs."""
_PATIENCE = 2.0
"""Seconds. No question needs a look at a device."""
_LAST_PATIENCE = 1.0
_SHOWN = 200


class SocketAnswer(Struct, frozen=True):
    """Who answers on a socket: a pid, 0 for one that cannot be seen; or why nobody does.

    `listens`: somebody has the socket, and may have too many connections waiting to answer.
    """

    pid: int = 0
    problem: str = ""
    listens: bool = False


def run(command: Sequence[str], *, patience: float = _PATIENCE) -> ProgramOutput:
    """Run *command* and return its standard output; kill it with its children after *patience*."""
    try:
        process = subprocess.Popen(  # noqa: S603 - a program that the node's own runtime starts
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return ProgramOutput(problem=f"cannot run {command[0]}: {error.strerror}")
    try:
        said, complained = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _kill(process)
        return ProgramOutput(problem=f"{' '.join(command)} gave no answer within {patience:g} s")
    if process.returncode != 0:
        why = complained.decode(errors="replace").strip()[-_SHOWN:]
        return ProgramOutput(problem=f"{' '.join(command)} ended with {process.returncode}: {why}")
    return ProgramOutput(text=said.decode(errors="replace"))


def find_program(node: Node, name: str, folders: Iterable[str]) -> str:
    """Return the path on the node of the first program called *name*; empty if there is none.

    A *name* with a slash is a path, and looked for in no folder.
    """
    paths = [name] if "/" in name else (f"{folder.rstrip('/')}/{name}" for folder in folders)
    return next((path for path in paths if _is_program(node, path)), "")


def _is_program(node: Node, path: str) -> bool:
    """Tell whether *path* is an executable file."""
    found = stat_or_none(node.path(path))
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def ask_socket(path: Path) -> SocketAnswer:
    """Connect to the socket *path*, send nothing, and return who answers.

    Raise HostError without permission.
    """
    try:
        return SocketAnswer(pid=listener(path), listens=True)
    except PermissionError as error:
        raise HostError(f"no permission to connect to {path}") from error
    except BlockingIOError:
        return SocketAnswer(problem="too many wait for an answer already", listens=True)
    except OSError as error:
        return SocketAnswer(problem=error.strerror or str(error))


def ask_daemon(node: Node) -> SocketAnswer:
    """Return who answers on the daemon's socket, as `ask_socket` does."""
    return ask_socket(node.path(node.settings.state_dir) / CONTROL_SOCKET)


def running(host: HostRoot, names: Collection[str]) -> Iterator[ProcessFacts]:
    """Yield the processes that the kernel calls by one of *names*; none if /proc is unreadable."""
    procfs = Procfs(host)
    try:
        pids = procfs.pids()
    except HostError:
        return
    for pid in pids:
        facts = procfs.process(pid)
        if facts is not None and facts.comm in names:
            yield facts


def flag_of(arguments: Sequence[str], *flags: str) -> str:
    """Return the value of the first of *flags* on a command line; empty if it is not there.

    >>> flag_of(("kubelet", "--root-dir", "/data/kubelet"), "--root-dir", "-root-dir")
    '/data/kubelet'
    """
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in flags:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that sleeps in the kernel is left behind.
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_LAST_PATIENCE)
