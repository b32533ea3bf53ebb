"""Checks what GPUs and TPUs need in a gVisor sandbox: the release and flags of runsc, drivers."""

from collections.abc import Iterator

from holdfast.doctor.finding import Check, Finding, some
from holdfast.doctor.gvisor.facts import RUNSC, GvisorFacts, Release, SandboxRuntime
from holdfast.doctor.nvidia.runtime import PROGRAM
from holdfast.settings import Settings

_RELEASE = Check("gvisor", "release")
_VFIO_DEVICES = Check("gvisor", "vfio-devices")
_TPUPROXY = Check("gvisor", "tpuproxy")
_CDI_MODES = Check("gvisor", "cdi-modes")
_NVPROXY_DRIVER = Check("gvisor", "nvproxy-driver")
_LIBRARIES = Check("gvisor", "libraries")
_DRA_GPUS = Check("gvisor", "dra-gpus")
LEAK_FIXED = Release(date=20250326)
"""The first release whose sandboxes close a program's VFIO device when it ends (gvisor#11545)."""
TPU_BY_ITSELF = Release(date=20260608)
"""The first release that turns tpuproxy on for a container with a TPU."""
_PASSES = ("dev.gvisor.*", "dev.gvisor.internal.*", "dev.gvisor.internal.tpuproxy", "dev.*", "*")
"""Patterns of pod_annotations with which a pod can ask for tpuproxy itself."""
_LISTED = "`runsc nvproxy list-supported-drivers`"
_SHOWN = 8


def release_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether runsc is new enough to give a TPU back when a program ends."""
    if not facts.runsc:
        return
    if facts.release is None:
        yield _RELEASE.warn(
            f"cannot tell the release of {facts.runsc}: {facts.release_problem}",
            remedy=f"run `{facts.runsc} --version` on the node: before {LEAK_FIXED}, a second TPU "
            "program in a sandbox finds its device busy",
        )
    elif facts.release < LEAK_FIXED:
        yield _RELEASE.warn_or_fail(
            f"{facts.runsc} is {facts.release}: it keeps the VFIO device of a program that has "
            "ended, so the second TPU program of a sandbox gets EBUSY on /dev/vfio/N "
            "(gvisor#11545)",
            remedy=f"install {LEAK_FIXED} or later; until then, reclaim.leakedSandbox decides what "
            "holdfast does with such a sandbox",
            fails=facts.tpus > 0,
        )
    else:
        yield _RELEASE.ok(
            f"{facts.runsc} is {facts.release}, which has the fix of the VFIO leak ({LEAK_FIXED})"
        )


def tpu_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a TPU of this node."""
    if not facts.tpus:
        return
    for runtime in facts.runtimes:
        yield _tpuproxy(facts, runtime)
    if facts.vfio_devices:
        yield _VFIO_DEVICES.fail(
            "/dev/vfio/devices exists (the kernel has CONFIG_VFIO_DEVICE_CDEV): runsc takes it for "
            "an IOMMU group, and no TPU sandbox starts",
            remedy="move /dev/vfio/devices aside on the node, or use a runsc that starts with it; "
            "a kernel without CONFIG_VFIO_DEVICE_CDEV does not have that folder",
        )
    else:
        yield _VFIO_DEVICES.ok("there is no /dev/vfio/devices, which runsc cannot handle")


def _tpuproxy(facts: GvisorFacts, runtime: SandboxRuntime) -> Finding:
    name = runtime.table.name
    if runtime.on("tpuproxy"):
        path = runtime.config.path if runtime.config else ""
        return _TPUPROXY.ok(f"tpuproxy is on for runtimes.{name} in {path}")
    if facts.release is not None and facts.release >= TPU_BY_ITSELF:
        return _TPUPROXY.ok(f"{facts.release} turns tpuproxy on by itself")
    which = str(facts.release) if facts.release else "a runsc of unknown release"
    needs = f"{which} needs tpuproxy for TPUs (automatic since {TPU_BY_ITSELF})"
    remedy = (
        f'set tpuproxy = "true" below [runsc_config] in the runsc.toml of runtimes.{name}, or '
        f"install {TPU_BY_ITSELF} or later"
    )
    if any(pattern in _PASSES for pattern in runtime.table.annotations):
        return _TPUPROXY.warn(
            f"{needs}, and runtimes.{name} leaves it to each pod's annotation "
            "dev.gvisor.internal.tpuproxy",
            remedy=remedy,
        )
    return _TPUPROXY.warn_or_fail(
        f"{needs}, but neither runsc.toml nor pod_annotations of runtimes.{name} turns it on: "
        "programs in the sandbox see no TPU",
        remedy=remedy,
        fails=facts.release is not None,
    )


def gpu_findings(facts: GvisorFacts, settings: Settings) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a GPU; nothing without a driver."""
    if facts.bare_nodes and facts.runtimes:
        yield _CDI_MODES.warn(
            f"{', '.join(facts.bare_nodes[:_SHOWN])} has a device node without fileMode: runsc up "
            "to early 2026 panics when it makes that node (gvisor#12616, #13620)",
            remedy="have the writer of that file set fileMode, or run pods with these devices "
            "under another runtime class or a newer runsc",
        )
    if not facts.driver:
        return
    if settings.gpu.enabled and settings.gpu.api == "dra" and facts.runtimes:
        yield _DRA_GPUS.fail(
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
    told = "" if runtime.config is None else runtime.config.flags.get("nvproxy-driver-version", "")
    version = told or facts.driver
    if not facts.drivers:
        why = facts.drivers_problem or "there is no runsc to ask"
        return _NVPROXY_DRIVER.warn(
            f"cannot tell whether runsc knows NVIDIA's driver {version}: {why}",
            remedy=f"look for {version} in {_LISTED} on the node: with any other driver, no pod "
            "with a GPU starts",
        )
    if told and told != facts.driver:
        return _NVPROXY_DRIVER.fail(
            f"nvproxy-driver-version of runtimes.{runtime.table.name} is {told}, but the kernel "
            f"has {facts.driver}",
            remedy="remove nvproxy-driver-version from runsc.toml: runsc finds the version itself",
        )
    if version in facts.drivers:
        return _NVPROXY_DRIVER.ok(f"{facts.runsc} knows NVIDIA's driver {version}")
    known = some(facts.drivers[::-1], _SHOWN)
    reason = f"{facts.runsc} does not know NVIDIA's driver {version} (it knows {known})"
    remedy = f"install a runsc that lists {version}, or one of the drivers of {_LISTED}"
    if runtime.on("nvproxy-allow-unsupported-driver"):
        return _NVPROXY_DRIVER.warn(
            f"{reason}; nvproxy-allow-unsupported-driver lets it try some unsupported ones",
            remedy=remedy,
        )
    return _NVPROXY_DRIVER.fail(
        f'{reason}: a pod with a GPU never starts ("waiting for sandbox to start: EOF"), and only '
        'runsc\'s debug log says "unsupported Nvidia driver version" (gvisor#12773)',
        remedy=remedy,
    )


def _libraries(runtime: SandboxRuntime, settings: Settings) -> Finding:
    """Return whether something brings the driver's libraries into a sandbox."""
    strategies = settings.gpu.device_list_strategy
    binary = runtime.config.binary if runtime.config is not None else ""
    if any(strategy.startswith("cdi") for strategy in strategies):
        return _LIBRARIES.ok("GPUs are handed over by CDI, which brings the driver's libraries")
    if PROGRAM in binary:
        return _LIBRARIES.ok(f"{binary} brings the driver's libraries into the sandbox")
    return _LIBRARIES.warn(
        f"gpu.deviceListStrategy is {', '.join(strategies)}, and runtimes.{runtime.table.name} "
        f"runs runsc without {PROGRAM}: a pod gets device nodes, but neither libcuda nor "
        "nvidia-smi (gvisor#13060)",
        remedy=f'use a CDI strategy, or set binary_name = "/usr/bin/{PROGRAM}" in its runsc.toml, '
        "or put the driver's exact libraries into the image",
    )
