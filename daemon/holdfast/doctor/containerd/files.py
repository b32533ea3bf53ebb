"""Reads containerd's configuration: the file it is started with, and all that this one imports."""

import os
import tomllib
from collections import deque
from pathlib import PurePosixPath

from msgspec import Struct

from holdfast.doctor.containerd.merge import ConfigFile
from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes

PLACES = (
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
)
"""Where the file is. A distribution with a containerd of its own leaves that of /etc unused."""
_DROP_INS = "/etc/containerd/conf.d/*.toml"
"""Where installers leave drop-ins: NVIDIA's toolkit and containerd 2.2's own default."""
_SERVICE = "/containerd"
"""As if in the working folder of a service."""
_MOST_FILES = 200
"""Of a configuration that makes sense; more is a mistake in a pattern."""


class Unreadable(Struct, frozen=True, kw_only=True):
    """A file that cannot be used, and why."""

    path: str
    reason: str


class Configuration(Struct, frozen=True, kw_only=True):
    """The files in the order in which containerd loads them; none where no place has one."""

    files: tuple[ConfigFile, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    unimported: tuple[str, ...] = ()
    """Drop-ins that lie ready and that no file imports."""
    astray: tuple[str, ...] = ()
    """Patterns without a leading ``/``, which containerd 1.x looks up in its own working folder."""


def read_configuration(
    node: Node, started_with: str = "", *, major: int | None = None
) -> Configuration:
    """Return the configuration as containerd *major*.x reads it; None: as 2.x, which reads more.

    *started_with* is the file that containerd was told, if known.
    """
    first = started_with or next((place for place in PLACES if _is_file(node, place)), "")
    if not first:
        return Configuration()
    files: list[ConfigFile] = []
    unreadable: list[Unreadable] = []
    waiting, seen = deque([first]), set[str]()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.popleft()
        if path in seen:
            continue
        seen.add(path)
        read = read_toml(node, path)
        if isinstance(read, Unreadable):
            unreadable.append(read)
        else:
            files.append(read)
            waiting += (
                found
                for asked in read.imports
                for found in _found(
                    node, _SERVICE if major == 1 and _astray(asked) else path, asked
                )
            )
    drop_ins = _found(node, first, _DROP_INS) if first == PLACES[-1] else ()
    return Configuration(
        files=tuple(files),
        unreadable=tuple(unreadable),
        unimported=tuple(path for path in drop_ins if path not in seen),
        astray=tuple(asked for file in files for asked in file.imports if _astray(asked)),
    )


def read_toml(node: Node, path: str) -> ConfigFile | Unreadable:
    """Return what a TOML file of the node says, or why that cannot be told."""
    try:
        content = read_bytes(node.path(path))
        if content is None:
            return Unreadable(path=path, reason="there is no such file")
        return ConfigFile(path=path, content=tomllib.loads(content.decode()))
    except tomllib.TOMLDecodeError as error:
        return Unreadable(path=path, reason=f"it is not TOML: {error}")
    except RecursionError:
        return Unreadable(path=path, reason="it is nested too deep")
    except UnicodeDecodeError as error:
        return Unreadable(path=path, reason=f"it is not UTF-8: {error}")
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):  # containerd may read what we may not
            raise
        return Unreadable(path=path, reason=str(error))


def _astray(asked: str) -> bool:
    return "*" in asked and not asked.startswith("/")


def _found(node: Node, importer: str, asked: str) -> tuple[str, ...]:
    """Return the files that an import names, as the node calls them.

    Only a ``*`` makes it a pattern, which may match nothing; any other must exist.
    """
    absolute = os.path.normpath(PurePosixPath(importer).parent / asked)
    if "*" not in absolute:
        return (absolute,)
    folder, _, name = absolute.rpartition("/")
    if "*" in folder:
        found = node.root.glob(absolute.lstrip("/"))
        return tuple(sorted(f"/{path.relative_to(node.root)}" for path in found))
    return tuple(sorted(f"{folder}/{path.name}" for path in node.path(folder).glob(name)))


def _is_file(node: Node, path: str) -> bool:
    try:
        return node.path(path).is_file()
    except OSError:
        return False
