"""Finds programs of the node, and asks those of the live one for a line or two, not for long."""

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from holdfast.doctor.node import Node

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
"""Where a service's programs are by default, and where distributions have theirs."""
_PATIENCE = 5.0
"""Seconds. The questions are answered without a look at any device."""
_LAST_PATIENCE = 1.0
_SHOWN = 200


class Answer(Struct, frozen=True, kw_only=True):
    """What a program said on its standard output, or why it said nothing of use."""

    text: str = ""
    problem: str = ""


Ask = Callable[[Sequence[str]], Answer]
"""Runs a program of the node, given with its arguments."""


def ask_for(node: Node) -> Ask:
    """Return how programs of *node* are asked; those of a copied node never are."""
    return run if node.live else _refuse


def run(command: Sequence[str], *, patience: float = _PATIENCE) -> Answer:
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
        return Answer(problem=f"cannot run {command[0]}: {error.strerror}")
    try:
        said, complained = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Answer(problem=f"{' '.join(command)} gave no answer within {patience:g} s")
    if process.returncode != 0:
        why = complained.decode(errors="replace").strip()[-_SHOWN:]
        return Answer(problem=f"{' '.join(command)} ended with {process.returncode}: {why}")
    return Answer(text=said.decode(errors="replace"))


def find_program(node: Node, name: str, folders: Iterable[str]) -> str:
    """Return the path on the node of the first program called *name*; "" without one."""
    for folder in folders:
        path = f"{folder.rstrip('/')}/{name}"
        if is_program(node, path):
            return path
    return ""


def is_program(node: Node, path: str) -> bool:
    """Tell whether *path* is a file that somebody may execute."""
    try:
        found = node.path(path).stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _refuse(command: Sequence[str]) -> Answer:
    return Answer(problem=f"{command[0]} is not run: this is a copy of a node")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    # One that sleeps in the kernel is left behind rather than waited for.
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_LAST_PATIENCE)
