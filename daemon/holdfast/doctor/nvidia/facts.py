"""What a node has of NVIDIA: the driver, its device nodes, and the low-level runtime."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.doctor.containerd.facts import UnreadableFile, read_toml, table
from holdfast.doctor.finding import Node
from holdfast.doctor.programs import ask_socket, find_program, running
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    device_major,
    field_of,
    is_file,
    names_or_empty,
    read_bytes,
    stat_or_none,
    text_or_empty,
)
from holdfast.host.nvidia.driver import MOUNTED, NvidiaFiles
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.nvidia.roots import DriverFacts
from holdfast.model.text import is_number

PROGRAM = "nvidia-container-runtime"
TOOLKIT = "/usr/local/nvidia/toolkit"
"""Where GPU Operator's toolkit container installs its programs."""
CONFIGS = (
    f"{TOOLKIT}/.config/{PROGRAM}/config.toml",
    f"/etc/{PROGRAM}/config.toml",
)
_NAMES = frozenset({PROGRAM, *(f"{PROGRAM}.{mode}" for mode in ("cdi", "legacy", "experimental"))})
_DEFAULT = ("docker-runc", "runc", "crun")
OPERATOR = "/run/nvidia/driver"
"""Where GPU Operator's driver container has its root."""
OPERATOR_DEV = f"{OPERATOR}/dev"
"""Where that container has its nodes."""
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")
_LIBRARY_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)$")
_CACHED = re.compile(rb"\0(/[^\0]*/libnvidia-ml\.so\.1)\0")
_VENDOR = 0x10DE
_DISPLAY = 0x03
_BRIDGE = 0x0680
"""The PCI class of NVSwitches: other bridges."""
_UVM = ("nvidia-uvm", "nvidia-uvm-tools")
_CAPS = "nvidia-caps"
_COMM = 15
"""How many letters of a program's name the kernel keeps."""


class LowLevel(Struct, frozen=True, kw_only=True):
    """The runtime to which one nvidia-container-runtime hands containers on."""

    config: str = ""
    """Its configuration; empty if there is none, and it uses its defaults."""
    problem: str = ""
    """Why the configuration cannot be read."""
    runtimes: tuple[str, ...] = _DEFAULT
    starts: str = ""
    """The first of `runtimes` on the node, which is the one it starts; empty if none is there."""

    def starts_any(self, name: str) -> bool:
        """Tell whether it starts a program whose name begins with *name*."""
        return self.starts.rpartition("/")[2].startswith(name)


def low_level(node: Node, program: str, folders: tuple[str, ...]) -> LowLevel | None:
    """Return what *program* starts; None if it is not nvidia-container-runtime.

    *folders* are where it looks for programs.
    """
    folder, _, name = program.rpartition("/")
    if name not in _NAMES:
        return None
    # GPU Operator's is a script that sets where its configuration and programs are.
    operators = folder == TOOLKIT
    config = CONFIGS[0] if operators else CONFIGS[1]
    if not is_file(node.path(config)):
        return LowLevel(starts=_first(node, _DEFAULT, folders))
    read = read_toml(node, config)
    if isinstance(read, UnreadableFile):
        return LowLevel(config=config, problem=read.reason)
    told = table(read.content, PROGRAM).get("runtimes")
    runtimes = tuple(map(str, told)) if isinstance(told, list) and told else _DEFAULT
    places = (TOOLKIT, *folders) if operators else folders
    return LowLevel(config=config, runtimes=runtimes, starts=_first(node, runtimes, places))


def _first(node: Node, names: tuple[str, ...], folders: tuple[str, ...]) -> str:
    return next(filter(None, (find_program(node, name, folders) for name in names)), "")


class NvidiaDeviceNode(Struct, frozen=True, kw_only=True):
    """A device node of the driver.

    `major` is None if there is no such device. `wanted` is the major number that the kernel gave
    the driver, None if the kernel has no such driver.
    """

    path: str
    major: int | None
    wanted: int | None
    needed: bool = True
    unified: bool = False
    """Whether it is the node of unified memory, which CUDA opens first."""


def loaded_version(host: HostRoot) -> str:
    """Return the version of the loaded driver; empty if none is."""
    match = _VERSION.search(text_or_empty(host.proc / "driver/nvidia/version"))
    return match[1] if match else text_or_empty(host.sys / "module/nvidia/version")


def of_node(node: Node, path: str | Path) -> str:
    """Return *path*, which may be below the root of a copy, as the node calls it."""
    return "/" + str(path).removeprefix(str(node.root)).lstrip("/")


def _below(node: Node, path: str) -> str:
    return str(node.path(path)) if path else ""


def driver_files(node: Node) -> NvidiaFiles:
    """Return what reads the driver of *node*, with the folders that the settings name."""
    gpu = node.settings.gpu
    return NvidiaFiles(
        node.host,
        driver_root=_below(node, gpu.driver_root),
        driver_root_on_host=_below(node, gpu.driver_root_on_host),
        dev_root=_below(node, gpu.dev_root),
        mounted=node.path(str(MOUNTED)),
    )


def libraries(node: Node, driver: DriverFacts) -> Iterator[tuple[str, str]]:
    """Yield the libraries in the order in which the daemon tries them, the loader's last.

    Each by its path on the node, with the version in its name, empty without one.
    """
    own = NvidiaFiles(node.host, driver_root=str(node.root)).facts().libraries
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
        if is_file(file):
            yield known, match[1] if match else ""


def device_nodes(node: Node, folder: Path, host: str) -> Iterator[NvidiaDeviceNode]:
    """Yield the nodes of each GPU, of unified memory and of MIG's capabilities in *folder*.

    That is *host* as the host calls it.
    """
    procfs = Procfs(node.host)
    control = device_major(folder / "nvidiactl")
    host = of_node(node, host)
    told = (field_of(text, "Device Minor") for _, text in driver_tells(node.host))
    for minor in filter(is_number, told):
        major = device_major(folder / f"nvidia{minor}")
        yield NvidiaDeviceNode(path=f"{host}/nvidia{minor}", major=major, wanted=control)
    uvm = procfs.char_major(_UVM[0])
    for name in _UVM:
        yield NvidiaDeviceNode(
            path=f"{host}/{name}",
            major=device_major(folder / name),
            wanted=uvm,
            needed=name == _UVM[0],
            unified=name == _UVM[0],
        )
    caps = procfs.char_major(_CAPS)
    for name in names_or_empty(folder / _CAPS):
        found = device_major(folder / _CAPS / name)
        yield NvidiaDeviceNode(path=f"{host}/{_CAPS}/{name}", major=found, wanted=caps)


def driver_tells(host: HostRoot) -> Iterator[tuple[str, str]]:
    """Yield each GPU of the driver by its PCI address, in order, with what the driver says."""
    folder = host.proc / "driver/nvidia/gpus"
    for address in sorted(names_or_empty(folder)):
        yield address, text_or_empty(folder / address / "information")


def gpus_and_switches(host: HostRoot) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the PCI addresses of NVIDIA's GPUs, and those of NVSwitches.

    The GPUs have their kernel driver, empty without one. Raise HostError where that is not seen.
    """
    found = [each for each in Sysfs(host).pci_functions() if each.vendor == _VENDOR]
    gpus: dict[str, str] = {
        each.address: each.driver or "" for each in found if each.class_code >> 16 == _DISPLAY
    }
    return gpus, tuple(each.address for each in found if each.class_code >> 8 == _BRIDGE)


def daemon_of(node: Node, name: str, program: str) -> str:
    """Return the socket or process of one of the driver's daemons, empty if it has neither.

    Its socket is in the folder *name* below /run. On a live node somebody must listen on it.
    """
    for root in ("", OPERATOR):
        path = f"{root}/run/{name}/socket"
        place = node.path(path)
        seen = stat_or_none(place)
        is_socket = seen is not None and stat.S_ISSOCK(seen.st_mode)
        if is_socket and (not node.live or ask_socket(place).listens):
            return path
    found = next(running(node.host, {program[:_COMM]}), None)
    return "" if found is None else f"process {found.process.pid}"
