"""What the doctor says of DRA and Events: the settings and folders, then the API server."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding, Node, unusable
from holdfast.doctor.programs import ask_daemon, ask_socket
from holdfast.names import DRA_SOCKET, PLUGINS, PLUGINS_REGISTRY

_REGISTRY = Check("dra", "registry")
_DRIVER_FOLDER = Check("dra", "driver-folder")
_DRIVER_SOCKETS = Check("dra", "driver-sockets")
_MOUNT = "set dra.kubeletRoot to kubelet's --root-dir; if the daemon runs in a container, mount"
_API = Check("dra", "api")
_ENABLED = Check("events", "enabled")


def folder_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of kubelet's folders and of our sockets in them."""
    root, driver = Path(node.settings.dra.kubelet_root), node.settings.dra.driver_name
    registry = node.path(str(root / PLUGINS_REGISTRY))
    folder = node.path(str(root / PLUGINS / driver))
    yield _registry(node, registry)
    yield _folder(node, folder)
    if node.live:
        yield from _sockets(node, (folder / DRA_SOCKET, registry / f"{driver}-reg.sock"))


def _registry(node: Node, folder: Path) -> Finding:
    if not folder.is_dir():
        return _REGISTRY.fail(
            f"{folder} is not there: kubelet finds no driver, and starts no pod with a claim",
            remedy=f"start kubelet, which makes it; {_MOUNT} the host's {PLUGINS_REGISTRY} "
            "(dra.enabled of the chart)",
        )
    if problem := unusable(node, folder):
        return _REGISTRY.fail(f"{folder} {problem[0]}", remedy=problem[1])
    return _REGISTRY.ok(f"{folder} is there")


def _folder(node: Node, folder: Path) -> Finding:
    there = next((each for each in (folder, folder.parent) if each.is_dir()), None)
    if there is None:
        return _DRIVER_FOLDER.fail(
            f"{folder.parent} is not there: kubelet cannot reach the driver",
            remedy=f"start kubelet, which makes it; {_MOUNT} the host's {folder} (dra.enabled of "
            "the chart)",
        )
    if problem := unusable(node, there):
        return _DRIVER_FOLDER.fail(f"{there} {problem[0]}", remedy=problem[1])
    if there != folder:
        return _DRIVER_FOLDER.ok(f"{folder} is not there yet; the daemon makes it")
    return _DRIVER_FOLDER.ok(f"{folder} is there")


def _sockets(node: Node, paths: tuple[Path, ...]) -> Iterator[Finding]:
    """Yield whether the daemon answers on our sockets, and nobody else."""
    daemon, unasked = ask_daemon(node, _DRIVER_SOCKETS)
    if unasked is not None:
        yield unasked
        return
    answers = {path: ask_socket(path) for path in paths}
    bad = False
    for path, answer in answers.items():
        if not answer.problem and (daemon.problem or answer.pid != daemon.pid):
            bad = True
            who = f"pid {answer.pid}" if answer.pid else "a process that cannot be seen from here"
            yield _DRIVER_SOCKETS.fail(
                f"{who} answers on {path}, and is not the daemon: two drivers have one name",
                remedy="stop the other driver on this node, or set dra.driverName",
            )
        elif answer.problem and not daemon.problem:
            bad = True
            yield _DRIVER_SOCKETS.fail(
                f"the daemon runs, but nobody answers on {path} ({answer.problem}): kubelet "
                "prepares no claim, and pods with claims stay Terminating",
                remedy="the daemon makes the socket again within seconds; if not, its log says why",
            )
    if not bad and daemon.problem:
        yield _DRIVER_SOCKETS.ok("no daemon runs that could serve claims")
    elif not bad:
        yield _DRIVER_SOCKETS.ok("the daemon answers on both sockets of the driver")


def dra_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of what claims need; nothing more where no hardware is served by DRA."""
    if not node.settings.has_dra():
        yield _API.ok("no hardware is served by DRA")
        return
    yield _API.ok(f"the driver {node.settings.dra.driver_name} serves claims")
    yield from folder_findings(node)
    if node.live:
        from holdfast.doctor.apiserver import dra_server_findings  # noqa: PLC0415 - TLS

        yield from dra_server_findings(node)


def events_findings(node: Node) -> Iterator[Finding]:
    """Yield whether the API server lets the daemon write Events and its node's condition."""
    if not node.settings.events.enabled:
        yield _ENABLED.ok("no Events are written, and no condition of the node")
        return
    yield _ENABLED.ok("Events and the node's condition are written")
    if node.live:
        from holdfast.doctor.apiserver import event_server_findings  # noqa: PLC0415 - TLS

        yield from event_server_findings(node)
