"""What the doctor says of DRA, Events and the node's label: settings, folders, API server."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding, Node, or_well, unusable
from holdfast.doctor.programs import SocketAnswer, ask_daemon, ask_socket
from holdfast.host.files.kernelfile import is_folder
from holdfast.names import DRA_SOCKET, PLUGINS, PLUGINS_REGISTRY
from holdfast.settings.named import follows_label

_MOUNT = "set dra.kubeletRoot to kubelet's --root-dir; if the daemon runs in a container, mount"


def _registry(node: Node, folder: Path) -> Finding:
    missing = Check("registry").fail(
        f"{folder} is not there: kubelet finds no driver, and starts no pod with a claim",
        remedy=f"start kubelet, which makes it; {_MOUNT} the host's {PLUGINS_REGISTRY} "
        "(dra.enabled of the chart)",
    )
    return unusable(node, folder, missing) or Check("registry").ok(f"{folder} is there")


def _folder(node: Node, folder: Path) -> Finding:
    there = folder if is_folder(folder) else folder.parent
    missing = Check("driver-folder").fail(
        f"{there} is not there: kubelet cannot reach the driver",
        remedy=f"start kubelet, which makes it; {_MOUNT} the host's {folder} (dra.enabled of "
        "the chart)",
    )
    if problem := unusable(node, there, missing):
        return problem
    if there != folder:
        return Check("driver-folder").ok(f"{folder} is not there yet; the daemon makes it")
    return Check("driver-folder").ok(f"{folder} is there")


def _sockets(node: Node, paths: tuple[Path, ...]) -> Iterator[Finding]:
    """Yield whether the daemon answers on our sockets, and nobody else."""
    daemon = ask_daemon(node)
    if daemon.listens and daemon.problem:
        return  # it is stuck, and which process it is cannot be told
    well = "the daemon answers on both sockets of the driver"
    if daemon.problem:
        well = "no daemon runs that could serve claims"
    yield from or_well(_wrong(daemon, paths), Check("driver-sockets").ok(well))


def _wrong(daemon: SocketAnswer, paths: tuple[Path, ...]) -> Iterator[Finding]:
    for path in paths:
        answer = ask_socket(path)
        if not answer.problem and (daemon.problem or answer.pid != daemon.pid):
            who = f"pid {answer.pid}" if answer.pid else "a process that cannot be seen from here"
            yield Check("driver-sockets").fail(
                f"{who} answers on {path}, and is not the daemon: two drivers have one name",
                remedy="stop the other driver on this node, or set dra.driverName",
            )
        elif answer.problem and not daemon.problem:
            yield Check("driver-sockets").fail(
                f"the daemon runs, but nobody answers on {path} ({answer.problem}): kubelet "
                "prepares no claim, and pods with claims stay Terminating",
                remedy="the daemon makes the socket again within seconds; if not, its log says why",
            )


def dra_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of what claims need; nothing more where no hardware is served by DRA."""
    if not node.settings.has_dra():
        yield Check("api").ok("no hardware is served by DRA")
        return
    driver = node.settings.dra.driver_name
    yield Check("api").ok(f"the driver {driver} serves claims")
    registry = node.path(f"{node.settings.dra.kubelet_root}/{PLUGINS_REGISTRY}")
    folder = node.path(f"{node.settings.dra.kubelet_root}/{PLUGINS}/{driver}")
    yield _registry(node, registry)
    yield _folder(node, folder)
    if node.live:
        from holdfast.doctor.apiserver import dra_server_findings  # noqa: PLC0415 - TLS

        yield from dra_server_findings(node)
        yield from _sockets(node, (folder / DRA_SOCKET, registry / f"{driver}-reg.sock"))


def events_findings(node: Node) -> Iterator[Finding]:
    """Yield whether the API server lets the daemon write Events and its node's condition."""
    if not node.settings.events.enabled:
        yield Check("enabled").ok("no Events are written, and no condition of the node")
        return
    yield Check("enabled").ok("Events and the node's condition are written")
    if node.live:
        from holdfast.doctor.apiserver import event_server_findings  # noqa: PLC0415 - TLS

        yield from event_server_findings(node)


def named_findings(node: Node) -> Iterator[Finding]:
    """Yield whether the API server lets the daemon follow the label that names its document."""
    if not follows_label(node.settings):
        yield Check("label").ok("no label of the node names its document")
        return
    yield Check("label").ok(f"{' or '.join(node.settings.named.labels)} names the node's document")
    if node.live:
        from holdfast.doctor.apiserver import label_server_findings  # noqa: PLC0415 - TLS

        yield from label_server_findings(node)
