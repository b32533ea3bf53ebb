"""Judges what a GPU needs in a sandbox of gVisor: a driver that runsc knows, and its libraries."""

from collections.abc import Iterator

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.gvisor.facts import RUNSC, GvisorFacts, SandboxRuntime
from holdfast.doctor.nvidia.runtime import PROGRAM
from holdfast.settings import Settings

_AREA = Area("gvisor")
_LISTED = "`runsc nvproxy list-supported-drivers`"
_SHOWN = 8


def gpu_findings(facts: GvisorFacts, settings: Settings) -> Iterator[Finding]:
    """Yield what is right and wrong for GPUs in gVisor's pods; nothing without a driver."""
    if facts.bare_nodes and facts.runtimes:
        yield _AREA.warn(
            check="cdi-modes",
            reason=(
                f"{', '.join(facts.bare_nodes[:_SHOWN])} has a device node without fileMode: runsc "
                "up to early 2026 panics when it makes that node (gvisor#12616, #13620)"
            ),
            remedy=(
                "have the writer of that file set fileMode, or keep pods that get these devices "
                "on another runtime class or a newer runsc"
            ),
        )
    if not facts.driver:
        return
    for runtime in facts.runtimes:
        yield _driver(facts, runtime)
        # One that starts another program is told of already.
        if settings.gpu.enabled and (
            runtime.low_level is None or runtime.low_level.starts_any(RUNSC)
        ):
            yield _libraries(runtime, settings)


def low_level_findings(runtime: SandboxRuntime) -> Iterator[Finding]:
    """Yield whether nvidia-container-runtime, where the shim starts it, starts runsc."""
    found, config = runtime.low_level, runtime.config
    if found is None or config is None:
        return
    if found.problem:
        yield _AREA.fail(
            check="low-level-runtime",
            reason=f"cannot read {found.config}: {found.problem}; {config.binary} does not start "
            "with it",
            remedy=f"correct {found.config}",
        )
    elif found.starts_any(RUNSC):
        yield _AREA.ok(check="low-level-runtime", reason=f"{config.binary} starts {found.starts}")
    else:
        listed = ", ".join(found.runtimes)
        said = f"{found.config} has runtimes {listed}" if found.config else f"by default {listed}"
        yield _AREA.fail(
            check="low-level-runtime",
            reason=(
                f"{config.path} has binary_name {config.binary}, which starts "
                f"{found.starts or 'nothing'} and not runsc ({said}): pods of "
                f"runtimes.{runtime.table.name} do not start, or run without gVisor's sandbox"
            ),
            remedy=(
                f'set runtimes = ["{RUNSC}"] below [{PROGRAM}] in its config.toml; where pods of '
                "other runtimes go by that file, give this one a file of its own through "
                "XDG_CONFIG_HOME"
            ),
        )


def _driver(facts: GvisorFacts, runtime: SandboxRuntime) -> Finding:
    """Return whether runsc knows the loaded driver: only an exact version will do."""
    flags = runtime.config.flags if runtime.config is not None else {}
    told = flags.get("nvproxy-driver-version", "")
    version = told or facts.driver
    if not facts.drivers:
        why = facts.drivers_problem or "there is no runsc to ask"
        return _AREA.warn(
            check="nvproxy-driver",
            reason=f"cannot tell whether runsc knows NVIDIA's driver {version}: {why}",
            remedy=(
                f"look for {version} in {_LISTED} on the node: a pod with a GPU does not start on "
                "any other"
            ),
        )
    if told and told != facts.driver:
        return _AREA.fail(
            check="nvproxy-driver",
            reason=(
                f"nvproxy-driver-version of runtimes.{runtime.table.name} is {told}, and the "
                f"kernel has {facts.driver}"
            ),
            remedy="take nvproxy-driver-version out of runsc.toml: runsc finds the version itself",
        )
    if version in facts.drivers:
        return _AREA.ok(
            check="nvproxy-driver", reason=f"{facts.runsc} knows NVIDIA's driver {version}"
        )
    reason = (
        f"{facts.runsc} does not know NVIDIA's driver {version} (it knows {_some(facts.drivers)})"
    )
    remedy = f"install a runsc that lists {version}, or one of the drivers of {_LISTED}"
    if runtime.on("nvproxy-allow-unsupported-driver"):
        return _AREA.warn(
            check="nvproxy-driver",
            reason=(
                f"{reason}; nvproxy-allow-unsupported-driver lets it try some that it does not "
                "support"
            ),
            remedy=remedy,
        )
    return _AREA.fail(
        check="nvproxy-driver",
        reason=(
            f'{reason}: a pod with a GPU never starts ("waiting for sandbox to start: EOF"), and '
            'only runsc\'s debug log says "unsupported Nvidia driver version" (gvisor#12773)'
        ),
        remedy=remedy,
    )


def _libraries(runtime: SandboxRuntime, settings: Settings) -> Finding:
    """Return whether anything brings the driver's libraries into a sandbox, besides nodes."""
    strategies = settings.gpu.device_list_strategy
    binary = runtime.config.binary if runtime.config is not None else ""
    if any(strategy.startswith("cdi") for strategy in strategies):
        return _AREA.ok(
            check="libraries",
            reason=(
                "GPUs are handed over by CDI, which brings the driver's libraries into the sandbox"
            ),
        )
    if PROGRAM in binary:
        return _AREA.ok(
            check="libraries", reason=f"{binary} brings the driver's libraries into the sandbox"
        )
    return _AREA.warn(
        check="libraries",
        reason=(
            f"gpu.deviceListStrategy is {', '.join(strategies)}, and runtimes.{runtime.table.name} "
            f"runs runsc without {PROGRAM}: a pod gets nodes at most, and neither libcuda nor "
            "nvidia-smi (gvisor#13060)"
        ),
        remedy=(
            f'use a CDI strategy, or set binary_name = "/usr/bin/{PROGRAM}" in its runsc.toml, or '
            "have the driver's exact libraries in the image"
        ),
    )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[-_SHOWN:])}{more}"
