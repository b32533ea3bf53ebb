"""Judges what a TPU needs in a sandbox of gVisor: a runsc that lets it go, and tpuproxy."""

from collections.abc import Iterator

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.gvisor.facts import GvisorFacts, Release, SandboxRuntime

_AREA = Area("gvisor")
LEAK_FIXED = Release(date=20250326)
"""The first whose sandboxes close a program's VFIO device when it ends (gvisor#11545)."""
TPU_BY_ITSELF = Release(date=20260608)
"""The first that turns tpuproxy on where a container is given a TPU."""
_PASSES = ("dev.gvisor.*", "dev.gvisor.internal.*", "dev.gvisor.internal.tpuproxy", "dev.*", "*")
"""Patterns of pod_annotations with which a pod can ask for tpuproxy itself."""


def release_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether runsc is new enough to give a TPU back when a program ends."""
    if not facts.runsc:
        return
    if facts.release is None:
        yield _AREA.warn(
            check="release",
            reason=f"cannot tell which release {facts.runsc} is: {facts.release_problem}",
            remedy=(
                f"ask `{facts.runsc} --version` on the node: below {LEAK_FIXED} a second TPU "
                "program in a sandbox finds its device busy"
            ),
        )
    elif facts.release < LEAK_FIXED:
        found = _AREA.fail if facts.tpus else _AREA.warn
        yield found(
            check="release",
            reason=(
                f"{facts.runsc} is {facts.release}: it keeps the VFIO device of a program that has "
                "ended, so the second TPU program of a sandbox gets EBUSY on /dev/vfio/N "
                "(gvisor#11545)"
            ),
            remedy=(
                f"install {LEAK_FIXED} or later; until then reclaim.leakedSandbox says what "
                "holdfast does about such a sandbox"
            ),
        )
    else:
        yield _AREA.ok(
            check="release",
            reason=(
                f"{facts.runsc} is {facts.release}, which has the fix of the VFIO leak "
                f"({LEAK_FIXED})"
            ),
        )


def tpu_findings(facts: GvisorFacts) -> Iterator[Finding]:
    """Yield whether a pod in a sandbox can use a TPU of this node."""
    if not facts.tpus:
        return
    for runtime in facts.runtimes:
        yield _tpuproxy(facts, runtime)
    if facts.vfio_devices:
        yield _AREA.fail(
            check="vfio-devices",
            reason=(
                "/dev/vfio/devices exists (the kernel has CONFIG_VFIO_DEVICE_CDEV): runsc takes "
                "it for an IOMMU group, and no TPU sandbox starts"
            ),
            remedy=(
                "move /dev/vfio/devices aside on the node, or use a runsc that is known to start "
                "with it; a kernel without CONFIG_VFIO_DEVICE_CDEV does not have that folder"
            ),
        )
    else:
        yield _AREA.ok(
            check="vfio-devices", reason="there is no /dev/vfio/devices for runsc to stumble over"
        )


def _tpuproxy(facts: GvisorFacts, runtime: SandboxRuntime) -> Finding:
    name = runtime.table.name
    if runtime.on("tpuproxy"):
        return _AREA.ok(
            check="tpuproxy",
            reason=(
                f"tpuproxy is on for runtimes.{name} in "
                f"{runtime.config.path if runtime.config else ''}"
            ),
        )
    if facts.release is not None and facts.release >= TPU_BY_ITSELF:
        return _AREA.ok(check="tpuproxy", reason=f"{facts.release} turns tpuproxy on by itself")
    which = str(facts.release) if facts.release else "a runsc of unknown release"
    remedy = (
        f'set tpuproxy = "true" below [runsc_config] in the runsc.toml of runtimes.{name}, or '
        f"install {TPU_BY_ITSELF} or later"
    )
    if any(pattern in _PASSES for pattern in runtime.table.annotations):
        return _AREA.warn(
            check="tpuproxy",
            reason=(
                f"{which} needs tpuproxy for TPUs (automatic since {TPU_BY_ITSELF}), and "
                f"runtimes.{name} leaves it to each pod's annotation dev.gvisor.internal.tpuproxy"
            ),
            remedy=remedy,
        )
    found = _AREA.fail if facts.release else _AREA.warn
    return found(
        check="tpuproxy",
        reason=(
            f"{which} needs tpuproxy for TPUs (automatic since {TPU_BY_ITSELF}), and neither "
            f"runsc.toml nor pod_annotations of runtimes.{name} turns it on: no TPU is seen in the "
            "sandbox"
        ),
        remedy=remedy,
    )
