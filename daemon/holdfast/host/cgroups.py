"""Pods' cgroups: finding them by UID, listing what lives in them, and ending them as one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.root import HostRoot
from holdfast.model.cgroup_names import folder_names, pod_of
from holdfast.model.ids import PodUid

_DEEPEST = 6
"""How far below the root kubelet's folders are looked for: kind nests them three deep."""

# Version 1 has a tree for each controller; kubelet makes the pods' folders in all of them.
_V1_TREES = ("memory", "pids", "freezer", "cpu,cpuacct", "cpu", "devices", "systemd")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroup:
    """A pod's cgroup. `path` is below the root, as /proc/PID/cgroup has it on the host."""

    path: str
    inode: int
    pids: tuple[int, ...]


class Cgroups:
    """Reads, and where it may writes, the host's cgroup tree."""

    def __init__(self, root: HostRoot) -> None:
        """Read below *root*'s cgroup folder; version 1 and 2 are told apart by what is there."""
        self._mount = root.cgroup
        self._proc = root.proc
        self._is_v2 = (root.cgroup / "cgroup.controllers").exists()
        self._tree = root.cgroup if self._is_v2 else self._v1_tree()
        self._kubepods: tuple[Path, ...] = ()

    @property
    def is_v2(self) -> bool:
        """Tell whether this is the unified hierarchy."""
        return self._is_v2

    def pod(self, uid: PodUid) -> PodCgroup | None:
        """Return the cgroup of the pod, or None when it has none now."""
        folder = self._find(uid)
        if folder is None:
            return None
        try:
            inode = folder.stat().st_ino
        except OSError:
            return None
        return PodCgroup(
            path=self._name(folder), inode=inode, pids=tuple(sorted(set(_pids_below(folder))))
        )

    def events_path(self, path: str) -> Path | None:
        """Return the file that the kernel touches when the cgroup empties; None on version 1."""
        events = self._folder(path) / "cgroup.events"
        return events if self._is_v2 else None

    def of_process(self, pid: int) -> str:
        """Return the cgroup of a process, absolute in the host's tree; empty when it is gone.

        In a private cgroup namespace the kernel writes paths relative to that namespace's root,
        as ``/../../pod…``: what matters of them is the same.
        """
        try:
            text = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            return ""
        return cgroup_of(text)

    def kill(self, path: str, inode: int) -> None:
        """End every process in the cgroup and below as one.

        Raises HostError where the kernel cannot (version 1, before Linux 5.14), or when *path* is
        not the cgroup with *inode* any more. The folder is held open across the write, so that it
        cannot become another one in between.
        """
        folder = self._folder(path)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            message = f"cannot open cgroup {path}: {error.strerror}"
            raise HostError(message) from error
        try:
            if os.fstat(fd).st_ino != inode:
                message = f"cannot kill cgroup {path}: another one has its name now"
                raise HostError(message)
            kill = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
            try:
                os.write(kill, b"1")
            finally:
                os.close(kill)
        except OSError as error:
            message = f"cannot kill cgroup {path}: {error.strerror}"
            raise HostError(message) from error
        finally:
            os.close(fd)

    def _find(self, uid: PodUid) -> Path | None:
        names = frozenset(folder_names(uid))
        for _ in range(2):
            for parent in self._kubepods:
                for name in names:
                    if (parent / name).is_dir():
                        return parent / name
            # Not where pods were seen before: a QoS folder may be new, so look once more.
            found = tuple(self._parents(self._tree, _DEEPEST))
            if found == self._kubepods:
                return None
            self._kubepods = found
        return None

    def _parents(self, folder: Path, depth: int) -> Iterator[Path]:
        """Yield every folder that may have pods' folders in it."""
        if "kubepods" in folder.name:
            yield folder
        if depth == 0:
            return
        try:
            children = [entry for entry in os.scandir(folder) if entry.is_dir()]
        except OSError:
            return
        for child in children:
            pod, container = pod_of(f"/kubepods/{child.name}")
            if pod is None and container is None:
                yield from self._parents(folder / child.name, depth - 1)

    def _v1_tree(self) -> Path:
        trees = [self._mount / name for name in _V1_TREES]
        return next((tree for tree in trees if tree.is_dir()), self._mount)

    def _folder(self, path: str) -> Path:
        return self._tree / path.lstrip("/")

    def _name(self, folder: Path) -> str:
        return "/" + str(folder.relative_to(self._tree))


def cgroup_of(text: str) -> str:
    """Return the path that the text of a cgroup file names, of the hierarchy with the pods.

    Version 2 has one line ``0::/path``; version 1 one for each controller, where the pods' are
    all the same.
    """
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") > 1]
    for path in paths:
        if "kubepods" in path:
            return path
    pods = [path for path in paths if "/pod" in path]
    return (pods or paths or [""])[0]


def _pids_below(folder: Path) -> Iterator[int]:
    try:
        for word in (folder / "cgroup.procs").read_text("ascii").split():
            yield int(word)
    except (OSError, ValueError):  # vanished, or a threaded cgroup: its domain lists the process
        pass
    try:
        children = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return
    for child in children:
        yield from _pids_below(Path(child))
