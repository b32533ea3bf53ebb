"""What the doctor says of gVisor: its tables, shim and runsc, and what devices it lets through."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from holdfast.doctor.cdi import nodes_without_mode
from holdfast.doctor.containerd.facts import (
    ContainerdFacts,
    RuntimeTable,
    UnreadableFile,
    containerd_facts,
    read_toml,
    table,
)
from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.nvidia.facts import (
    PROGRAM,
    LowLevel,
    loaded_version,
    low_level,
)
from holdfast.doctor.programs import find_program
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import is_file, is_folder, text_or_empty
from holdfast.host.pci.sysfs import Sysfs
from holdfast.model.text import is_number, some
from holdfast.model.tpu.generations import generation_of
from holdfast.settings import Settings

SHIM = "containerd-shim-runsc-v1"
RUNSC = "runsc"
TYPE = "io.containerd.runsc.v1"
_SHIM_CONFIGS = ("/run/containerd/runsc/config.toml", "/etc/containerd/runsc/config.toml")
"""Where the shim looks for a configuration if the table has no ConfigPath."""
_PRINTED = re.compile(r"\bversion (?:release-|0\.0~)([0-9]{8})\.([0-9]+)")
"""How gVisor's own builds and Debian's print it."""
_NAMES = ("runsc", "gvisor")
_VFIO = "vfio-pci"
_DRIVER = re.compile(r"[0-9]+(\.[0-9]+)+")
_PASSES = ("dev.gvisor.*", "dev.gvisor.internal.*", "dev.gvisor.internal.tpuproxy", "dev.*", "*")
"""Patterns of pod_annotations with which a pod can ask for tpuproxy itself."""
_LISTED = "`runsc nvproxy list-supported-drivers`"
_SHOWN = 8
_RESTART = "then restart containerd"
_OPTIONS = "io.containerd.runsc.v1.options"
_MAPPINGS = 1_000_000
"""What gVisor asks for. A report of large TPU programs had 4194304."""


class Release(Struct, frozen=True, kw_only=True, order=True):
    """A release of gVisor: its date as one number, and its count on that day."""

    date: int
    count: int = 0

    def __str__(self) -> str:
        return f"release-{self.date}.{self.count}"


LEAK_FIXED = Release(date=20250326)
"""The first release whose sandboxes close a program's VFIO device when it ends (gvisor#11545)."""
TPU_BY_ITSELF = Release(date=20260608)
"""The first release that turns tpuproxy on for a container with a TPU."""


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


class Runsc(Struct, frozen=True, kw_only=True):
    """The runsc of a node, and what it says of itself."""

    path: str = ""
    """Empty if there is none."""
    release: Release | None = None
    release_problem: str = ""
    drivers: tuple[str, ...] = ()
    """The versions of NVIDIA's driver that it lists."""
    drivers_problem: str = ""


def is_gvisor(runtime: RuntimeTable) -> bool:
    """Tell whether a table is for gVisor, by its type, its program or its name."""
    texts = (runtime.runtime_type, runtime.binary.rpartition("/")[2], runtime.name.lower())
    return any(name in text for text in texts for name in _NAMES)


def shim_config(node: Node, runtime: RuntimeTable, folders: tuple[str, ...]) -> ShimConfig:
    """Return the configuration of a table's shim."""
    path = runtime.config_path or next(
        (path for path in _SHIM_CONFIGS if is_file(node.path(path))), ""
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


def _sandbox_runtimes(node: Node, containerd: ContainerdFacts) -> Iterator[SandboxRuntime]:
    for runtime in containerd.cri.runtimes:
        if is_gvisor(runtime):
            config = shim_config(node, runtime, containerd.folders)
            low = low_level(node, config.binary, containerd.folders)
            yield SandboxRuntime(table=runtime, config=config, low_level=low)


def _runsc(node: Node, runtimes: Sequence[SandboxRuntime], folders: tuple[str, ...]) -> Runsc:
    """Return the runsc that the shim starts, or that a wrapper finds."""
    told = (runtime.config.binary for runtime in runtimes)
    path = find_program(node, next((each for each in told if RUNSC in each), RUNSC), folders)
    if not path:
        return Runsc(drivers_problem="there is no runsc to ask")
    release, release_problem = _release(node, path)
    drivers, drivers_problem = _drivers(node, path) if loaded_version(node.host) else ((), "")
    return Runsc(
        path=path,
        release=release,
        release_problem=release_problem,
        drivers=drivers,
        drivers_problem=drivers_problem,
    )


def release_of(said: str) -> Release | None:
    """Return the release in the output of ``runsc --version``; None if it names none."""
    match = _PRINTED.search(said)
    return None if match is None else Release(date=int(match[1]), count=int(match[2]))


def _release(node: Node, runsc: str) -> tuple[Release | None, str]:
    answer = node.ask((runsc, "--version"))
    found = release_of(answer.text)
    if found is not None:
        return found, ""
    said = answer.text.strip().splitlines()[:1]
    return None, answer.problem or f"{runsc} --version says {said[0] if said else 'nothing'}"


def _drivers(node: Node, runsc: str) -> tuple[tuple[str, ...], str]:
    command = (runsc, "nvproxy", "list-supported-drivers")
    answer = node.ask(command)
    found = tuple(line for line in answer.text.split() if _DRIVER.fullmatch(line))
    if found or answer.problem:
        return found, answer.problem
    return (), f"{' '.join(command)} lists none"


def _tpus(node: Node) -> int:
    """Return how many TPU functions are on vfio-pci; none where the PCI bus cannot be read."""
    with suppress(HostError):  # the area `vfio` says so
        return sum(
            each.driver == _VFIO
            and generation_of(each.vendor, each.device, each.subsystem_device) is not None
            for each in Sysfs(node.host).pci_functions()
        )
    return 0


def release_finding(runsc: Runsc, *, tpus: int) -> Finding:
    """Return whether runsc is new enough to give a TPU back when a program ends."""
    if runsc.release is None:
        return Check("release").warn(
            f"cannot tell the release of {runsc.path}: {runsc.release_problem}",
            remedy=f"run `{runsc.path} --version` on the node: before {LEAK_FIXED}, a second TPU "
            "program in a sandbox finds its device busy",
        )
    if runsc.release < LEAK_FIXED:
        return Check("release").warn_or_fail(
            f"{runsc.path} is {runsc.release}: it keeps the VFIO device of a program that has "
            "ended, so the second TPU program of a sandbox gets EBUSY on /dev/vfio/N "
            "(gvisor#11545)",
            remedy=f"install {LEAK_FIXED} or later; until then, reclaim.leakedSandbox decides what "
            "holdfast does with such a sandbox",
            fails=tpus > 0,
        )
    return Check("release").ok(
        f"{runsc.path} is {runsc.release}, which has the fix of the VFIO leak ({LEAK_FIXED})"
    )


def tpu_findings(
    runtimes: Sequence[SandboxRuntime], release: Release | None, *, vfio_devices: bool
) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a TPU of this node.

    *vfio_devices*: it has the folder /dev/vfio/devices.
    """
    for runtime in runtimes:
        yield _tpuproxy(runtime, release)
    if vfio_devices:
        yield Check("vfio-devices").fail(
            "/dev/vfio/devices exists (the kernel has CONFIG_VFIO_DEVICE_CDEV): runsc takes it for "
            "an IOMMU group, and no TPU sandbox starts",
            remedy="move /dev/vfio/devices aside on the node, or use a runsc that starts with it; "
            "a kernel without CONFIG_VFIO_DEVICE_CDEV does not have that folder",
        )
    else:
        yield Check("vfio-devices").ok("there is no /dev/vfio/devices, which runsc cannot handle")


def _tpuproxy(runtime: SandboxRuntime, release: Release | None) -> Finding:
    name = runtime.table.name
    if runtime.config.on("tpuproxy"):
        return Check("tpuproxy").ok(f"tpuproxy is on for runtimes.{name} in {runtime.config.path}")
    if release is not None and release >= TPU_BY_ITSELF:
        return Check("tpuproxy").ok(f"{release} turns tpuproxy on by itself")
    which = str(release) if release else "a runsc of unknown release"
    needs = f"{which} needs tpuproxy for TPUs (automatic since {TPU_BY_ITSELF})"
    remedy = (
        f'set tpuproxy = "true" below [runsc_config] in the runsc.toml of runtimes.{name}, or '
        f"install {TPU_BY_ITSELF} or later"
    )
    if any(pattern in _PASSES for pattern in runtime.table.annotations):
        return Check("tpuproxy").warn(
            f"{needs}, and runtimes.{name} leaves it to each pod's annotation "
            "dev.gvisor.internal.tpuproxy",
            remedy=remedy,
        )
    return Check("tpuproxy").warn_or_fail(
        f"{needs}, but neither runsc.toml nor pod_annotations of runtimes.{name} turns it on: "
        "programs in the sandbox see no TPU",
        remedy=remedy,
        fails=release is not None,
    )


def _of_claims(runtimes: Sequence[SandboxRuntime], settings: Settings) -> Iterator[Finding]:
    """Yield that claims keep no GPUs apart in a sandbox, where GPUs come by claims."""
    if settings.gpu.enabled and settings.gpu.api == "dra" and runtimes:
        yield Check("dra-gpus").fail(
            f"gpu.api is dra, and runtimes.{runtimes[0].table.name} starts gVisor: a sandbox "
            "sees every GPU of the node whatever its claim has, or does not start with NVIDIA's "
            "container runtime (gvisor#13621)",
            remedy="set gpu.api: device-plugin on nodes where pods with GPUs run under gVisor, or "
            "run no such pods there",
        )


def _bare_nodes(files: Sequence[str]) -> Iterator[Finding]:
    if files:
        yield Check("cdi-modes").warn(
            f"{', '.join(files[:_SHOWN])} has a device node without fileMode: runsc up "
            "to early 2026 panics when it makes that node (gvisor#12616, #13620)",
            remedy="have the writer of that file set fileMode, or run pods with these devices "
            "under another runtime class or a newer runsc",
        )


def gpu_findings(
    runtimes: Sequence[SandboxRuntime], runsc: Runsc, driver: str, settings: Settings
) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a GPU, for which the *driver* of that version is."""
    for runtime in runtimes:
        yield _driver(runtime, runsc, driver)
        # If another program than runsc starts, the check low-level-runtime says so.
        if settings.gpu.enabled and (
            runtime.low_level is None or runtime.low_level.starts_any(RUNSC)
        ):
            yield _libraries(runtime, settings)


def _driver(runtime: SandboxRuntime, runsc: Runsc, driver: str) -> Finding:
    """Return whether runsc knows the loaded driver; only the exact version works."""
    told = runtime.config.flags.get("nvproxy-driver-version", "")
    version = told or driver
    if not runsc.drivers:
        return Check("nvproxy-driver").warn(
            f"cannot tell whether runsc knows NVIDIA's driver {version}: {runsc.drivers_problem}",
            remedy=f"look for {version} in {_LISTED} on the node: with any other driver, no pod "
            "with a GPU starts",
        )
    if told and told != driver:
        return Check("nvproxy-driver").fail(
            f"nvproxy-driver-version of runtimes.{runtime.table.name} is {told}, but the kernel "
            f"has {driver}",
            remedy="remove nvproxy-driver-version from runsc.toml: runsc finds the version itself",
        )
    if version in runsc.drivers:
        return Check("nvproxy-driver").ok(f"{runsc.path} knows NVIDIA's driver {version}")
    known = some(runsc.drivers[::-1], _SHOWN)
    reason = f"{runsc.path} does not know NVIDIA's driver {version} (it knows {known})"
    remedy = f"install a runsc that lists {version}, or one of the drivers of {_LISTED}"
    if runtime.config.on("nvproxy-allow-unsupported-driver"):
        return Check("nvproxy-driver").warn(
            f"{reason}; nvproxy-allow-unsupported-driver lets it try some unsupported ones",
            remedy=remedy,
        )
    return Check("nvproxy-driver").fail(
        f'{reason}: a pod with a GPU never starts ("waiting for sandbox to start: EOF"), and only '
        'runsc\'s debug log says "unsupported Nvidia driver version" (gvisor#12773)',
        remedy=remedy,
    )


def _libraries(runtime: SandboxRuntime, settings: Settings) -> Finding:
    """Return whether something brings the driver's libraries into a sandbox."""
    strategies = settings.gpu.device_list_strategy
    binary = runtime.config.binary
    if any(strategy.startswith("cdi") for strategy in strategies):
        return Check("libraries").ok(
            "GPUs are handed over by CDI, which brings the driver's libraries"
        )
    if PROGRAM in binary:
        return Check("libraries").ok(f"{binary} brings the driver's libraries into the sandbox")
    return Check("libraries").warn(
        f"gpu.deviceListStrategy is {', '.join(strategies)}, and runtimes.{runtime.table.name} "
        f"runs runsc without {PROGRAM}: a pod gets device nodes, but neither libcuda nor "
        "nvidia-smi (gvisor#13060)",
        remedy=f'use a CDI strategy, or set binary_name = "/usr/bin/{PROGRAM}" in its runsc.toml, '
        "or put the driver's exact libraries into the image",
    )


def gvisor_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of gVisor on *node*."""
    containerd = containerd_facts(node)
    if containerd.elsewhere:
        yield Check("installed").warn(
            "cannot tell whether gVisor is on this node: containerd has other mounts",
            remedy=f"run `holdfast doctor --root /proc/{containerd.elsewhere}/root`",
        )
        return
    runtimes = tuple(_sandbox_runtimes(node, containerd))
    runsc = _runsc(node, runtimes, containerd.folders)
    shim = find_program(node, SHIM, containerd.folders)
    if not (runtimes or runsc.path or shim):
        yield Check("installed").ok(f"gVisor is not on this node: no table, no {SHIM}, no {RUNSC}")
        return
    if containerd.present:
        yield from table_findings(runtimes, runsc.path or shim, containerd.path)
    else:
        if containerd.other:
            where = f"{containerd.other_name} runs this node's pods ({containerd.other})"
        else:
            where = "no containerd is seen"
        yield Check("table").warn(
            f"cannot tell whether a runtime starts gVisor: {where}, and only containerd's "
            "configuration is read",
            remedy=f"check whether a handler of that runtime starts {SHIM} or {RUNSC}",
        )
    for runtime in runtimes:
        yield shim_config_finding(runtime)
        yield from low_level_findings(runtime)
    yield from program_findings(runtimes, shim, runsc.path, containerd.folders)
    tpus = _tpus(node)
    if runsc.path:
        yield release_finding(runsc, tpus=tpus)
    if tpus:
        vfio_devices = is_folder(node.host.dev / "vfio/devices")
        yield from tpu_findings(runtimes, runsc.release, vfio_devices=vfio_devices)
    yield mappings_finding(text_or_empty(node.host.proc / "sys/vm/max_map_count"), runtimes)
    if runtimes:
        yield from _bare_nodes(nodes_without_mode(node, containerd.cri.cdi_spec_dirs))
    if driver := loaded_version(node.host):
        yield from _of_claims(runtimes, node.settings)
        yield from gpu_findings(runtimes, runsc, driver, node.settings)


def table_findings(
    runtimes: Sequence[SandboxRuntime], program: str, configuration: str
) -> Iterator[Finding]:
    """Yield whether there is a runtime table for gVisor, and whether each starts gVisor's shim.

    *program* is a part of gVisor that is on the node, *configuration* containerd's first file.
    """
    if not runtimes:
        yield Check("table").warn(
            f"{program} is installed, and no runtime in "
            f"{configuration} is of type {TYPE}: a pod that asks for it is refused, "
            "as no runtime for its handler is configured (gvisor#13781)",
            remedy=f'add a table runtimes.runsc with runtime_type = "{TYPE}" to '
            f"{configuration}, {_RESTART}",
        )
    for runtime in runtimes:
        table = runtime.table
        where = f"runtimes.{table.name} in {table.path}"
        if table.runtime_type == TYPE or table.runtime_type.endswith(SHIM):
            yield Check("table").ok(
                f"{where} has runtime_type {table.runtime_type}; its RuntimeClass has handler: "
                f"{table.name}"
            )
            continue
        binary = f" and BinaryName {table.binary}" if table.binary else ""
        yield Check("table").fail(
            f"{where} has runtime_type {table.runtime_type or 'of the default'}{binary}: "
            "containers start, then hang or never exit (gvisor#10997; nvidia-ctk writes this)",
            remedy=f'set runtime_type = "{TYPE}" and ConfigPath = "/etc/containerd/runsc.toml"; '
            f'for GPUs also binary_name = "/usr/bin/{PROGRAM}" in that file and runtimes = '
            f'["{RUNSC}"] in its config.toml; {_RESTART}',
        )


def shim_config_finding(runtime: SandboxRuntime) -> Finding:
    """Return whether the shim can read the configuration that the table names."""
    table, config = runtime.table, runtime.config
    where = f"runtimes.{table.name} in {table.path}"
    if not config.path:
        return Check("shim-config").ok(
            f"{where} has no ConfigPath, and no shim configuration lies where the shim looks: "
            "runsc runs with its defaults"
        )
    if config.problem:
        return Check("shim-config").fail(
            f"{where} names {config.path}, which cannot be read: {config.problem}; no pod starts "
            "with it",
            remedy=f"correct {config.path} or ConfigPath, {_RESTART}",
        )
    if config.odd:
        return Check("shim-config").fail(
            f"{config.path} has {', '.join(config.odd)} in runsc_config without quotes: the "
            "shim accepts only strings, and starts no pod",
            remedy=f'write {config.odd[0]} = "..." in quotes',
        )
    if table.config_path and table.type_url != _OPTIONS:
        return Check("shim-config").fail(
            f"{where} has ConfigPath, but TypeUrl {table.type_url or 'is missing'}: the shim "
            "refuses such options",
            remedy=f'set TypeUrl = "{_OPTIONS}" among the options there, {_RESTART}',
        )
    flags = ", ".join(f"{name}={value}" for name, value in sorted(config.flags.items()))
    return Check("shim-config").ok(f"{config.path} sets {flags or 'no flags'} for runsc")


def low_level_findings(runtime: SandboxRuntime) -> Iterator[Finding]:
    """Yield whether nvidia-container-runtime, if the shim starts it, starts runsc."""
    found, config = runtime.low_level, runtime.config
    if found is None:
        return
    if found.problem:
        yield Check("low-level-runtime").fail(
            f"cannot read {found.config}: {found.problem}; {config.binary} does not start with it",
            remedy=f"correct {found.config}",
        )
    elif found.starts_any(RUNSC):
        yield Check("low-level-runtime").ok(f"{config.binary} starts {found.starts}")
    else:
        listed = ", ".join(found.runtimes)
        said = f"{found.config} has runtimes {listed}" if found.config else f"by default {listed}"
        yield Check("low-level-runtime").fail(
            f"{config.path} has binary_name {config.binary}, which starts "
            f"{found.starts or 'nothing'} and not runsc ({said}): pods of "
            f"runtimes.{runtime.table.name} do not start, or run without gVisor's sandbox",
            remedy=f'set runtimes = ["{RUNSC}"] below [{PROGRAM}] in its config.toml; if pods of '
            "other runtimes use that file, give this one its own file through XDG_CONFIG_HOME",
        )


def program_findings(
    runtimes: Sequence[SandboxRuntime], shim: str, runsc: str, folders: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield whether containerd finds the shim, and the shim runsc."""
    yield _program(Check("shim"), SHIM, shim, folders)
    for runtime in runtimes:
        config = runtime.config
        if config.binary_missing:
            yield Check("runsc").fail(
                f"{config.path} has binary_name {config.binary}, but there is no such program",
                remedy=f"install it, or correct binary_name in {config.path}",
            )
    yield _program(Check("runsc"), RUNSC, runsc, folders)


def _program(check: Check, name: str, found: str, folders: tuple[str, ...]) -> Finding:
    if found:
        return check.ok(f"{found} is there")
    return check.fail(
        f"there is no program {name} in {', '.join(folders)}, so no pod starts under gVisor",
        remedy="install it from gVisor's releases, next to containerd or in one of these folders",
    )


def mappings_finding(count: str, runtimes: Sequence[SandboxRuntime]) -> Finding:
    """Return whether a sandbox can have as many mappings as it needs, by the kernel's word."""
    if not is_number(count):
        return Check("max-map-count").warn(
            "cannot read /proc/sys/vm/max_map_count",
            remedy=f"run `sysctl vm.max_map_count` on the node: gVisor needs {_MAPPINGS} or more",
        )
    if int(count) >= _MAPPINGS:
        return Check("max-map-count").ok(f"vm.max_map_count is {count}")
    if any(each.config.flags.get("host-settings") == "enforce" for each in runtimes):
        return Check("max-map-count").ok(
            f"vm.max_map_count is {count}, and host-settings=enforce lets runsc raise it"
        )
    return Check("max-map-count").warn(
        f"vm.max_map_count is {count}: below {_MAPPINGS}, large programs in a sandbox die of "
        "random segmentation faults",
        remedy=f"set vm.max_map_count = {_MAPPINGS} or more in /etc/sysctl.d, or host-settings = "
        '"enforce" below [runsc_config]',
    )
