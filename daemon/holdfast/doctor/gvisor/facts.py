"""What a node shows of gVisor: its runtime tables, its shim and runsc."""

import re
from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.doctor.cdi import nodes_without_mode
from holdfast.doctor.containerd.facts import (
    ContainerdFacts,
    RuntimeTable,
    UnreadableFile,
    read_toml,
    table,
)
from holdfast.doctor.finding import Node
from holdfast.doctor.nvidia.facts import LowLevel, loaded_version, low_level
from holdfast.doctor.programs import Ask, find_program
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import text_or_empty
from holdfast.host.pci.sysfs import Sysfs
from holdfast.model.tpu.generations import generation_of

SHIM = "containerd-shim-runsc-v1"
RUNSC = "runsc"
TYPE = "io.containerd.runsc.v1"
_SHIM_CONFIGS = ("/run/containerd/runsc/config.toml", "/etc/containerd/runsc/config.toml")
"""Where the shim looks for a configuration if the table has no ConfigPath."""
_RELEASE = re.compile(r"\bversion (?:release-|0\.0~)([0-9]{8})\.([0-9]+)")
"""How gVisor's own builds and Debian's print it."""
_NAMES = ("runsc", "gvisor")
_VFIO = "vfio-pci"
_DRIVER = re.compile(r"[0-9]+(\.[0-9]+)+")


class Release(Struct, frozen=True, kw_only=True, order=True):
    """A release of gVisor: its date as one number, and its count on that day."""

    date: int
    count: int = 0

    def __str__(self) -> str:
        return f"release-{self.date}.{self.count}"


class ShimConfig(Struct, frozen=True, kw_only=True):
    """What a table's runsc.toml says; `problem` is why it cannot be read."""

    path: str = ""
    """Empty if there is none."""
    problem: str = ""
    binary: str = ""
    """binary_name: what the shim runs in place of runsc."""
    binary_missing: bool = False
    """Whether the node has no such program."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """runsc's flags, as strings."""
    odd: tuple[str, ...] = ()
    """Flags that are not strings: the shim cannot read a file with one of them."""

    def on(self, flag: str) -> bool:
        """Tell whether a flag is set to true."""
        return self.flags.get(flag, "").lower() in {"true", "1", "t"}


class SandboxRuntime(Struct, frozen=True, kw_only=True):
    """A runtime table for gVisor, with the configuration of its shim."""

    table: RuntimeTable
    config: ShimConfig = ShimConfig()
    low_level: LowLevel | None = None
    """What it starts through nvidia-container-runtime; None if it does not start that."""


class GvisorFacts(Struct, frozen=True, kw_only=True):
    """The facts behind the findings about gVisor."""

    runtimes: tuple[SandboxRuntime, ...] = ()
    containerd_config: str = ""
    folders: tuple[str, ...] = ()
    """Where containerd looks for the shim, and the shim for runsc."""
    shim: str = ""
    runsc: str = ""
    release: Release | None = None
    release_problem: str = ""
    max_map_count: int | None = None
    tpus: int = 0
    """How many TPU functions are bound to vfio-pci."""
    vfio_devices: bool = False
    driver: str = ""
    """The version of the loaded NVIDIA driver; empty if none is."""
    drivers: tuple[str, ...] = ()
    """The versions that runsc lists."""
    drivers_problem: str = ""
    bare_nodes: tuple[str, ...] = ()
    """CDI spec files with a device node that has no fileMode."""

    @property
    def installed(self) -> bool:
        """Tell whether the node has any part of gVisor."""
        return bool(self.runtimes or self.shim or self.runsc)


def gvisor_facts(node: Node, ask: Ask, containerd: ContainerdFacts) -> GvisorFacts:
    """Look at *node*, whatever of it is there. Never raises."""
    runtimes = tuple(
        _sandbox_runtime(node, each, containerd.folders)
        for each in containerd.cri.runtimes
        if is_gvisor(each)
    )
    runsc = _runsc(node, runtimes, containerd.folders)
    shim = find_program(node, SHIM, containerd.folders)
    if not (runtimes or runsc or shim):
        return GvisorFacts()
    release, release_problem = _release(ask, runsc)
    driver = loaded_version(node.host)
    drivers, drivers_problem = _drivers(ask, runsc) if driver and runsc else ((), "")
    return GvisorFacts(
        runtimes=runtimes,
        containerd_config=containerd.path,
        folders=containerd.folders,
        shim=shim,
        runsc=runsc,
        release=release,
        release_problem=release_problem,
        max_map_count=_number(node, "sys/vm/max_map_count"),
        tpus=_tpus(node),
        vfio_devices=(node.host.dev / "vfio/devices").is_dir(),
        driver=driver,
        drivers=drivers,
        drivers_problem=drivers_problem,
        bare_nodes=nodes_without_mode(node, containerd.cri.cdi_spec_dirs),
    )


def is_gvisor(runtime: RuntimeTable) -> bool:
    """Tell whether a table is for gVisor, by its type, its program or its name."""
    texts = (runtime.runtime_type, runtime.binary.rpartition("/")[2], runtime.name.lower())
    return any(name in text for text in texts for name in _NAMES)


def shim_config(node: Node, runtime: RuntimeTable, folders: tuple[str, ...]) -> ShimConfig:
    """Return the configuration of a table's shim."""
    path = runtime.config_path or next(
        (path for path in _SHIM_CONFIGS if node.path(path).is_file()), ""
    )
    if not path:
        return ShimConfig()
    read = read_toml(node, path)
    if isinstance(read, UnreadableFile):
        return ShimConfig(path=path, problem=read.reason)
    flags = table(read.content, "runsc_config")
    told = read.content.get("binary_name")
    binary = told if isinstance(told, str) else ""
    return ShimConfig(
        path=path,
        binary=binary,
        binary_missing=bool(binary) and not find_program(node, binary, folders),
        flags={name: value for name, value in flags.items() if isinstance(value, str)},
        odd=tuple(name for name, value in flags.items() if not isinstance(value, str)),
    )


def _sandbox_runtime(node: Node, runtime: RuntimeTable, folders: tuple[str, ...]) -> SandboxRuntime:
    config = shim_config(node, runtime, folders)
    low = low_level(node, config.binary, folders)
    return SandboxRuntime(table=runtime, config=config, low_level=low)


def _runsc(node: Node, runtimes: tuple[SandboxRuntime, ...], folders: tuple[str, ...]) -> str:
    """Return the runsc that the shim starts, or that a wrapper finds; empty if there is none."""
    told = (runtime.config.binary for runtime in runtimes)
    return find_program(node, next((each for each in told if RUNSC in each), RUNSC), folders)


def release_of(said: str) -> Release | None:
    """Return the release in the output of ``runsc --version``; None if it names none."""
    match = _RELEASE.search(said)
    return None if match is None else Release(date=int(match[1]), count=int(match[2]))


def _release(ask: Ask, runsc: str) -> tuple[Release | None, str]:
    if not runsc:
        return None, ""
    answer = ask((runsc, "--version"))
    found = release_of(answer.text)
    if found is not None:
        return found, ""
    said = answer.text.strip().splitlines()[:1]
    return None, answer.problem or f"{runsc} --version says {said[0] if said else 'nothing'}"


def _drivers(ask: Ask, runsc: str) -> tuple[tuple[str, ...], str]:
    command = (runsc, "nvproxy", "list-supported-drivers")
    answer = ask(command)
    found = tuple(line for line in answer.text.split() if _DRIVER.fullmatch(line))
    if found or answer.problem:
        return found, answer.problem
    return (), f"{' '.join(command)} lists none"


def _tpus(node: Node) -> int:
    """Return how many TPU functions are on vfio-pci; none where the PCI bus cannot be read."""
    try:
        functions = Sysfs(node.host).pci_functions()
    except HostError:
        return 0
    return sum(
        each.driver == _VFIO
        and generation_of(each.vendor, each.device, each.subsystem_device) is not None
        for each in functions
    )


def _number(node: Node, name: str) -> int | None:
    text = text_or_empty(node.host.proc / name)
    return int(text) if text.isascii() and text.isdecimal() else None
