"""Whether the virtual machine that has a device belongs to the pod that waits for the device.

Kata can plug in VFIO devices when it creates a pod's sandbox (cold plug), before any container of
the pod starts. Such a virtual machine is the pod itself.
"""

from msgspec.structs import replace

from holdfast.model.ids import PodUid
from holdfast.model.use.sandbox import Sandbox
from holdfast.model.use.verdict import Freedom, Verdict

_WHOSE = (
    "; if that is the virtual machine of this very pod (Kata, with cold_plug_vfio), set "
    "sandbox_cgroup_only = true in Kata's configuration: it shows whose machine it is"
)


def but_for_own_machine(verdict: Verdict, pod: PodUid | None, *, had_none: bool = False) -> Verdict:
    """Return *verdict*, or FREE where only *pod*'s own virtual machine has the device.

    *had_none*: nobody had the device when a container of the pod started on it before. Then it was
    plugged in later, for that container, and the virtual machine has to close it first.
    """
    if verdict.freedom is not Freedom.IN_USE or not verdict.holders:
        return verdict
    own = pod is not None and all(
        each.sandbox is Sandbox.MACHINE and each.pod == pod for each in verdict.holders
    )
    if not own or had_none:
        return verdict
    pids = ", ".join(str(each.process) for each in verdict.holders)
    return Verdict(
        freedom=Freedom.FREE,
        reason=f"only the virtual machine of pod {pod} itself has it (pid {pids})",
    )


def asking_whose(verdict: Verdict) -> Verdict:
    """Return *verdict*; for a virtual machine outside any pod, with a hint how to identify it."""
    holders = verdict.holders
    if any(each.sandbox is Sandbox.MACHINE and each.pod is None for each in holders):
        return replace(verdict, reason=verdict.reason + _WHOSE)
    return verdict
