"""Checks kubelet: its plugin folder, its sockets and the process behind them."""

import stat
from collections.abc import Generator, Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.kubelet.checkpoint import checkpoint_findings, claim_findings
from holdfast.doctor.kubelet.plugins import plugin_findings
from holdfast.doctor.node import IN_MEMORY, Node, unusable
from holdfast.doctor.programs import ask_socket, flag_of
from holdfast.host.proc.procfs import Procfs
from holdfast.names import KUBELET_SOCKET

_PLUGIN_FOLDER = Check("kubelet", "plugin-folder")
_KUBELET_SOCKET = Check("kubelet", "kubelet-socket")
_KUBELET_PROCESS = Check("kubelet", "kubelet-process")
_POD_RESOURCES = Check("kubelet", "pod-resources")
_KUBELETS = frozenset(
    {"kubelet", "hyperkube", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s"}
)
"""Programs that are a kubelet, or that have one in them."""
_UNASKED = "this is a copy of a node, so it was not asked"


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
        yield _PLUGIN_FOLDER.warn(
            f"{folder} cannot be looked at: {error.strerror}", remedy="run the doctor as root"
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield _PLUGIN_FOLDER.fail(
            f"{folder} is not a folder",
            remedy="set kubelet.pluginDir to the folder where kubelet has kubelet.sock",
        )
        return
    yield _folder(node, folder)
    kubelet = yield from _socket(node, folder / KUBELET_SOCKET)
    yield from _process(node, kubelet)
    yield _pod_resources(node, kubelet)
    yield from checkpoint_findings(folder, node.settings)
    yield from claim_findings(node)
    yield from plugin_findings(node, folder)


def _no_folder(node: Node, folder: Path) -> Finding:
    home = node.path("/var/lib/kubelet")
    usual = home / "device-plugins"
    if home.is_dir() and folder == usual:
        # Each kubelet makes this folder when it starts, whatever its --root-dir.
        return _PLUGIN_FOLDER.warn(
            f"{folder} is not there: kubelet has not started on this node yet",
            remedy="start kubelet, which makes it; if the doctor runs in a container, mount the "
            "host's folder",
        )
    if home.is_dir():
        return _PLUGIN_FOLDER.fail(
            f"{folder} is not there, but {home} is: this node has a kubelet",
            remedy="set kubelet.pluginDir to its device-plugins folder, which does not follow "
            "kubelet's --root-dir; if the daemon runs in a container, mount the host's folder",
        )
    return _PLUGIN_FOLDER.warn(
        f"{folder} is not there, nor is {home}: no kubelet ran here yet, or it uses another folder",
        remedy="start kubelet, or set kubelet.pluginDir; in a container, mount the host's folder",
    )


def _folder(node: Node, folder: Path) -> Finding:
    mount = node.mount(folder)
    if problem := unusable(mount):
        return _PLUGIN_FOLDER.fail(f"{folder} {problem[0]}", remedy=problem[1])
    if mount is not None and mount.kind in IN_MEMORY:
        return _PLUGIN_FOLDER.warn(
            f"{folder} is on {mount.kind}: a reboot loses kubelet's checkpoint",
            remedy="nothing, if the node's image is made so: its pods get devices again",
        )
    on = f", on {mount.kind}" if mount is not None else ""
    return _PLUGIN_FOLDER.ok(f"{folder} is there{on}")


def _socket(node: Node, path: Path) -> Generator[Finding, None, int | None]:
    """Yield what was found of kubelet's socket; return the pid behind it, None if there is none."""
    if not path.exists():
        yield _KUBELET_SOCKET.fail(
            f"{path} is not there: no plugin can register",
            remedy="start kubelet; if it runs, set kubelet.pluginDir to where it has its socket",
        )
        return None
    if not node.live:
        yield _KUBELET_SOCKET.ok(f"{path} is there; {_UNASKED}")
        return None
    answer = ask_socket(path)
    if answer.forbidden:
        yield _KUBELET_SOCKET.warn(
            f"no permission to connect to {path}",
            remedy="run the doctor as root; with SELinux, under a type such as spc_t",
        )
        return None
    if answer.problem:
        yield _KUBELET_SOCKET.fail(
            f"{path} is there, but nobody answers ({answer.problem}): kubelet is down, and "
            "its socket is left over",
            remedy="start kubelet, and read its log: journalctl -u kubelet",
        )
        return None
    yield _KUBELET_SOCKET.ok(f"{path} answers")
    return answer.pid


def _process(node: Node, pid: int | None) -> Iterator[Finding]:
    """Yield what was found of the process behind kubelet's socket."""
    if pid is None:
        return
    procfs = Procfs(node.host)
    if not pid or procfs.process(pid) is None:
        yield _KUBELET_PROCESS.warn(
            "the process behind kubelet's socket cannot be seen from here. holdfast cannot tell "
            "which kubelet wrote the checkpoint, so it ends no process",
            remedy="set hostPID: true, and mount the host's /proc at host.proc",
        )
        return
    name = procfs.program(pid) or ""
    if name not in _KUBELETS:
        yield _KUBELET_PROCESS.warn(
            f"pid {pid}, which answers on kubelet's socket, is {name or 'unnamed'}",
            remedy="make sure that it is a kubelet, not what is left of one",
        )
        return
    wanted = root_dir(procfs.arguments(pid)) / "pod-resources" / KUBELET_SOCKET
    ours = node.settings.kubelet.pod_resources_socket
    if str(wanted) != ours:
        yield _KUBELET_PROCESS.warn(
            f"by its --root-dir, kubelet (pid {pid}) has its pod-resources socket at {wanted}, "
            f"not at {ours}",
            remedy=f"set kubelet.podResourcesSocket: {wanted}, unless it is mounted elsewhere",
        )
        return
    yield _KUBELET_PROCESS.ok(f"it is {name}, pid {pid}")


def root_dir(arguments: tuple[str, ...]) -> Path:
    """Return kubelet's root folder by its command line.

    >>> root_dir(("kubelet", "--root-dir", "/data/kubelet"))
    PosixPath('/data/kubelet')
    """
    told = flag_of(arguments, "--root-dir", "-root-dir")
    return Path("/var/lib/kubelet" if told is None else told)


def _pod_resources(node: Node, kubelet: int | None) -> Finding:
    path = node.path(node.settings.kubelet.pod_resources_socket)
    without = "holdfast cannot tell which pods kubelet counts, and reclaims nothing"
    if not path.exists():
        return _POD_RESOURCES.fail(
            f"{path} is not there: {without}",
            remedy="set kubelet.podResourcesSocket: it is pod-resources/kubelet.sock below "
            "kubelet's --root-dir; if the daemon runs in a container, mount that folder",
        )
    if not node.live:
        return _POD_RESOURCES.ok(f"{path} is there; {_UNASKED}")
    answer = ask_socket(path)
    if answer.forbidden:
        return _POD_RESOURCES.warn(
            f"no permission to connect to {path}", remedy="run the doctor as root"
        )
    if answer.problem:
        return _POD_RESOURCES.fail(
            f"{path} is there, but nobody answers ({answer.problem}): {without}",
            remedy="start kubelet, and read its log: journalctl -u kubelet",
        )
    if kubelet and answer.pid and answer.pid != kubelet:
        return _POD_RESOURCES.warn(
            f"pid {answer.pid} answers on {path}, but pid {kubelet} on kubelet's own socket",
            remedy="let kubelet.pluginDir and kubelet.podResourcesSocket name the same kubelet's",
        )
    return _POD_RESOURCES.ok(f"{path} answers")
