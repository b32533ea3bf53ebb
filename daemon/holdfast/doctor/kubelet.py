"""What the doctor says of kubelet: its sockets, its checkpoint, and other plugins beside ours."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from holdfast.discovery.source import Sources
from holdfast.doctor.finding import Check, Finding, Node, or_well, unusable
from holdfast.doctor.programs import ask_daemon, ask_socket, flag_of
from holdfast.errors import HostError, KubeletError
from holdfast.host.files.kernelfile import is_folder, list_names, read_bytes, seen
from holdfast.host.proc.procfs import Procfs
from holdfast.kubelet import claimstate
from holdfast.kubelet.checkpoint import Contents, parse
from holdfast.model.ids import DeviceId
from holdfast.model.node.filesystems import IN_MEMORY
from holdfast.model.nvidia import REPLICAS
from holdfast.model.text import some
from holdfast.names import CLAIM_STATE, KUBELET_CHECKPOINT, KUBELET_SOCKET, PLUGINS_REGISTRY
from holdfast.settings import Settings

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?")
_DEPRECATION = "DEPRECATION"
_GPU = "nvidia.com/gpu"
_KUBELETS = frozenset(
    {"kubelet", "hyperkube", "kubelite", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s"}
)
"""Programs that are a kubelet, or that have one in them."""


class Rival(Struct, frozen=True):
    """Another plugin for the hardware of a section of the settings, known by its socket's name."""

    who: str
    socket: re.Pattern[str]
    section: Literal["gpu", "tpu"]

    def wanted(self, settings: Settings) -> bool:
        """Tell whether holdfast is to advertise the same hardware."""
        return settings.gpu.enabled if self.section == "gpu" else settings.tpu.enabled


RIVALS = (
    Rival("NVIDIA's device plugin", re.compile(r"nvidia-(gpu|mig)[^/]*\.sock"), "gpu"),
    Rival("GKE's GPU plugin", re.compile(r"nvidiaGPU[^/]*\.sock"), "gpu"),
    Rival("GKE's TPU plugin", re.compile(r"tpu-[0-9]+\.sock"), "tpu"),
)
"""Device plugins, in kubelet's plugin folder."""
DRA_DRIVERS = (
    Rival("gpu.nvidia.com", re.compile(r"gpu\.nvidia\.com-.*"), "gpu"),
    Rival("tpu.google.com", re.compile(r"tpu\.google\.com-.*"), "tpu"),
)
"""Drivers for Kubernetes' dynamic resource allocation, in kubelet's plugins_registry."""


def plugin_findings(node: Node, folder: Path) -> Iterator[Finding]:
    """Yield what was found of the plugins' sockets in *folder*."""
    names = list_names(folder)
    well = f"no known plugin in {folder} advertises what holdfast does"
    yield from or_well(_rivals(node, folder, names), Check("other-plugins").ok(well))
    registry = node.path(str(_home(node) / PLUGINS_REGISTRY))
    if is_folder(registry):  # usually not mounted where the daemon runs
        well = f"no DRA driver in {registry} hands out what holdfast does"
        yield from or_well(_dra_drivers(node, registry), Check("dra-drivers").ok(well))
    if node.live:
        yield from _ours(node, folder, names)


def _served(
    node: Node, folder: Path, names: tuple[str, ...], rivals: tuple[Rival, ...]
) -> Iterator[tuple[Rival, Path, int]]:
    """Yield each of *rivals* whose socket is in *folder*, and who answers; 0 for an unknown pid.

    A socket that nobody listens on is left over: kubelet removes it at its next start.
    """
    for name in names:
        rival = next((each for each in rivals if each.socket.fullmatch(name)), None)
        if rival is None or not rival.wanted(node.settings):
            continue
        answer = ask_socket(folder / name) if node.live else None
        if answer is None or answer.listens:
            yield rival, folder / name, answer.pid if answer is not None else 0


def _rivals(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    for rival, path, pid in _served(node, folder, names, RIVALS):
        reason = f"{rival.who} serves {path}" + (f", pid {pid}" if pid else "")
        if not node.live:
            reason = f"{path} is a socket of {rival.who}; a copy does not tell whether it is served"
        yield Check("other-plugins").warn_or_fail(
            reason,
            remedy=f"remove it from this node, or set {rival.section}.enabled: false: two plugins "
            "for one resource replace each other in kubelet, and neither knows what the other "
            "granted",
            fails=node.live,
        )


def _dra_drivers(node: Node, folder: Path) -> Iterator[Finding]:
    """Yield the DRA drivers that registered with this kubelet for what holdfast advertises."""
    own = node.settings.dra.driver_name if node.settings.has_dra() else ""
    others = tuple(each for each in DRA_DRIVERS if each.who != own)
    told: set[Rival] = set()
    for rival, path, _ in _served(node, folder, list_names(folder), others):
        if rival in told:
            continue
        told.add(rival)
        yield Check("dra-drivers").warn(
            f"{path} is a socket of the DRA driver {rival.who}, which hands out the same devices. "
            "Neither it nor kubelet knows holdfast's locks",
            remedy=f"remove it from this node, or set {rival.section}.enabled: false",
        )


def _home(node: Node) -> Path:
    """Return kubelet's root folder, in which its PodResources socket is, as the node calls it."""
    return Path(node.settings.kubelet.pod_resources_socket).parent.parent


def _ours(node: Node, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield whether our own sockets answer, as kubelet would find when it connects."""
    prefix = f"{node.settings.kubelet.socket_prefix}-"
    ours = [name for name in names if name.startswith(prefix) and name.endswith(".sock")]
    daemon = ask_daemon(node)
    if not daemon.listens:
        left = f"; left over in {folder}: {', '.join(ours)}" if ours else ""
        yield Check("own-sockets").ok(f"no daemon runs that could serve one{left}")
        return
    who = f"the daemon, pid {daemon.pid}," if daemon.pid else "the daemon"
    if not ours:
        yield Check("own-sockets").warn(
            f"{who} runs, but serves no resource in {folder}",
            remedy="see `holdfast status`: there are no devices, or kubelet.pluginDir is another",
        )
        return
    silent = (_silent(folder / name, who) for name in ours)
    well = Check("own-sockets").ok(f"somebody answers on {', '.join(ours)}")
    yield from or_well(filter(None, silent), well)


def _silent(path: Path, who: str) -> Finding | None:
    problem = ask_socket(path).problem
    if not problem:
        return None
    return Check("own-sockets").fail(
        f"{who} runs, but nobody answers on {path} ({problem}): kubelet cannot reach it",
        remedy="the daemon makes the socket again within seconds; if not, read its log and restart "
        "it",
    )


def checkpoint_findings(folder: Path, settings: Settings) -> Iterator[Finding]:
    """Yield what was found of the checkpoint in *folder*; raise HostError without permission."""
    path = folder / KUBELET_CHECKPOINT
    try:
        content = read_bytes(path)
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        yield Check("checkpoint").fail(
            f"{error}: holdfast cannot tell which pods have which devices",
            remedy="look for disk errors (dmesg), and restart kubelet when the disk works",
        )
        return
    if content is None:
        yield Check("checkpoint").ok(f"{path} is not there: no plugin has registered yet")
        return
    try:
        contents = parse(content, Sources())
        if not contents.has_checksum:
            raise KubeletError("it has no checksum")  # noqa: TRY301 - one answer for what is wrong
    except KubeletError as error:
        yield Check("checkpoint").fail(
            f"{path} cannot be understood: {error}; a kubelet that starts with it forgets "
            "who has which device",
            remedy="drain the node or end its pods with devices, stop kubelet, move the file away "
            "and start kubelet; plugins then register again",
        )
        return
    pods = len({entry.pod for entry in contents.entries})
    yield Check("checkpoint").ok(
        f"pods with devices in {path}: {pods}; only kubelet can check its checksum"
    )
    well = Check("other-devices").ok("the checkpoint has no devices of other plugins")
    yield from or_well(_strangers(contents, settings), well)
    yield _version(folder, contents, settings)


def claim_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of kubelet's record of claims; nothing where nobody misses it.

    Raises HostError without permission.
    """
    path = _claim_state(node)
    try:
        content = read_bytes(path)
        if content is None:
            if node.settings.has_dra():
                yield Check("claim-state").warn(
                    f"{path} is not there: holdfast cannot tell which pods use which claims, and "
                    "finds no claim that kubelet never unprepared",
                    remedy="start kubelet, which makes it; if the doctor runs in a container, set "
                    "dra.claimState to where it is seen, as the chart does",
                )
            return
        claims = claimstate.parse(content)
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        yield Check("claim-state").fail(
            f"{error}: holdfast cannot tell which pods use which claims",
            remedy="look for disk errors (dmesg), and restart kubelet when the disk works",
        )
    except KubeletError as error:
        yield Check("claim-state").fail(
            f"{path} cannot be understood: {error}; kubelet does not start with it",
            remedy="drain the node, stop kubelet, move the file away and start kubelet",
        )
    else:
        pods = len({pod for each in claims for pod in each.pods})
        yield Check("claim-state").ok(f"claims in {path}: {len(claims)}; pods with them: {pods}")


def _claim_state(node: Node) -> Path:
    """Return where kubelet's record of claims is: a copied node has it where kubelet writes it."""
    if not node.settings.has_dra():
        return node.path(str(_home(node) / CLAIM_STATE))
    dra = node.settings.dra
    return node.path(dra.claim_file() if node.live else f"{dra.kubelet_root}/{CLAIM_STATE}")


def stranger(resource: str, id_: str, settings: Settings) -> bool:
    """Tell whether holdfast would never give a device of *resource* the id *id_*."""
    if any(each.enabled and each.has(resource) for each in settings.functions):
        return _PCI.fullmatch(id_) is None
    # All plugins give GPUs the same ids, and those of shared GPUs only where they are shared.
    shared = resource in settings.sharing.by_resource()
    return settings.gpu.enabled and resource == _GPU and _is_replica(id_) and not shared


def _is_replica(id_: str) -> bool:
    return bool(REPLICAS.parted(DeviceId(id_))[1])


def _strangers(contents: Contents, settings: Settings) -> Iterator[Finding]:
    for resource, ids in sorted(contents.registered.items()):
        odd = sorted(each for each in ids if stranger(resource, each, settings))
        if odd:
            yield Check("other-devices").fail(
                f"kubelet has {resource} from another plugin, with the devices "
                f"{some(odd)}: the plugin that registers last has the resource",
                remedy="remove the other plugin from this node (docs/operations.md, migrate), or "
                "give one of the two another resource name; holdfast registers again by itself, "
                "within six minutes",
            )
    had: dict[str, set[str]] = {}
    for entry in contents.entries:
        # A pod on a replica keeps it, also where the GPU is not shared any more.
        strange = (each for each in entry.devices if stranger(entry.resource, each, settings))
        if not all(map(_is_replica, strange)):
            had.setdefault(entry.resource, set()).add(entry.pod)
    for name, pods in sorted(had.items()):
        yield Check("other-devices").warn(
            f"pods {some(sorted(pods))} have {name} from another plugin: holdfast "
            "knows none of these ids",
            remedy="delete these pods once, so that they get devices from holdfast",
        )


def _version(folder: Path, contents: Contents, settings: Settings) -> Finding:
    cdi = settings.device_list_strategy == "cdi"
    too = "; deviceListStrategy: cdi needs 1.29" if cdi else ""
    if contents.plain_lists:
        return Check("kubelet-version").warn(
            f"the checkpoint is of a kubelet before 1.20{too}", remedy="upgrade kubelet"
        )
    if seen(folder / _DEPRECATION):
        return Check("kubelet-version").warn(
            f"{folder / _DEPRECATION} was made by a kubelet of 1.24 or before{too}",
            remedy="upgrade kubelet; if it is newer now, remove the file",
        )
    return Check("kubelet-version").ok("nothing suggests that kubelet is too old")


def kubelet_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of kubelet and of what it shares with plugins."""
    settings = node.settings.kubelet
    folder = node.path(settings.plugin_dir)
    yield _folder(node, folder)
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir can raise
        return
    told, kubelet = _socket(
        node,
        Check("kubelet-socket"),
        folder / KUBELET_SOCKET,
        missing="no plugin can register",
        start="start kubelet; if it runs, set kubelet.pluginDir to where it has its socket",
        silent="kubelet is down or stuck",
    )
    yield told
    yield from _process(node, kubelet)
    yield _pod_resources(node, kubelet)
    yield from checkpoint_findings(folder, node.settings)
    yield from claim_findings(node)
    yield from plugin_findings(node, folder)


def _no_folder(node: Node, folder: Path) -> Finding:
    home = node.path("/var/lib/kubelet")
    usual = home / "device-plugins"
    if is_folder(home) and folder == usual:
        # Each kubelet makes this folder when it starts, whatever its --root-dir.
        return Check("plugin-folder").warn(
            f"{folder} is not there: kubelet has not started on this node yet",
            remedy="start kubelet, which makes it; if the doctor runs in a container, mount the "
            "host's folder",
        )
    if is_folder(home):
        return Check("plugin-folder").fail(
            f"{folder} is not there, but {home} is: this node has a kubelet",
            remedy="set kubelet.pluginDir to its device-plugins folder, which does not follow "
            "kubelet's --root-dir; if the daemon runs in a container, mount the host's folder",
        )
    return Check("plugin-folder").warn(
        f"{folder} is not there, nor is {home}: no kubelet ran here yet, or it uses another folder",
        remedy="start kubelet, or set kubelet.pluginDir; in a container, mount the host's folder",
    )


def _folder(node: Node, folder: Path) -> Finding:
    if problem := unusable(node, folder, _no_folder(node, folder)):
        return problem
    mount = node.mount(folder)
    if mount is not None and mount.kind in IN_MEMORY:
        return Check("plugin-folder").warn(
            f"{folder} is on {mount.kind}: a reboot loses kubelet's checkpoint",
            remedy="nothing, if the node's image is made so: its pods get devices again",
        )
    on = f", on {mount.kind}" if mount is not None else ""
    return Check("plugin-folder").ok(f"{folder} is there{on}")


def _socket(
    node: Node,
    check: Check,
    path: Path,
    *,
    missing: str,
    start: str,
    silent: str,
) -> tuple[Finding, int | None]:
    """Return what was found of a socket of kubelet's, and the pid behind it, None without one.

    *missing* and *silent* say what follows if it is not there or nobody answers; *start* is what to
    do if it is not there.
    """
    if not seen(path):
        return check.fail(f"{path} is not there: {missing}", remedy=start), None
    if not node.live:
        return check.ok(f"{path} is there; this is a copy of a node, so it was not asked"), None
    answer = ask_socket(path)
    if answer.problem:
        reason = f"{path} is there, but nobody answers ({answer.problem}): {silent}"
        remedy = "start kubelet, and read its log: journalctl -u kubelet"
        return check.fail(reason, remedy=remedy), None
    return check.ok(f"{path} answers"), answer.pid


def _process(node: Node, pid: int | None) -> Iterator[Finding]:
    """Yield what was found of the process behind kubelet's socket."""
    if pid is None:
        return
    procfs = Procfs(node.host)
    if not pid or procfs.process(pid) is None:
        yield Check("kubelet-process").warn(
            "the process behind kubelet's socket cannot be seen from here. holdfast cannot tell "
            "which kubelet wrote the checkpoint, so it ends no process",
            remedy="set hostPID: true, and mount the host's /proc at host.proc",
        )
        return
    name = procfs.program(pid) or ""
    if name not in _KUBELETS:
        yield Check("kubelet-process").warn(
            f"pid {pid}, which answers on kubelet's socket, is {name or 'unnamed'}",
            remedy="make sure that it is a kubelet, not what is left of one",
        )
        return
    wanted = root_dir(procfs.arguments(pid)) / "pod-resources" / KUBELET_SOCKET
    ours = node.settings.kubelet.pod_resources_socket
    if str(wanted) != ours:
        yield Check("kubelet-process").warn(
            f"by its --root-dir, kubelet (pid {pid}) has its pod-resources socket at {wanted}, "
            f"not at {ours}",
            remedy=f"set kubelet.podResourcesSocket: {wanted}, unless it is mounted elsewhere",
        )
        return
    yield Check("kubelet-process").ok(f"it is {name}, pid {pid}")


def root_dir(arguments: tuple[str, ...]) -> Path:
    """Return kubelet's root folder by its command line.

    >>> root_dir(("kubelet", "--root-dir", "/data/kubelet"))
    PosixPath('/data/kubelet')
    """
    return Path(flag_of(arguments, "--root-dir", "-root-dir") or "/var/lib/kubelet")


def _pod_resources(node: Node, kubelet: int | None) -> Finding:
    path = node.path(node.settings.kubelet.pod_resources_socket)
    without = "holdfast cannot tell which pods kubelet counts, and reclaims nothing"
    told, pid = _socket(
        node,
        Check("pod-resources"),
        path,
        missing=without,
        start="set kubelet.podResourcesSocket: it is pod-resources/kubelet.sock below kubelet's "
        "--root-dir; if the daemon runs in a container, mount that folder",
        silent=without,
    )
    if kubelet and pid and pid != kubelet:
        return Check("pod-resources").warn(
            f"pid {pid} answers on {path}, but pid {kubelet} on kubelet's own socket",
            remedy="let kubelet.pluginDir and kubelet.podResourcesSocket name the same kubelet's",
        )
    return told
