"""What a node shows of containerd: its process, its program, and what it makes of its files."""

import os
import re
from collections.abc import Sequence

from msgspec import Struct

from holdfast.doctor.containerd.files import PLACES, Configuration, read_configuration
from holdfast.doctor.containerd.merge import OLD_VERSION, CriConfig, cri_config
from holdfast.doctor.node import Node
from holdfast.doctor.programs import FOLDERS, Ask, find_program
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes, read_link
from holdfast.host.proc.procfs import Procfs

_NAME = "containerd"
_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
)
_OTHERS = {
    "/etc/crio": "CRI-O",
    "/run/crio/crio.sock": "CRI-O",
    "/run/cri-dockerd.sock": "cri-dockerd",
}
"""What tells of a node whose pods another runtime runs, and which."""
_VERSION = re.compile(r"\bv?([0-9]+)\.([0-9]+)\.[0-9]+")
_CONFIG_FLAGS = ("--config", "-c")


class Started(Struct, frozen=True, kw_only=True):
    """How the process of containerd that serves pods was started."""

    config: str = ""
    """Empty: it was told none, so it is the usual one."""
    folders: tuple[str, ...] = ()
    """Where it looks for shims: its PATH, and the folder of its own program."""
    pid: int = 0
    elsewhere: bool = False
    """Whether it has other mounts than this process: its files are not those that we see."""


class ContainerdFacts(Struct, frozen=True, kw_only=True):
    """All that findings about containerd are made of."""

    configuration: Configuration
    cri: CriConfig
    folders: tuple[str, ...]
    """Where it, or a service by default, looks for programs."""
    program: str = ""
    version: str = ""
    """As it says itself; empty where it cannot be asked."""
    major: int | None = None
    """From its version, or from files that only 2.x can read; None: it can be either."""
    present: bool = False
    elsewhere: int = 0
    """The pid of a containerd whose files are not those that this process sees; 0: none."""
    other: str = ""
    """What tells that another runtime runs this node's pods."""

    @property
    def other_name(self) -> str:
        """The name of that runtime; empty where there is none."""
        return _OTHERS.get(self.other, "")

    @property
    def path(self) -> str:
        """The first file of the configuration."""
        files = self.configuration.files
        return files[0].path if files else PLACES[-1]


def containerd_facts(node: Node, ask: Ask) -> ContainerdFacts:
    """Look at *node*; nothing of it is needed, and nothing raises."""
    started = _started(node)
    if started is not None and started.elsewhere:
        return ContainerdFacts(
            configuration=Configuration(),
            cri=CriConfig(),
            folders=FOLDERS,
            present=True,
            elsewhere=started.pid,
        )
    folders = tuple(dict.fromkeys((*(started.folders if started else ()), *FOLDERS)))
    program = find_program(node, _NAME, folders)
    answer = ask((program, "--version")).text if program else ""
    match = _VERSION.search(answer)
    major = int(match[1]) if match else None
    configuration = read_configuration(node, started.config if started else "", major=major)
    files = configuration.files
    newest = max((file.version for file in files), default=0)
    major = major or (2 if newest > OLD_VERSION else None)
    return ContainerdFacts(
        configuration=configuration,
        cri=cri_config(files, major=major or 1),
        folders=folders,
        program=program,
        version=match[0].removeprefix("v") if match else "",
        major=major,
        present=bool(started or program or files or configuration.unreadable)
        or any(_exists(node, path) for path in _SOCKETS),
        other=next((path for path in _OTHERS if _exists(node, path)), ""),
    )


def _started(node: Node) -> Started | None:
    """Return how containerd was started; None where no process of it can be seen."""
    procfs = Procfs(node.host)
    try:
        pids = procfs.pids()
    except HostError:
        return None
    found = []
    for pid in pids:
        facts = procfs.process(pid)
        if facts is not None and facts.comm == _NAME:
            found.append(_started_as(node, pid, procfs.arguments(pid)))
    # Docker has one of its own, whose file is that of /etc or none.
    return next((each for each in found if each.config in PLACES[:-1]), found[0] if found else None)


def _started_as(node: Node, pid: int, arguments: Sequence[str]) -> Started:
    folders = []
    elsewhere = False
    try:
        environment = read_bytes(node.host.proc / f"{pid}/environ") or b""
        for line in environment.split(b"\0"):
            name, _, value = os.fsdecode(line).partition("=")
            if name == "PATH":
                folders += [folder for folder in value.split(":") if folder.startswith("/")]
        program = read_link(node.host.proc / f"{pid}/exe")
        if program is not None and program.startswith("/"):
            folders.append(program.rpartition("/")[0] or "/")
        if node.live:
            mounts = read_link(node.host.proc / f"{pid}/ns/mnt")
            elsewhere = mounts is not None and mounts != read_link("/proc/self/ns/mnt")
    except HostError:
        pass  # What is asked for needs a right that doctor may lack; the usual folders remain.
    return Started(
        config=_config_of(arguments), folders=tuple(folders), pid=pid, elsewhere=elsewhere
    )


def _config_of(arguments: Sequence[str]) -> str:
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in _CONFIG_FLAGS:
            told = value if equals else "".join(arguments[index + 1 : index + 2])
            return told if told.startswith("/") else ""
    return ""


def _exists(node: Node, path: str) -> bool:
    try:
        node.path(path).lstat()
    except OSError:
        return False
    return True
