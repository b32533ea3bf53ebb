"""Checks the sockets of plugins: our own, and those that advertise the same hardware."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node
from holdfast.doctor.programs import ask_socket
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import Settings

_OTHER_PLUGINS = Check("kubelet", "other-plugins")
_DRA_DRIVERS = Check("kubelet", "dra-drivers")
_OWN_SOCKETS = Check("kubelet", "own-sockets")


class Hardware(Struct, frozen=True, kw_only=True):
    """What holdfast and another plugin may both advertise, and the setting that leaves it to it."""

    wanted: Callable[[Settings], bool]
    leave: str


_GPUS = Hardware(wanted=lambda settings: settings.gpu.enabled, leave="gpu.enabled: false")
_TPUS = Hardware(wanted=lambda settings: settings.tpu.enabled, leave="tpu.enabled: false")


class Rival(Struct, frozen=True):
    """Another plugin for the same hardware, known by the name of its socket."""

    who: str
    socket: re.Pattern[str]
    hardware: Hardware


RIVALS = (
    Rival("NVIDIA's device plugin", re.compile(r"nvidia-(gpu|mig)[^/]*\.sock"), _GPUS),
    Rival("GKE's GPU plugin", re.compile(r"nvidiaGPU[^/]*\.sock"), _GPUS),
    Rival("GKE's TPU plugin", re.compile(r"tpu-[0-9]+\.sock"), _TPUS),
)
"""Device plugins, in kubelet's plugin folder."""
DRA_DRIVERS = (
    Rival("gpu.nvidia.com", re.compile(r"gpu\.nvidia\.com-.*"), _GPUS),
    Rival("tpu.google.com", re.compile(r"tpu\.google\.com-.*"), _TPUS),
)
"""Drivers for Kubernetes' dynamic resource allocation, in kubelet's plugins_registry."""


def plugin_findings(node: Node, folder: Path) -> Iterator[Finding]:
    """Yield what was found of the plugins' sockets in *folder*. Never raises."""
    try:
        names = list_names(folder)
    except HostError as error:
        yield _OTHER_PLUGINS.warn(str(error), remedy="run the doctor as root")
        return
    yield from _rivals(node, folder, names)
    yield from _dra_drivers(node)
    if node.live:
        yield from _ours(node, folder, names)


def _served(
    node: Node, folder: Path, names: tuple[str, ...], rivals: tuple[Rival, ...]
) -> Iterator[tuple[Rival, Path, int]]:
    """Yield each of *rivals* whose socket is in *folder*, and who answers; 0 for an unknown pid.

    A socket that nobody answers on is left over: kubelet removes it at its next start.
    """
    for name in names:
        rival = next((each for each in rivals if each.socket.fullmatch(name)), None)
        if rival is None or not rival.hardware.wanted(node.settings):
            continue
        answer = ask_socket(folder / name) if node.live else None
        if answer is None or not answer.problem:
            yield rival, folder / name, answer.pid if answer is not None else 0


def _rivals(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    found = False
    for rival, path, pid in _served(node, folder, names, RIVALS):
        found = True
        reason = f"{rival.who} serves {path}" + (f", pid {pid}" if pid else "")
        if not node.live:
            reason = f"{path} is a socket of {rival.who}; a copy does not tell whether it is served"
        yield _OTHER_PLUGINS.warn_or_fail(
            reason,
            remedy=f"remove it from this node, or set {rival.hardware.leave}: two plugins for one "
            "resource replace each other in kubelet, and neither knows what the other granted",
            fails=node.live,
        )
    if not found:
        yield _OTHER_PLUGINS.ok(f"no known plugin in {folder} advertises what holdfast does")


def _dra_drivers(node: Node) -> Iterator[Finding]:
    """Yield the DRA drivers that registered with this kubelet for what holdfast advertises."""
    home = Path(node.settings.kubelet.pod_resources_socket).parent.parent
    folder = node.path(str(home / "plugins_registry"))
    if not folder.is_dir():
        return  # usually not mounted where the daemon runs
    found: dict[Rival, Path] = {}
    for rival, path, _ in _served(node, folder, list_names(folder), DRA_DRIVERS):
        found.setdefault(rival, path)
    for rival, path in found.items():
        yield _DRA_DRIVERS.warn(
            f"{path} is a socket of the DRA driver {rival.who}, which hands out the same devices. "
            "Neither it nor kubelet knows holdfast's locks",
            remedy=f"remove it from this node, or set {rival.hardware.leave}",
        )
    if not found:
        yield _DRA_DRIVERS.ok(f"no DRA driver in {folder} hands out what holdfast does")


def _ours(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield whether our own sockets answer, as kubelet would find when it connects."""
    prefix = f"{node.settings.kubelet.socket_prefix}-"
    ours = [name for name in names if name.startswith(prefix) and name.endswith(".sock")]
    daemon = ask_socket(node.path(node.settings.state_dir) / CONTROL_SOCKET)
    if daemon.problem:
        left = f"; {len(ours)} sockets of holdfast in {folder} are left over" if ours else ""
        yield _OWN_SOCKETS.ok(f"no daemon runs that could serve one{left}")
        return
    who = f"the daemon, pid {daemon.pid}," if daemon.pid else "the daemon"
    silent = {name: answer for name in ours if (answer := ask_socket(folder / name)).problem}
    for name, answer in silent.items():
        yield _OWN_SOCKETS.fail(
            f"{who} runs, but nobody answers on {folder / name} ({answer.problem}): kubelet cannot "
            "reach it",
            remedy="the daemon makes the socket again within seconds; if not, read its log and "
            "restart it",
        )
    if not ours:
        yield _OWN_SOCKETS.warn(
            f"{who} runs, but serves no resource in {folder}",
            remedy="see `holdfast status`: there are no devices, or kubelet.pluginDir is another",
        )
    elif not silent:
        yield _OWN_SOCKETS.ok(f"{len(ours)} sockets of holdfast answer")
