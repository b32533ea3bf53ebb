"""Checks gVisor on the node: its runtime table, its shim and runsc."""

from collections.abc import Iterator

from holdfast.doctor.containerd.facts import containerd_facts
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.gvisor.devices import gpu_findings, release_findings, tpu_findings
from holdfast.doctor.gvisor.facts import (
    RUNSC,
    SHIM,
    TYPE,
    GvisorFacts,
    SandboxRuntime,
    gvisor_facts,
)
from holdfast.doctor.node import Node
from holdfast.doctor.nvidia.runtime import PROGRAM
from holdfast.doctor.programs import Ask, ask_for

_INSTALLED = Check("gvisor", "installed")
_TABLE = Check("gvisor", "table")
_SHIM_CONFIG = Check("gvisor", "shim-config")
_LOW_LEVEL_RUNTIME = Check("gvisor", "low-level-runtime")
_SHIM = Check("gvisor", "shim")
_RUNSC = Check("gvisor", "runsc")
_MAX_MAP_COUNT = Check("gvisor", "max-map-count")
_RESTART = "then restart containerd"
_OPTIONS = "io.containerd.runsc.v1.options"
_MAPPINGS = 1_000_000
"""What gVisor asks for. A report of large TPU programs had 4194304."""


def gvisor_findings(node: Node, ask: Ask | None = None) -> Iterator[Finding]:
    """Yield what was found of gVisor on *node*."""
    ask = ask or ask_for(node)
    containerd = containerd_facts(node, ask)
    if containerd.elsewhere:
        yield _INSTALLED.warn(
            "cannot tell whether gVisor is on this node: containerd has other mounts",
            remedy=f"run `holdfast doctor --root /proc/{containerd.elsewhere}/root`",
        )
        return
    facts = gvisor_facts(node, ask, containerd)
    if not facts.installed:
        yield _INSTALLED.ok(f"gVisor is not on this node: no table, no {SHIM}, no {RUNSC}")
        return
    if containerd.present:
        yield from table_findings(facts)
    else:
        if containerd.other:
            where = f"{containerd.other_name} runs this node's pods ({containerd.other})"
        else:
            where = "no containerd is seen"
        yield _TABLE.warn(
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
        yield _TABLE.warn(
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
            yield _TABLE.ok(
                f"{where} has runtime_type {table.runtime_type}; its RuntimeClass has handler: "
                f"{table.name}"
            )
            continue
        binary = f" and BinaryName {table.binary}" if table.binary else ""
        yield _TABLE.fail(
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
    if config is None:
        yield _SHIM_CONFIG.ok(
            f"{where} has no ConfigPath, and no shim configuration lies where the shim looks: "
            "runsc runs with its defaults"
        )
        return
    if config.problem:
        yield _SHIM_CONFIG.fail(
            f"{where} names {config.path}, which cannot be read: {config.problem}; no pod starts "
            "with it",
            remedy=f"correct {config.path} or ConfigPath, {_RESTART}",
        )
    elif config.odd:
        yield _SHIM_CONFIG.fail(
            f"{config.path} has {', '.join(config.odd)} in runsc_config without quotes: the "
            "shim accepts only strings, and starts no pod",
            remedy=f'write {config.odd[0]} = "..." in quotes',
        )
    elif table.config_path and table.type_url != _OPTIONS:
        yield _SHIM_CONFIG.fail(
            f"{where} has ConfigPath, but TypeUrl {table.type_url or 'is missing'}: the shim "
            "refuses such options",
            remedy=f'set TypeUrl = "{_OPTIONS}" among the options there, {_RESTART}',
        )
    else:
        flags = ", ".join(f"{name}={value}" for name, value in sorted(config.flags.items()))
        yield _SHIM_CONFIG.ok(f"{config.path} sets {flags or 'no flags'} for runsc")


def low_level_findings(runtime: SandboxRuntime) -> Iterator[Finding]:
    """Yield whether nvidia-container-runtime, if the shim starts it, starts runsc."""
    found, config = runtime.low_level, runtime.config
    if found is None or config is None:
        return
    if found.problem:
        yield _LOW_LEVEL_RUNTIME.fail(
            f"cannot read {found.config}: {found.problem}; {config.binary} does not start with it",
            remedy=f"correct {found.config}",
        )
    elif found.starts_any(RUNSC):
        yield _LOW_LEVEL_RUNTIME.ok(f"{config.binary} starts {found.starts}")
    else:
        listed = ", ".join(found.runtimes)
        said = f"{found.config} has runtimes {listed}" if found.config else f"by default {listed}"
        yield _LOW_LEVEL_RUNTIME.fail(
            f"{config.path} has binary_name {config.binary}, which starts "
            f"{found.starts or 'nothing'} and not runsc ({said}): pods of "
            f"runtimes.{runtime.table.name} do not start, or run without gVisor's sandbox",
            remedy=f'set runtimes = ["{RUNSC}"] below [{PROGRAM}] in its config.toml; if pods of '
            "other runtimes use that file, give this one its own file through XDG_CONFIG_HOME",
        )


def program_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether containerd finds the shim, and the shim runsc."""
    places = ", ".join(facts.folders)
    remedy = "install it from gVisor's releases, next to containerd or in one of these folders"
    if facts.shim:
        yield _SHIM.ok(f"{facts.shim} is there")
    else:
        reason = f"there is no program {SHIM} in {places}, so no pod starts under gVisor"
        yield _SHIM.fail(reason, remedy=remedy)
    for runtime in facts.runtimes:
        config = runtime.config
        if config is not None and config.binary_missing:
            yield _RUNSC.fail(
                f"{config.path} has binary_name {config.binary}, but there is no such program",
                remedy=f"install it, or correct binary_name in {config.path}",
            )
    if facts.runsc:
        yield _RUNSC.ok(f"{facts.runsc} is there")
    else:
        reason = f"there is no program {RUNSC} in {places}, so no pod starts under gVisor"
        yield _RUNSC.fail(reason, remedy=remedy)


def mappings_finding(facts: GvisorFacts) -> Finding:
    """Return whether a sandbox can have as many mappings as it needs."""
    count = facts.max_map_count
    if count is None:
        return _MAX_MAP_COUNT.warn(
            "cannot read /proc/sys/vm/max_map_count",
            remedy=f"run `sysctl vm.max_map_count` on the node: gVisor needs {_MAPPINGS} or more",
        )
    if count >= _MAPPINGS:
        return _MAX_MAP_COUNT.ok(f"vm.max_map_count is {count}")
    if any(
        runtime.config is not None and runtime.config.flags.get("host-settings") == "enforce"
        for runtime in facts.runtimes
    ):
        return _MAX_MAP_COUNT.ok(
            f"vm.max_map_count is {count}, and host-settings=enforce lets runsc raise it"
        )
    return _MAX_MAP_COUNT.warn(
        f"vm.max_map_count is {count}: below {_MAPPINGS}, large programs in a sandbox die of "
        "random segmentation faults",
        remedy=f"set vm.max_map_count = {_MAPPINGS} or more in /etc/sysctl.d, or host-settings = "
        '"enforce" below [runsc_config]',
    )
