"""Checks the sockets of plugins in kubelet's folder: our own, and those that rival ours."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names
from holdfast.host.proc.peer import listener
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import Settings

_AREA = Area("kubelet")


class Rival(Struct, frozen=True, kw_only=True):
    """A plugin that advertises what holdfast does, known by the name of its socket."""

    who: str
    socket: re.Pattern[str]
    asked: Callable[[Settings], bool]
    """Tells whether holdfast is set to advertise the same."""
    instead: str
    """The setting with which holdfast leaves it to the other."""


RIVALS = (
    Rival(
        who="NVIDIA's device plugin",
        socket=re.compile(r"nvidia-(gpu|mig)[^/]*\.sock"),
        asked=lambda settings: settings.gpu.enabled,
        instead="gpu.enabled: false",
    ),
    Rival(
        who="GKE's GPU plugin",
        socket=re.compile(r"nvidiaGPU[^/]*\.sock"),
        asked=lambda settings: settings.gpu.enabled,
        instead="gpu.enabled: false",
    ),
    Rival(
        who="GKE's TPU plugin",
        socket=re.compile(r"tpu-[0-9]+\.sock"),
        asked=lambda settings: settings.tpu.enabled,
        instead="tpu.enabled: false",
    ),
)


class DraDriver(Struct, frozen=True, kw_only=True):
    """A driver of Kubernetes' dynamic resource allocation that hands out the same hardware."""

    name: str
    asked: Callable[[Settings], bool]
    instead: str


DRA_DRIVERS = (
    DraDriver(
        name="gpu.nvidia.com",
        asked=lambda settings: settings.gpu.enabled,
        instead="gpu.enabled: false",
    ),
    DraDriver(
        name="tpu.google.com",
        asked=lambda settings: settings.tpu.enabled,
        instead="tpu.enabled: false",
    ),
)


def plugin_findings(node: Node, folder: Path) -> Iterator[Finding]:
    """Yield what was found of the plugins' sockets in *folder*. Never raises."""
    try:
        names = list_names(folder)
    except HostError as error:
        yield _AREA.warn(check="other-plugins", reason=str(error), remedy="run the doctor as root")
        return
    yield from _rivals(node, folder, names)
    yield from _dra_drivers(node)
    if node.live:
        yield from _ours(node, folder, names)


def _rivals(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    found = False
    for name in names:
        rival = next((each for each in RIVALS if each.socket.fullmatch(name)), None)
        if rival is None or not rival.asked(node.settings):
            continue
        pid, problem = _ask(folder / name) if node.live else (0, "")
        if problem:
            continue  # nobody serves it any more: kubelet removes it at its next start
        found = True
        who = f"{rival.who} serves {folder / name}" + (f", pid {pid}" if pid else "")
        remedy = (
            f"remove it from this node, or set {rival.instead}: two plugins of one resource push "
            "each other out of kubelet, and neither knows what the other granted"
        )
        if node.live:
            yield _AREA.fail(check="other-plugins", reason=who, remedy=remedy)
        else:
            yield _AREA.warn(
                check="other-plugins",
                reason=f"{folder / name} is a socket of {rival.who}; whether it is served a copy "
                "does not tell",
                remedy=remedy,
            )
    if not found:
        yield _AREA.ok(
            check="other-plugins", reason=f"no plugin is known in {folder} that rivals holdfast"
        )


def _dra_drivers(node: Node) -> Iterator[Finding]:
    """Yield the DRA drivers that registered with this kubelet for what holdfast advertises."""
    home = Path(node.settings.kubelet.pod_resources_socket).parent.parent
    folder = node.path(str(home / "plugins_registry"))
    if not folder.is_dir():
        return  # mostly not mounted where the daemon runs
    names = list_names(folder)
    found = False
    for driver in DRA_DRIVERS:
        sockets = [name for name in names if name.startswith(f"{driver.name}-")]
        if not (sockets and driver.asked(node.settings)):
            continue
        if node.live and all(_ask(folder / name)[1] for name in sockets):
            continue
        found = True
        yield _AREA.warn(
            check="dra-drivers",
            reason=f"{folder / sockets[0]} is of the DRA driver {driver.name}, which hands out the "
            "same devices: neither it nor kubelet knows of holdfast's locks",
            remedy=f"remove it from this node, or set {driver.instead}",
        )
    if not found:
        yield _AREA.ok(
            check="dra-drivers", reason=f"no DRA driver in {folder} hands out what holdfast does"
        )


def _ours(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield whether our own sockets answer, as kubelet's dialling back would find."""
    prefix = f"{node.settings.kubelet.socket_prefix}-"
    ours = [name for name in names if name.startswith(prefix) and name.endswith(".sock")]
    daemon, down = _ask(node.path(node.settings.state_dir) / CONTROL_SOCKET)
    if down:
        left = f"; {len(ours)} sockets of ours in {folder} are stale" if ours else ""
        yield _AREA.ok(check="own-sockets", reason=f"no daemon runs that could serve one{left}")
        return
    silent = {name: problem for name in ours if (problem := _ask(folder / name)[1])}
    for name, problem in silent.items():
        yield _AREA.fail(
            check="own-sockets",
            reason=f"the daemon{_pid(daemon)} runs, but nobody answers on {folder / name} "
            f"({problem}): kubelet cannot reach it",
            remedy="read the daemon's log; it makes the socket anew within seconds, or else "
            "restart it",
        )
    if not ours:
        yield _AREA.warn(
            check="own-sockets",
            reason=f"the daemon{_pid(daemon)} runs, and serves no resource in {folder}",
            remedy="see `holdfast status`: there are no devices, or kubelet.pluginDir is another",
        )
    elif not silent:
        yield _AREA.ok(check="own-sockets", reason=f"{len(ours)} sockets of ours answer")


def _pid(pid: int) -> str:
    return f", pid {pid}," if pid else ""


def _ask(path: Path) -> tuple[int, str]:
    """Return the pid of who answers on *path*, or why nobody does."""
    try:
        return listener(path), ""
    except OSError as error:
        return 0, error.strerror or str(error)
