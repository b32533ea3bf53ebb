"""Judges gVisor on the node: its table, shim and runsc, and what TPUs and GPUs need of them."""

from collections.abc import Iterator

from holdfast.doctor.area import Area
from holdfast.doctor.containerd.facts import containerd_facts
from holdfast.doctor.finding import Finding
from holdfast.doctor.gvisor.facts import (
    RUNSC,
    SHIM,
    TYPE,
    GvisorFacts,
    SandboxRuntime,
    gvisor_facts,
)
from holdfast.doctor.gvisor.gpu import gpu_findings, low_level_findings
from holdfast.doctor.gvisor.tpu import release_findings, tpu_findings
from holdfast.doctor.node import Node
from holdfast.doctor.programs import Ask, ask_for

_AREA = Area("gvisor")
_RESTART = "then restart containerd"
_OPTIONS = "io.containerd.runsc.v1.options"
_MAPPINGS = 1_000_000
"""What gVisor asks for; a report of large TPU programs had 4194304."""


def gvisor_findings(node: Node, ask: Ask | None = None) -> Iterator[Finding]:
    """Yield what is right and wrong about gVisor on *node*."""
    ask = ask or ask_for(node)
    containerd = containerd_facts(node, ask)
    if containerd.elsewhere:
        yield _AREA.warn(
            check="installed",
            reason="cannot tell whether gVisor is on this node: containerd has other mounts",
            remedy=f"run `holdfast doctor --root /proc/{containerd.elsewhere}/root`",
        )
        return
    facts = gvisor_facts(node, ask, containerd)
    if not facts.installed:
        yield _AREA.ok(
            check="installed",
            reason=f"gVisor is not on this node: no table, no {SHIM}, no {RUNSC}",
        )
        return
    if containerd.present:
        yield from table_findings(facts)
    else:
        if containerd.other:
            where = f"{containerd.other_name} runs this node's pods ({containerd.other})"
        else:
            where = "no containerd is seen"
        yield _AREA.warn(
            check="table",
            reason=f"cannot tell whether a runtime starts gVisor: {where}, and only containerd's "
            "tables are read",
            remedy=f"look whether a handler of that runtime starts {SHIM} or {RUNSC}",
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
    """Yield whether each table starts gVisor's own shim, and whether there is one at all."""
    if not facts.runtimes:
        yield _AREA.warn(
            check="table",
            reason=(
                f"{facts.runsc or facts.shim} is installed, and no runtime in "
                f"{facts.containerd_config} is of type {TYPE}: a pod that asks for it is refused, "
                "as no runtime for its handler is configured (gvisor#13781)"
            ),
            remedy=(
                f'add a table runtimes.runsc with runtime_type = "{TYPE}" to '
                f"{facts.containerd_config}, {_RESTART}"
            ),
        )
    for runtime in facts.runtimes:
        table = runtime.table
        where = f"runtimes.{table.name} in {table.path}"
        if table.runtime_type == TYPE or table.runtime_type.endswith(SHIM):
            yield _AREA.ok(
                check="table",
                reason=(
                    f"{where} has runtime_type {table.runtime_type}; its RuntimeClass has handler: "
                    f"{table.name}"
                ),
            )
            continue
        binary = f" and BinaryName {table.binary}" if table.binary else ""
        yield _AREA.fail(
            check="table",
            reason=(
                f"{where} has runtime_type {table.runtime_type or 'of the default'}{binary}: "
                "containers start, then hang or never exit (gvisor#10997; nvidia-ctk writes this)"
            ),
            remedy=(
                f'set runtime_type = "{TYPE}" and ConfigPath = "/etc/containerd/runsc.toml" there, '
                'and for GPUs binary_name = "/usr/bin/nvidia-container-runtime" in that file and '
                f'runtimes = ["{RUNSC}"] in its config.toml, {_RESTART}'
            ),
        )


def shim_config_findings(runtime: SandboxRuntime) -> Iterator[Finding]:
    """Yield whether the shim can read the configuration that the table points at."""
    table, config = runtime.table, runtime.config
    where = f"runtimes.{table.name} in {table.path}"
    if config is None:
        yield _AREA.ok(
            check="shim-config",
            reason=(
                f"{where} has no ConfigPath, and no shim configuration lies where the shim looks: "
                "runsc runs with its defaults"
            ),
        )
        return
    if config.problem:
        yield _AREA.fail(
            check="shim-config",
            reason=(
                f"{where} points at {config.path}, and it cannot be read: {config.problem}; no pod "
                "starts with it"
            ),
            remedy=f"mend {config.path}, or correct ConfigPath, {_RESTART}",
        )
    elif config.odd:
        yield _AREA.fail(
            check="shim-config",
            reason=(
                f"{config.path} has {', '.join(config.odd)} in runsc_config without quotes: the "
                "shim takes texts alone and starts no pod"
            ),
            remedy=f'write {config.odd[0]} = "..." in quotes',
        )
    elif table.config_path and table.type_url != _OPTIONS:
        yield _AREA.fail(
            check="shim-config",
            reason=(
                f"{where} has ConfigPath, and TypeUrl {table.type_url or 'is missing'}: the shim "
                "refuses such options"
            ),
            remedy=f'set TypeUrl = "{_OPTIONS}" among the options there, {_RESTART}',
        )
    else:
        flags = ", ".join(f"{name}={value}" for name, value in sorted(config.flags.items()))
        yield _AREA.ok(
            check="shim-config", reason=f"{config.path} sets {flags or 'no flags'} for runsc"
        )


def program_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether containerd finds the shim, and the shim runsc."""
    places = ", ".join(facts.folders)
    remedy = "install it from gVisor's releases next to containerd, or in one of these folders"
    if facts.shim:
        yield _AREA.ok(check="shim", reason=f"{facts.shim} is there")
    else:
        reason = f"there is no program {SHIM} in {places}, so no pod of gVisor's starts"
        yield _AREA.fail(check="shim", reason=reason, remedy=remedy)
    for runtime in facts.runtimes:
        config = runtime.config
        if config is not None and config.binary_missing:
            yield _AREA.fail(
                check="runsc",
                reason=(
                    f"{config.path} has binary_name {config.binary}, and there is no such program"
                ),
                remedy=f"install it, or correct binary_name in {config.path}",
            )
    if facts.runsc:
        yield _AREA.ok(check="runsc", reason=f"{facts.runsc} is there")
    else:
        reason = f"there is no program {RUNSC} in {places}, so no pod of gVisor's starts"
        yield _AREA.fail(check="runsc", reason=reason, remedy=remedy)


def mappings_finding(facts: GvisorFacts) -> Finding:
    """Return whether a sandbox may have as many mappings as it needs."""
    count = facts.max_map_count
    if count is None:
        return _AREA.warn(
            check="max-map-count",
            reason="cannot read /proc/sys/vm/max_map_count",
            remedy=(
                f"look at `sysctl vm.max_map_count` on the node: gVisor needs {_MAPPINGS} or more"
            ),
        )
    if count >= _MAPPINGS:
        return _AREA.ok(check="max-map-count", reason=f"vm.max_map_count is {count}")
    if any(
        runtime.config is not None and runtime.config.flags.get("host-settings") == "enforce"
        for runtime in facts.runtimes
    ):
        return _AREA.ok(
            check="max-map-count",
            reason=f"vm.max_map_count is {count}, and host-settings=enforce lets runsc raise it",
        )
    return _AREA.warn(
        check="max-map-count",
        reason=(
            f"vm.max_map_count is {count}: large programs in a sandbox die of random segmentation "
            f"faults below {_MAPPINGS}"
        ),
        remedy=(
            f"set vm.max_map_count = {_MAPPINGS} or more in /etc/sysctl.d, or host-settings = "
            '"enforce" below [runsc_config]'
        ),
    )
