"""What the doctor says of gVisor: its tables, shim and runsc, and what devices it lets through."""

import re
from collections.abc import Iterator, Mapping

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
    pci_functions,
)
from holdfast.doctor.programs import Ask, ask_for, find_program
from holdfast.host.files.kernelfile import text_or_empty
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
    match = _PRINTED.search(said)
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
    return sum(
        each.driver == _VFIO
        and generation_of(each.vendor, each.device, each.subsystem_device) is not None
        for each in pci_functions(node.host)
    )


def _number(node: Node, name: str) -> int | None:
    text = text_or_empty(node.host.proc / name)
    return int(text) if is_number(text) else None


def release_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether runsc is new enough to give a TPU back when a program ends."""
    if not facts.runsc:
        return
    if facts.release is None:
        yield Check("release").warn(
            f"cannot tell the release of {facts.runsc}: {facts.release_problem}",
            remedy=f"run `{facts.runsc} --version` on the node: before {LEAK_FIXED}, a second TPU "
            "program in a sandbox finds its device busy",
        )
    elif facts.release < LEAK_FIXED:
        yield Check("release").warn_or_fail(
            f"{facts.runsc} is {facts.release}: it keeps the VFIO device of a program that has "
            "ended, so the second TPU program of a sandbox gets EBUSY on /dev/vfio/N "
            "(gvisor#11545)",
            remedy=f"install {LEAK_FIXED} or later; until then, reclaim.leakedSandbox decides what "
            "holdfast does with such a sandbox",
            fails=facts.tpus > 0,
        )
    else:
        yield Check("release").ok(
            f"{facts.runsc} is {facts.release}, which has the fix of the VFIO leak ({LEAK_FIXED})"
        )


def tpu_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a TPU of this node."""
    if not facts.tpus:
        return
    for runtime in facts.runtimes:
        yield _tpuproxy(facts, runtime)
    if facts.vfio_devices:
        yield Check("vfio-devices").fail(
            "/dev/vfio/devices exists (the kernel has CONFIG_VFIO_DEVICE_CDEV): runsc takes it for "
            "an IOMMU group, and no TPU sandbox starts",
            remedy="move /dev/vfio/devices aside on the node, or use a runsc that starts with it; "
            "a kernel without CONFIG_VFIO_DEVICE_CDEV does not have that folder",
        )
    else:
        yield Check("vfio-devices").ok("there is no /dev/vfio/devices, which runsc cannot handle")


def _tpuproxy(facts: GvisorFacts, runtime: SandboxRuntime) -> Finding:
    name = runtime.table.name
    if runtime.config.on("tpuproxy"):
        return Check("tpuproxy").ok(f"tpuproxy is on for runtimes.{name} in {runtime.config.path}")
    if facts.release is not None and facts.release >= TPU_BY_ITSELF:
        return Check("tpuproxy").ok(f"{facts.release} turns tpuproxy on by itself")
    which = str(facts.release) if facts.release else "a runsc of unknown release"
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
        fails=facts.release is not None,
    )


def gpu_findings(facts: GvisorFacts, settings: Settings) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a GPU; nothing without a driver."""
    if facts.bare_nodes and facts.runtimes:
        yield Check("cdi-modes").warn(
            f"{', '.join(facts.bare_nodes[:_SHOWN])} has a device node without fileMode: runsc up "
            "to early 2026 panics when it makes that node (gvisor#12616, #13620)",
            remedy="have the writer of that file set fileMode, or run pods with these devices "
            "under another runtime class or a newer runsc",
        )
    if not facts.driver:
        return
    if settings.gpu.enabled and settings.gpu.api == "dra" and facts.runtimes:
        yield Check("dra-gpus").fail(
            f"gpu.api is dra, and runtimes.{facts.runtimes[0].table.name} starts gVisor: a sandbox "
            "sees every GPU of the node whatever its claim has, or does not start with NVIDIA's "
            "container runtime (gvisor#13621)",
            remedy="set gpu.api: device-plugin on nodes where pods with GPUs run under gVisor, or "
            "run no such pods there",
        )
    for runtime in facts.runtimes:
        yield _driver(facts, runtime)
        # If another program than runsc starts, the check low-level-runtime says so.
        if settings.gpu.enabled and (
            runtime.low_level is None or runtime.low_level.starts_any(RUNSC)
        ):
            yield _libraries(runtime, settings)


def _driver(facts: GvisorFacts, runtime: SandboxRuntime) -> Finding:
    """Return whether runsc knows the loaded driver; only the exact version works."""
    told = runtime.config.flags.get("nvproxy-driver-version", "")
    version = told or facts.driver
    if not facts.drivers:
        why = facts.drivers_problem or "there is no runsc to ask"
        return Check("nvproxy-driver").warn(
            f"cannot tell whether runsc knows NVIDIA's driver {version}: {why}",
            remedy=f"look for {version} in {_LISTED} on the node: with any other driver, no pod "
            "with a GPU starts",
        )
    if told and told != facts.driver:
        return Check("nvproxy-driver").fail(
            f"nvproxy-driver-version of runtimes.{runtime.table.name} is {told}, but the kernel "
            f"has {facts.driver}",
            remedy="remove nvproxy-driver-version from runsc.toml: runsc finds the version itself",
        )
    if version in facts.drivers:
        return Check("nvproxy-driver").ok(f"{facts.runsc} knows NVIDIA's driver {version}")
    known = some(facts.drivers[::-1], _SHOWN)
    reason = f"{facts.runsc} does not know NVIDIA's driver {version} (it knows {known})"
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


def gvisor_findings(node: Node, ask: Ask | None = None) -> Iterator[Finding]:
    """Yield what was found of gVisor on *node*."""
    ask = ask or ask_for(node)
    containerd = containerd_facts(node, ask)
    if containerd.elsewhere:
        yield Check("installed").warn(
            "cannot tell whether gVisor is on this node: containerd has other mounts",
            remedy=f"run `holdfast doctor --root /proc/{containerd.elsewhere}/root`",
        )
        return
    facts = gvisor_facts(node, ask, containerd)
    if not facts.installed:
        yield Check("installed").ok(f"gVisor is not on this node: no table, no {SHIM}, no {RUNSC}")
        return
    if containerd.present:
        yield from table_findings(facts)
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
    for runtime in facts.runtimes:
        yield from shim_config_findings(runtime)
        yield from low_level_findings(runtime)
    yield from program_findings(facts)
    yield from release_findings(facts)
    yield from tpu_findings(facts)
    yield mappings_finding(facts)
    yield from gpu_findings(facts, node.settings)


def table_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether there is a runtime table for gVisor, and whether each starts gVisor's shim."""
    if not facts.runtimes:
        yield Check("table").warn(
            f"{facts.runsc or facts.shim} is installed, and no runtime in "
            f"{facts.containerd_config} is of type {TYPE}: a pod that asks for it is refused, "
            "as no runtime for its handler is configured (gvisor#13781)",
            remedy=f'add a table runtimes.runsc with runtime_type = "{TYPE}" to '
            f"{facts.containerd_config}, {_RESTART}",
        )
    for runtime in facts.runtimes:
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


def shim_config_findings(runtime: SandboxRuntime) -> Iterator[Finding]:
    """Yield whether the shim can read the configuration that the table names."""
    table, config = runtime.table, runtime.config
    where = f"runtimes.{table.name} in {table.path}"
    if not config.path:
        yield Check("shim-config").ok(
            f"{where} has no ConfigPath, and no shim configuration lies where the shim looks: "
            "runsc runs with its defaults"
        )
        return
    if config.problem:
        yield Check("shim-config").fail(
            f"{where} names {config.path}, which cannot be read: {config.problem}; no pod starts "
            "with it",
            remedy=f"correct {config.path} or ConfigPath, {_RESTART}",
        )
    elif config.odd:
        yield Check("shim-config").fail(
            f"{config.path} has {', '.join(config.odd)} in runsc_config without quotes: the "
            "shim accepts only strings, and starts no pod",
            remedy=f'write {config.odd[0]} = "..." in quotes',
        )
    elif table.config_path and table.type_url != _OPTIONS:
        yield Check("shim-config").fail(
            f"{where} has ConfigPath, but TypeUrl {table.type_url or 'is missing'}: the shim "
            "refuses such options",
            remedy=f'set TypeUrl = "{_OPTIONS}" among the options there, {_RESTART}',
        )
    else:
        flags = ", ".join(f"{name}={value}" for name, value in sorted(config.flags.items()))
        yield Check("shim-config").ok(f"{config.path} sets {flags or 'no flags'} for runsc")


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


def program_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether containerd finds the shim, and the shim runsc."""
    yield _program(Check("shim"), SHIM, facts.shim, facts.folders)
    for runtime in facts.runtimes:
        config = runtime.config
        if config.binary_missing:
            yield Check("runsc").fail(
                f"{config.path} has binary_name {config.binary}, but there is no such program",
                remedy=f"install it, or correct binary_name in {config.path}",
            )
    yield _program(Check("runsc"), RUNSC, facts.runsc, facts.folders)


def _program(check: Check, name: str, found: str, folders: tuple[str, ...]) -> Finding:
    if found:
        return check.ok(f"{found} is there")
    return check.fail(
        f"there is no program {name} in {', '.join(folders)}, so no pod starts under gVisor",
        remedy="install it from gVisor's releases, next to containerd or in one of these folders",
    )


def mappings_finding(facts: GvisorFacts) -> Finding:
    """Return whether a sandbox can have as many mappings as it needs."""
    count = facts.max_map_count
    if count is None:
        return Check("max-map-count").warn(
            "cannot read /proc/sys/vm/max_map_count",
            remedy=f"run `sysctl vm.max_map_count` on the node: gVisor needs {_MAPPINGS} or more",
        )
    if count >= _MAPPINGS:
        return Check("max-map-count").ok(f"vm.max_map_count is {count}")
    if any(each.config.flags.get("host-settings") == "enforce" for each in facts.runtimes):
        return Check("max-map-count").ok(
            f"vm.max_map_count is {count}, and host-settings=enforce lets runsc raise it"
        )
    return Check("max-map-count").warn(
        f"vm.max_map_count is {count}: below {_MAPPINGS}, large programs in a sandbox die of "
        "random segmentation faults",
        remedy=f"set vm.max_map_count = {_MAPPINGS} or more in /etc/sysctl.d, or host-settings = "
        '"enforce" below [runsc_config]',
    )
