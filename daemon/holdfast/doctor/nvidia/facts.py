"""What a node shows of NVIDIA's driver: its version, its library, its nodes and its daemons."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names, read_bytes, read_text
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.nvidia.roots import DeviceRoot, DriverFacts, device_root

OPERATOR = "/run/nvidia/driver"
"""Where GPU Operator's driver container has its root."""
OPERATOR_DEV = f"{OPERATOR}/dev"
"""Where it has its nodes."""
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")
_LIBRARY_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)$")
_CACHED = re.compile(rb"\0(/[^\0]*/libnvidia-ml\.so\.1)\0")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_VENDOR = 0x10DE
_DISPLAY = 0x03
_BRIDGE = 0x0680
"""The PCI class of NVSwitches: other bridges."""
_UVM = ("nvidia-uvm", "nvidia-uvm-tools")
_CAPS = "nvidia-caps"
_SOCKETS = {
    "nvidia-fabricmanager": "nv-fabricmanager",
    "nvidia-persistenced": "nvidia-persistenced",
}
"""The folders below /run of the daemons' sockets, and the daemons."""
_COMM = 15
"""As much of a program's name as the kernel keeps."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """A device node of the driver's; `wanted` is the major number that the kernel gave its driver.

    None of `major`: there is no such device. None of `wanted`: the kernel has no such driver.
    """

    path: str
    major: int | None
    wanted: int | None
    needed: bool = True
    unified: bool = False
    """Whether it is that of unified memory, which CUDA opens first."""


class NvidiaFacts(Struct, frozen=True, kw_only=True):
    """All that findings about NVIDIA's driver are made of."""

    driver: DriverFacts
    root: DeviceRoot
    version: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Each library found, as the node calls it, with the version in its name; "" without one."""
    nodes: tuple[NodeFacts, ...] = ()
    """In the chosen root: of each GPU, of unified memory, and of MIG's capabilities."""
    gpus: Mapping[str, str] = field(default_factory=dict)
    """The PCI functions that are GPUs of NVIDIA, each with its kernel driver; "" without one."""
    switches: tuple[str, ...] = ()
    """The PCI functions that are NVSwitches."""
    daemons: Mapping[str, str] = field(default_factory=dict)
    """What shows of each of the driver's daemons: a socket or a process; "" where nothing does."""


def nvidia_facts(node: Node) -> NvidiaFacts:
    """Look at *node*; nothing of it is needed, and nothing raises."""
    files = _files(node)
    driver = files.look()
    root = device_root(driver)
    gpus, switches = _functions(node.host)
    return NvidiaFacts(
        driver=driver,
        root=root,
        version=loaded_version(node.host),
        libraries=dict(_libraries(node, driver)),
        nodes=tuple(_nodes(node, root.root.folder, root.root.host)) if root.root else (),
        gpus=gpus,
        switches=switches,
        daemons={name: _daemon(node, name, program) for name, program in _SOCKETS.items()},
    )


def loaded_version(host: HostRoot) -> str:
    """Return the version of the driver that the kernel has loaded; "" without one."""
    try:
        said = read_text(host.proc / "driver/nvidia/version") or ""
        match = _VERSION.search(said)
        return match[1] if match else read_text(host.sys / "module/nvidia/version") or ""
    except HostError:
        return ""


def of_node(node: Node, path: str | Path) -> str:
    """Return *path*, which may lie below the root of a copy, as the node calls it."""
    return str(path) if node.live else "/" + str(path).removeprefix(str(node.root)).lstrip("/")


def _files(node: Node) -> NvidiaFiles:
    gpu = node.settings.gpu
    return NvidiaFiles(
        node.host,
        driver_root=str(node.path(gpu.driver_root_seen)) if gpu.driver_root_seen else "",
        dev_root=str(node.path(gpu.dev_root)) if gpu.dev_root else "",
    )


def _libraries(node: Node, driver: DriverFacts) -> Iterator[tuple[str, str]]:
    """Yield the libraries in the order in which the daemon tries them, the loader's own last."""
    own = NvidiaFiles(node.host, driver_root=str(node.root)).look().libraries
    for path in (*driver.libraries, *own):
        match = _LIBRARY_VERSION.search(path.name)
        yield of_node(node, path), match[1] if match else ""
    try:
        cached = _CACHED.findall(read_bytes(node.path("/etc/ld.so.cache")) or b"")
    except HostError:
        return
    for known in map(os.fsdecode, cached):
        file = node.path(known).resolve() if node.live else node.path(known)
        match = _LIBRARY_VERSION.search(file.name)
        if file.is_file():
            yield known, match[1] if match else ""


def _nodes(node: Node, folder: Path, host: str) -> Iterator[NodeFacts]:
    procfs = Procfs(node.host)
    control = _major(folder / "nvidiactl")
    host = of_node(node, host) if host.startswith(str(node.root)) else host
    for minor in _minors(node.host):
        name = f"nvidia{minor}"
        yield NodeFacts(path=f"{host}/{name}", major=_major(folder / name), wanted=control)
    uvm = procfs.char_major(_UVM[0])
    for name in _UVM:
        yield NodeFacts(
            path=f"{host}/{name}",
            major=_major(folder / name),
            wanted=uvm,
            needed=name == _UVM[0],
            unified=name == _UVM[0],
        )
    caps = procfs.char_major(_CAPS)
    for name in _names(folder / _CAPS):
        found = _major(folder / _CAPS / name)
        yield NodeFacts(path=f"{host}/{_CAPS}/{name}", major=found, wanted=caps)


def _minors(host: HostRoot) -> Iterator[int]:
    """Yield the minor number of each GPU that the driver has."""
    folder = host.proc / "driver/nvidia/gpus"
    for address in _names(folder):
        try:
            match = _MINOR.search(read_text(folder / address / "information") or "")
        except HostError:
            continue
        if match is not None:
            yield int(match[1])


def _functions(host: HostRoot) -> tuple[Mapping[str, str], tuple[str, ...]]:
    try:
        found = [each for each in Sysfs(host).pci_functions() if each.vendor == _VENDOR]
    except HostError:
        return {}, ()
    gpus: dict[str, str] = {
        each.address: each.driver or "" for each in found if each.class_code >> 16 == _DISPLAY
    }
    return gpus, tuple(each.address for each in found if each.class_code >> 8 == _BRIDGE)


def _daemon(node: Node, name: str, program: str) -> str:
    for root in ("", OPERATOR):
        path = f"{root}/run/{name}/socket"
        try:
            if stat.S_ISSOCK(node.path(path).stat().st_mode):
                return path
        except OSError:
            continue
    procfs = Procfs(node.host)
    try:
        for pid in procfs.pids():
            facts = procfs.process(pid)
            if facts is not None and facts.comm == program[:_COMM]:
                return f"process {pid}"
    except HostError:
        pass
    return ""


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return list_names(folder)
    except HostError:
        return ()


def _major(path: Path) -> int | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return os.major(found.st_rdev) if stat.S_ISCHR(found.st_mode) else None
