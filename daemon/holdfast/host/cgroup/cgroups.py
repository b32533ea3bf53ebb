"""Pods' cgroups: finding them by UID, listing their processes, and ending them as a whole."""

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    field_of,
    is_folder,
    link_or_none,
    read_text,
    seen,
)
from holdfast.host.proc.procfs import INIT_CGROUP_NAMESPACE, INIT_PID_NAMESPACE
from holdfast.host.root import HostRoot
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.model.node.cgroup_names import is_root, pod_of, pod_paths
from holdfast.model.text import printable

_DEEPEST = 6
"""How many levels down kubelet's cgroup is searched for; kind nests it five deep."""

_SEARCH_PAUSE, _SEARCH_AGAIN = 5.0, 60.0
"""Seconds between searches of the whole tree: while it has no kubelet cgroup, and otherwise."""

# Version 1 has one tree for each controller, and kubelet makes the pods' folders in all of them.
# Every kernel that runs containers has the first ones.
_V1_TREES = ("pids", "memory", "cpu,cpuacct", "cpu", "cpuset", "freezer", "devices", "systemd")
_CHILDLESS = 2
"""How many links a cgroup has without any below it; one more for each. Other filesystems have 1."""
_SMALL = 4096
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})
_LONG = 900
"""Characters of a path, of four bytes at most. A pod can nest cgroups deeper than a path may be
long, so from there on what is below is reached by an open folder. No runtime's path is so long."""
_LONGEST = 0.5
"""For so many seconds of processor time cgroups are listed, those of all pods of one look together:
others wait for the same lane."""
_PACE = 3
"""So many times as long as a look with lists of crowded pods took, the next have none of those."""
_UNREADABLE = "/kubepods/podunknown"
"""Stands for a cgroup that is not told, as before Linux 6.8 one whose path is longer than 4 KiB:
who can make that is in a pod, and must not pass for a program of the node's."""


class Cgroups:
    """Reads and, where allowed, writes the host's cgroup tree. Belongs to one lane."""

    def __init__(self, root: HostRoot, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Work below *root*'s cgroup folder, of version 1 or 2, whichever is there.

        *monotonic* is the clock in seconds that spaces out searches of the whole tree.
        """
        self._monotonic = monotonic
        self._mount = root.cgroup
        self._proc = root.proc
        self._kubepods: tuple[Path, ...] = ()
        self._search_again = 0.0
        self._namespace_root: str | None = None
        self._find_again = 0.0
        self._crowded: dict[PodUid, None] = {}
        """Pods whose list took more than its share, whose turn comes first before the others."""
        self._crowded_again = 0.0

    @cached_property
    def _is_v2(self) -> bool:
        return seen(self._mount / "cgroup.controllers") is not None

    @property
    def is_private(self) -> bool:
        """Tell whether this process has its own cgroup namespace."""
        namespace = link_or_none(self._proc / "self/ns/cgroup")
        return namespace not in {None, INIT_CGROUP_NAMESPACE}

    def pods(self, uids: Collection[PodUid]) -> dict[PodUid, PodSighting]:
        """Return those cgroups of *uids* that exist; raise HostError if that cannot be told.

        A pod makes as many as it likes, so a list takes an even share of the time at most. Where
        that was too little, the pod has what all others leave the next time, and of several such
        pods another has it first each time; then none has for a while.
        """
        found: dict[PodUid, PodSighting] = {}
        paused = self._monotonic() < self._crowded_again
        end, share = time.thread_time() + _LONGEST, _LONGEST / max(1, len(uids))
        crowded = [uid for uid in self._crowded if uid in uids]
        others = [uid for uid in uids if uid not in self._crowded]
        if crowded and not paused:
            del self._crowded[crowded[0]]  # it comes back as the last
        for uid in (*others, *crowded):
            began = time.thread_time()
            left = end - began
            most = min(left, share) if uid not in crowded else 0.0 if paused else left
            sighting = self.pod(uid, seconds=most)
            took = time.thread_time() - began
            if sighting is not None:
                found[uid] = sighting
            if took >= share:
                self._crowded.setdefault(uid)
            elif sighting is None or not sighting.unlisted:
                self._crowded.pop(uid, None)
        if crowded and not paused:
            took = time.thread_time() - end + _LONGEST
            self._crowded_again = self._monotonic() + _PACE * took
        return found

    def pod(self, uid: PodUid, *, seconds: float = _LONGEST) -> PodSighting | None:
        """Return the pod's cgroup, or None if it has none now.

        Its list takes so many *seconds* of processor time at most. Raise HostError if that cannot
        be told.
        """
        folder = self._find(uid)
        if folder is None:
            return None
        found = seen(folder)
        if found is None:
            return None
        pids, unlisted = self._list(folder, seconds)
        if not self._is_v2:
            return self._pod_of_v1(folder, found.st_ino, pids, unlisted)
        # Read last, so that it is as new as can be. It covers all that is below.
        populated, problem = _populated(folder)
        if populated is None and not is_folder(folder):  # it was removed meanwhile
            return None
        return PodSighting(
            cgroup=self._name(folder),
            inode=found.st_ino,
            populated=populated,
            # Who is in another pid namespace than ours is listed as 0.
            processes=() if populated is False else tuple(filter(None, pids)),
            unlisted="" if populated is False else problem or unlisted,
        )

    def _pod_of_v1(
        self, folder: Path, inode: int, pids: tuple[int, ...], unlisted: str
    ) -> PodSighting:
        """Return a pod's cgroup of version 1, where only lists of pids tell whether it is empty.

        That is weaker than the kernel's word: a list is not made at one moment, and leaves out who
        ends while it is. So two lists have to be empty, one after the other.
        """
        if not pids and not unlisted:
            pids, unlisted = self._list(folder)
        namespace = link_or_none(self._proc / "self/ns/pid")
        if not pids and namespace not in {None, INIT_PID_NAMESPACE}:
            unlisted = "cgroup v1 lists no process from outside our own pid namespace"
        return PodSighting(
            cgroup=self._name(folder),
            inode=inode,
            populated=True if pids else None if unlisted else False,
            processes=pids,
            unlisted=unlisted,
        )

    def inode(self, path: str) -> int | None:
        """Return the inode of the cgroup at *path*, or None if there is none.

        Raise HostError if that cannot be told.
        """
        found = seen(self._folder(path))
        return None if found is None else found.st_ino

    def events_path(self, path: str) -> Path | None:
        """Return the file that changes when the cgroup becomes empty; None if there is none."""
        events = self._folder(path) / "cgroup.events"
        return events if seen(events) else None

    def of_process(self, pid: int) -> str:
        """Return the cgroup of a process, absolute in the host's tree; empty if it is gone."""
        return self.absolute(self._path_of(pid))

    def pod_of_process(self, pid: int) -> PodUid | None:
        """Return the pod of a process; None if it is of none, or gone."""
        return pod_of(self._path_of(pid))[0]

    def _path_of(self, pid: int) -> str:
        try:
            return cgroup_of(read_text(f"{self._proc}/{pid}/cgroup") or "")
        except HostError:
            return _UNREADABLE

    def absolute(self, path: str) -> str:
        """Return *path* as the host calls it.

        In a private cgroup namespace the kernel writes paths relative to that namespace's root,
        as ``/../../pod…``. A path that cannot be made absolute is returned unchanged.
        """
        if not path.startswith("/.."):
            return path
        uid, _ = pod_of(path)
        with contextlib.suppress(HostError):
            folder = self._find(uid) if uid is not None else None
            if folder is not None:  # no two cgroups of pods have one name
                below = path.split("/")
                at = next(i for i, part in enumerate(below) if pod_of("/".join(below[: i + 1]))[0])
                return "/".join((self._name(folder), *below[at + 1 :]))
            own = self.namespace_root
            return path if own is None else os.path.normpath(f"{own}{path}")
        return path

    def kill(self, path: str, inode: int) -> None:
        """Kill all processes in the cgroup and below at once.

        Raise HostError if the kernel cannot (version 1, before Linux 5.14), or if *path* is no
        longer the cgroup with *inode*.
        """
        self._write(path, inode, "cgroup.kill", b"1")

    def freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        """Freeze all processes in the cgroup and below, or let them run again.

        Raise HostError if the kernel cannot (version 1), or if *path* is no longer the cgroup with
        *inode*. Frozen processes end by SIGKILL, and none of them can fork.
        """
        self._write(path, inode, "cgroup.freeze", b"1" if frozen else b"0")

    def is_frozen(self, path: str) -> bool:
        """Tell whether somebody has frozen this very cgroup.

        Raise HostError if that cannot be read, as where the kernel freezes none (version 1).
        """
        told = read_text(self._folder(path) / "cgroup.freeze")
        if told is None:
            raise HostError(f"cannot freeze cgroup {path}: it has no file cgroup.freeze")
        return told == "1"

    def await_frozen(self, path: str, *, patience: float) -> bool:
        """Wait until all processes in the cgroup and below are frozen; tell whether they are.

        It takes the kernel a moment, in which they can still fork. One in uninterruptible sleep
        cannot be frozen: then *patience*, in seconds, is waited in vain.
        """
        until = self._monotonic() + patience
        with (
            contextlib.suppress(OSError),
            open(self._folder(path) / "cgroup.events", "rb", buffering=0) as events,
        ):
            changes = select.poll()
            changes.register(events, select.POLLPRI)
            while True:
                if field_of(os.pread(events.fileno(), _SMALL, 0).decode(), "frozen") == "1":
                    return True
                left = until - self._monotonic()
                if left <= 0:
                    return False
                changes.poll(1000 * left)
        return False

    def _write(self, path: str, inode: int, name: str, content: bytes) -> None:
        """Write into the cgroup. Its open folder makes sure that it stays the same cgroup."""
        what = f"cannot write {name} of cgroup {path}"
        try:
            folder = os.open(self._folder(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError(f"{what}: {error.strerror}") from error
        try:
            if os.fstat(folder).st_ino != inode:
                raise HostError(f"{what}: another cgroup has its name now")
            file = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
            try:
                os.write(file, content)
            finally:
                os.close(file)
        except OSError as error:
            hint = " (cgroup v1, or an older kernel)" if error.errno == errno.ENOENT else ""
            raise HostError(f"{what}: {error.strerror}{hint}") from error
        finally:
            os.close(folder)

    def _find(self, uid: PodUid) -> Path | None:
        now = self._monotonic()
        if now >= self._search_again:
            self._search(_DEEPEST)
            self._search_again = now + _SEARCH_AGAIN
        found = self._known(uid)
        if found is None:
            # Kubelet makes its cgroup when it starts, usually at the top.
            self._search(1)
            found = self._known(uid)
        if not self._kubepods:
            self._search_again = min(self._search_again, now + _SEARCH_PAUSE)
        return found

    def _search(self, depth: int) -> None:
        found = dict.fromkeys(root for root in self._kubepods if is_folder(root))
        for tree in self._trees():
            found.update(dict.fromkeys(_roots(str(tree), depth)))
        self._kubepods = tuple(found)

    def _known(self, uid: PodUid) -> Path | None:
        """Return the pod's cgroup; of several, one that may have processes.

        A kubelet with another root makes new ones, and leaves those that run where they are.
        """
        every = (_pod_below(root, uid) for root in self._kubepods)
        found: Iterator[Path] = (each for each in every if each is not None)
        if self._is_v2 and len(self._kubepods) > 1:  # version 1 has one in each tree
            found = iter(sorted(found, key=lambda each: _populated(each)[0] is False))
        return next(found, None)

    def _list(self, folder: Path, seconds: float = _LONGEST) -> tuple[tuple[int, ...], str]:
        """Return the pids in a cgroup and below, and which part could not be read; empty if none.

        A part that cannot be read may have processes.
        """
        pids: set[int] = set()
        problems: list[str] = []

        def refused(error: OSError) -> None:
            if error.errno not in _GONE:
                problems.append(f"cannot list {error.filename}: {error.strerror}")

        for path in _with_below(folder, refused, seconds):
            try:
                pids.update(_pids_in(path))
            except HostError as error:
                problems.append(str(error))
        return tuple(sorted(pids)), printable(problems[0]) if problems else ""

    def _trees(self) -> tuple[Path, ...]:
        if self._is_v2:
            return (self._mount,)
        trees = (self._mount / name for name in _V1_TREES)
        return tuple(tree for tree in trees if is_folder(tree))

    def _folder(self, path: str) -> Path:
        relative = path.lstrip("/")
        folders = [tree / relative for tree in self._trees()]
        return next((folder for folder in folders if is_folder(folder)), self._mount / relative)

    def _name(self, folder: Path) -> str:
        trees = (str(tree) for tree in self._trees() if f"{folder}/".startswith(f"{tree}/"))
        return str(folder).removeprefix(next(trees, str(self._mount)))

    @property
    def namespace_root(self) -> str | None:
        """Where our own cgroup namespace begins in the host's tree, if that shows.

        To find it walks through the tree, so that is tried now and then.
        """
        now = self._monotonic()
        if self._namespace_root is None and now >= self._find_again:
            self._namespace_root = self._find_namespace_root()
            self._find_again = now + _SEARCH_AGAIN
        return self._namespace_root

    def _find_namespace_root(self) -> str | None:
        try:
            inside = cgroup_of(read_text(self._proc / "self/cgroup") or "").rstrip("/")
            pid = int(os.path.basename(os.path.realpath(self._proc / "self")))
        except (HostError, ValueError):
            return None
        for tree in self._trees():
            folder = _folder_with(tree, pid)
            name = None if folder is None else self._name(folder)
            if name is not None and name.endswith(inside):
                return name.removesuffix(inside)
        return None


def cgroup_of(text: str) -> str:
    """Return the path in the text of a /proc cgroup file, of the hierarchy that has the pods.

    Version 2 has one line ``0::/path``. Version 1 has one line for each controller: those of
    pods are all the same, and others may name the top.
    """
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") > 1]
    named = (path for path in paths if pod_of(path)[0] is not None)
    longest = max(paths, key=len, default="")
    return next(named, longest)


def _roots(folder: str, depth: int) -> Iterator[Path]:
    """Yield each cgroup below *folder* in which kubelet keeps its pods.

    Raise HostError where one cannot be searched: kubelet's may be there.
    """
    try:
        if os.stat(folder).st_nlink == _CHILDLESS:  # a third of what it costs to list one
            return
        with os.scandir(folder) as entries:
            below = [each for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _GONE:
            return
        raise HostError(f"cannot list {folder}: {error.strerror}") from error
    for each in below:
        if is_root(each.name):
            yield Path(each.path)
        elif depth > 1:
            yield from _roots(each.path, depth - 1)


def _pod_below(root: Path, uid: PodUid) -> Path | None:
    above = root.parent
    folders = (f"{above}/{path}" for path in pod_paths(root.name, uid))
    return next((Path(folder) for folder in folders if is_folder(folder)), None)


def _folder_with(folder: Path, pid: int) -> Path | None:
    """Return the cgroup below *folder* that *pid* is in."""
    for path in _with_below(folder, lambda _error: None):
        with contextlib.suppress(HostError):
            if pid in _pids_in(path):
                return Path(path)
    return None


def _with_below(
    folder: Path, refused: Callable[[OSError], None], seconds: float = _LONGEST
) -> Iterator[str]:
    """Yield *folder* and all below it, however deep; call *refused* for what cannot be listed.

    What has no process, where the kernel tells, is left out with all below it. A path that is
    yielded holds until the next one is asked for.
    """
    left = [str(folder)]
    opened: list[tuple[int, int]] = []
    """Folders whose paths are long, each with how many are left once all below it is done."""
    until = time.thread_time() + seconds
    try:
        while left:
            path = left.pop()
            while opened and len(left) < opened[-1][1]:
                os.close(opened.pop()[0])
            if time.thread_time() > until:
                refused(OSError(errno.ETIME, "it has too many cgroups below it", str(folder)))
                return
            try:
                if _populated(path)[0] is False:
                    continue
                if len(path) > _LONG:
                    opened.append((os.open(path, os.O_PATH | os.O_CLOEXEC), len(left)))
                    path = f"/proc/self/fd/{opened[-1][0]}"
                with os.scandir(path) as entries:
                    left += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
            except OSError as error:
                refused(error)
            else:
                yield path
    finally:
        for each, _ in opened:
            os.close(each)


def _populated(folder: str | Path) -> tuple[bool | None, str]:
    """Return whether a process is in a cgroup of version 2 or below, None with why it is unknown.

    The kernel counts tasks: a process whose leader has exited counts as long as a thread of it
    runs, a zombie does not. A task is not counted any more only after its files are closed.
    """
    events = f"{folder}/cgroup.events"
    try:
        told = field_of(read_text(events) or "", "populated")
    except HostError as error:
        return None, str(error)
    if told in {"0", "1"}:
        return told == "1", ""
    return None, f"{events} does not say whether it is populated"


def _pids_in(folder: str) -> list[int]:
    """Return the pids in one cgroup; raise HostError if they cannot be read."""
    name = f"{folder}/cgroup.procs"
    try:
        return [int(word) for word in (read_text(name) or "").split()]
    except HostError as error:
        # A threaded cgroup refuses to list processes; the domain above it lists them.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EOPNOTSUPP:
            return []
        raise
    except ValueError as error:
        raise HostError(f"cannot read {name}: it does not list numbers") from error
