"""The state files of container runtimes, which name the containers that run: containerd, runsc."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names, read_bytes
from holdfast.host.root import HostRoot
from holdfast.model.ids import PodUid
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.reclaim.ending import RuntimeState, RuntimeTask, state_of

_BUNDLES = ("containerd", "k3s/containerd")
"""Where containerd keeps its state: by default, and with k3s and RKE2."""
_TASKS = "io.containerd.runtime.v2.task"
"""It has a folder for each namespace, and that one a folder for each container with a task."""
_RUNSC = ("containerd/runsc", "k3s/containerd/runsc", "runsc")
"""Where runsc keeps its state: below its shim's root for each namespace, or (CRI-O) in the last."""

_STATE_FILE = re.compile(r"(?P<id>.+)_sandbox:(?P<sandbox>.+)\.state")
_LARGEST = 4 << 20
"""About a hundred times what a runtime writes for a container; longer files are not parsed."""
_STOPPED = frozenset({4, "stopped"})
"""What runsc writes for a container that has ended: a number or a word."""

_KINDS = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
_SANDBOX = "io.kubernetes.cri.sandbox-id"
_POD = "io.kubernetes.cri.sandbox-uid"


class _Linux(msgspec.Struct, frozen=True):
    cgroupsPath: str = ""  # noqa: N815 - as the runtime specification spells it


class _Spec(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None
    linux: _Linux | None = None


class _StateFile(msgspec.Struct, frozen=True):
    status: int | str
    spec: _Spec | None = None


class RuntimeFiles:
    """Reads what the runtimes on this node have running. Blocks: run it on a lane."""

    def __init__(self, root: HostRoot) -> None:
        """Read below *root*'s run folder."""
        self._run = root.run
        self._read: dict[str, tuple[tuple[int, int], RuntimeTask]] = {}

    def state(self, pod: PodUid) -> RuntimeState:
        """Return what the runtime's files say of *pod*."""
        try:
            read = dict(self._tasks())
        except HostError as error:
            return RuntimeState(problem=str(error))
        self._read = read
        return state_of(pod, [task for _, task in read.values()])

    def _tasks(self) -> Iterator[tuple[str, tuple[tuple[int, int], RuntimeTask]]]:
        for place in _BUNDLES:
            tasks = self._run / place / _TASKS
            for namespace in list_names(tasks):
                for name in list_names(tasks / namespace):
                    yield from self._file(tasks / namespace / name / "config.json", _bundle)
        for place in _RUNSC:
            folder = self._run / place
            for below in (folder, *(folder / name for name in list_names(folder))):
                for name in list_names(below):
                    if _STATE_FILE.fullmatch(name):
                        yield from self._file(below / name, _saved)

    def _file(
        self, path: Path, parse: Callable[[Path, bytes], RuntimeTask]
    ) -> Iterator[tuple[str, tuple[tuple[int, int], RuntimeTask]]]:
        """Yield what *path* says; it is read again only if it changed.

        Without the file no container runs: it is being created, or already gone.
        """
        try:
            facts = os.stat(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot read {path}: {error.strerror}") from error
        version = (facts.st_mtime_ns, facts.st_ino)
        known = self._read.get(str(path))
        if known is not None and known[0] == version:
            yield str(path), known
            return
        content = read_bytes(path, most=_LARGEST)
        if content is not None:
            yield str(path), (version, parse(path, content))


def _bundle(path: Path, content: bytes) -> RuntimeTask:
    """Return the container of a bundle, which containerd makes for its shim."""
    name = path.parent.name
    try:
        spec = msgspec.json.decode(content, type=_Spec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RuntimeTask(id=name, unreadable=f"cannot read {path}: {error}")
    pause = _is_pause(spec)
    sandbox = name if pause else (spec.annotations or {}).get(_SANDBOX)
    return RuntimeTask(id=name, sandbox=sandbox, pod=_pod(spec), pause=pause)


def _saved(path: Path, content: bytes) -> RuntimeTask:
    """Return the container of a runsc state file, whose name has its id and its sandbox's."""
    match = _STATE_FILE.fullmatch(path.name)
    name, sandbox = match.group("id", "sandbox") if match is not None else (path.name, None)
    try:
        saved = msgspec.json.decode(content, type=_StateFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Written in place: it may be half written just now.
        return RuntimeTask(id=name, sandbox=sandbox, unreadable=f"cannot read {path}: {error}")
    return RuntimeTask(
        id=name,
        sandbox=sandbox,
        pod=None if saved.spec is None else _pod(saved.spec),
        pause=name == sandbox and saved.spec is not None and _is_pause(saved.spec),
        ended=saved.status in _STOPPED,
    )


def _is_pause(spec: _Spec) -> bool:
    """Tell whether kubelet asked for it as a sandbox.

    In a sandbox that kubelet did not ask for, the first container can be a program.
    """
    notes = spec.annotations or {}
    return any(notes.get(kind) == "sandbox" for kind in _KINDS)


def _pod(spec: _Spec) -> PodUid | None:
    """Return the pod of a container, by its annotations or its cgroup."""
    uid = (spec.annotations or {}).get(_POD)
    if uid:
        return PodUid(uid)
    # systemd's cgroup driver writes slice:prefix:name, the others write a path.
    path = spec.linux.cgroupsPath if spec.linux is not None else ""
    return pod_of(path.replace(":", "/"))[0]
