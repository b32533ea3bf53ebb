"""Checks kubelet: its plugin folder, its sockets, the process behind them, and our own sockets."""

import stat
from collections.abc import Generator, Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.kubelet.books import book_findings
from holdfast.doctor.kubelet.plugins import plugin_findings
from holdfast.doctor.node import Node
from holdfast.host.proc.peer import listener
from holdfast.host.proc.procfs import Procfs
from holdfast.names import KUBELET_SOCKET

_AREA = Area("kubelet")
_KUBELETS = frozenset(
    {"kubelet", "hyperkube", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s"}
)
"""Programs that are kubelet, alone or with others in one."""
_CONTAINERS_OWN = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
_FORGETFUL = frozenset({"tmpfs", "ramfs"})
_UNASKED = "a copied node's sockets answer nobody, so it was not asked"


class _Answer(Struct, frozen=True):
    """Who answers on a socket: a pid, 0 for one out of sight; or why nobody does."""

    pid: int = 0
    problem: str = ""
    forbidden: bool = False


def kubelet_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of kubelet and of what it shares with plugins."""
    settings = node.settings.kubelet
    folder = node.path(settings.plugin_dir)
    try:
        found = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        yield _no_folder(node, folder)
        return
    except OSError as error:
        yield _AREA.warn(
            check="plugin-folder",
            reason=f"{folder} cannot be looked at: {error.strerror}",
            remedy="run the doctor as root",
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield _AREA.fail(
            check="plugin-folder",
            reason=f"{folder} is not a folder",
            remedy="set kubelet.pluginDir to the folder in which kubelet has kubelet.sock",
        )
        return
    yield _folder(node, folder)
    kubelet = yield from _socket(node, folder / KUBELET_SOCKET)
    yield from _process(node, kubelet)
    yield _pod_resources(node, kubelet)
    yield from book_findings(folder, node.settings)
    yield from plugin_findings(node, folder)


def _no_folder(node: Node, folder: Path) -> Finding:
    home = node.path("/var/lib/kubelet")
    usual = home / "device-plugins"
    if home.is_dir() and folder == usual:
        # Every kubelet makes it when it starts, whatever its --root-dir.
        return _AREA.warn(
            check="plugin-folder",
            reason=f"{folder} is not there: kubelet has not started on this node yet",
            remedy="start kubelet, which makes it; where the doctor runs in a container, mount the "
            "host's folder",
        )
    if home.is_dir():
        return _AREA.fail(
            check="plugin-folder",
            reason=f"{folder} is not there, but {home} is: this node has a kubelet",
            remedy="set kubelet.pluginDir to its device-plugins folder, which does not follow "
            "kubelet's --root-dir; where the daemon runs in a container mount the host's",
        )
    return _AREA.warn(
        check="plugin-folder",
        reason=f"{folder} is not there, nor {home}: no kubelet ever ran here, or it is elsewhere",
        remedy="start kubelet, or set kubelet.pluginDir; in a container mount the host's folder",
    )


def _folder(node: Node, folder: Path) -> Finding:
    mount = node.mount(folder)
    if mount is not None and mount.kind in _CONTAINERS_OWN:
        return _AREA.fail(
            check="plugin-folder",
            reason=f"{folder} is on {mount.kind}: it is a container's own, and no kubelet's",
            remedy="mount the host's folder there",
        )
    if mount is not None and not mount.writable:
        return _AREA.fail(
            check="plugin-folder",
            reason=f"{folder} is mounted read-only: no plugin can make its socket in it",
            remedy="mount it writable",
        )
    if mount is not None and mount.kind in _FORGETFUL:
        return _AREA.warn(
            check="plugin-folder",
            reason=f"{folder} is on {mount.kind}: a reboot loses kubelet's checkpoint",
            remedy="none, if the node's image is made so: its pods get their devices anew",
        )
    on = f", on {mount.kind}" if mount is not None else ""
    return _AREA.ok(check="plugin-folder", reason=f"{folder} is there{on}")


def _socket(node: Node, path: Path) -> Generator[Finding, None, int | None]:
    """Yield what was found of kubelet's socket; return the pid behind it, None for nobody."""
    if not path.exists():
        yield _AREA.fail(
            check="kubelet-socket",
            reason=f"{path} is not there: no plugin can register",
            remedy="start kubelet; if it runs, set kubelet.pluginDir to where it has its socket",
        )
        return None
    if not node.live:
        yield _AREA.ok(check="kubelet-socket", reason=f"{path} is there; {_UNASKED}")
        return None
    answer = _ask(path)
    if answer.forbidden:
        yield _AREA.warn(
            check="kubelet-socket",
            reason=f"{path} may not be connected to",
            remedy="run the doctor as root; SELinux lets only types such as spc_t do it",
        )
        return None
    if answer.problem:
        yield _AREA.fail(
            check="kubelet-socket",
            reason=f"{path} is there, but nobody answers ({answer.problem}): kubelet is down, and "
            "leaves its socket behind",
            remedy="start kubelet, and read its log: journalctl -u kubelet",
        )
        return None
    yield _AREA.ok(check="kubelet-socket", reason=f"{path} answers")
    return answer.pid


def _process(node: Node, pid: int | None) -> Iterator[Finding]:
    """Yield what the process behind kubelet's socket tells of itself."""
    if pid is None:
        return
    procfs = Procfs(node.host)
    if not pid or procfs.process(pid) is None:
        yield _AREA.warn(
            check="kubelet-process",
            reason="the process behind kubelet's socket is not seen from here: which kubelet wrote "
            "the checkpoint cannot be told, and so no process is ever ended",
            remedy="set hostPID: true, and mount the host's /proc where host.proc says",
        )
        return
    name = procfs.program(pid) or ""
    if name not in _KUBELETS:
        yield _AREA.warn(
            check="kubelet-process",
            reason=f"pid {pid}, which answers on kubelet's socket, is {name or 'unnamed'}",
            remedy="make sure that it is a kubelet, and not what was left of one",
        )
        return
    wanted = root_dir(procfs.arguments(pid)) / "pod-resources" / KUBELET_SOCKET
    ours = node.settings.kubelet.pod_resources_socket
    if str(wanted) != ours:
        yield _AREA.warn(
            check="kubelet-process",
            reason=f"kubelet, pid {pid}, has its pod-resources socket at {wanted}, by its "
            f"--root-dir, and not at {ours}",
            remedy=f"set kubelet.podResourcesSocket: {wanted}, unless it is mounted elsewhere",
        )
        return
    yield _AREA.ok(check="kubelet-process", reason=f"it is {name}, pid {pid}")


def root_dir(arguments: tuple[str, ...]) -> Path:
    """Return kubelet's root folder by what it was started with.

    >>> root_dir(("kubelet", "--root-dir", "/data/kubelet"))
    PosixPath('/data/kubelet')
    """
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in {"--root-dir", "-root-dir"}:
            following = arguments[place + 1 : place + 2]
            return Path(value if equals else next(iter(following), ""))
    return Path("/var/lib/kubelet")


def _pod_resources(node: Node, kubelet: int | None) -> Finding:
    path = node.path(node.settings.kubelet.pod_resources_socket)
    without = "which pods kubelet counts is not known, and nothing is reclaimed"
    if not path.exists():
        return _AREA.fail(
            check="pod-resources",
            reason=f"{path} is not there: {without}",
            remedy="set kubelet.podResourcesSocket: it is pod-resources/kubelet.sock below "
            "kubelet's --root-dir; where the daemon runs in a container mount that folder",
        )
    if not node.live:
        return _AREA.ok(check="pod-resources", reason=f"{path} is there; {_UNASKED}")
    answer = _ask(path)
    if answer.forbidden:
        return _AREA.warn(
            check="pod-resources",
            reason=f"{path} may not be connected to",
            remedy="run the doctor as root",
        )
    if answer.problem:
        return _AREA.fail(
            check="pod-resources",
            reason=f"{path} is there, but nobody answers ({answer.problem}): {without}",
            remedy="start kubelet, and read its log: journalctl -u kubelet",
        )
    if kubelet and answer.pid and answer.pid != kubelet:
        return _AREA.warn(
            check="pod-resources",
            reason=f"pid {answer.pid} answers on {path}, and pid {kubelet} on kubelet's own socket",
            remedy="let kubelet.pluginDir and kubelet.podResourcesSocket name the same kubelet's",
        )
    return _AREA.ok(check="pod-resources", reason=f"{path} answers")


def _ask(path: Path) -> _Answer:
    try:
        return _Answer(pid=listener(path))
    except OSError as error:
        return _Answer(
            problem=error.strerror or str(error), forbidden=isinstance(error, PermissionError)
        )
