"""What the daemon needs to be allowed, what for, and which feature is lost without it.

The one table of it: deploy/ and the docs say the same, and tests hold them against this.
"""

from collections.abc import Callable

from msgspec import Struct

from holdfast.host.own.privileges import Privileges, confined
from holdfast.settings import Settings

_DAC_READ_SEARCH, _KILL, _SYS_PTRACE, _SYS_ADMIN = 2, 5, 19, 21
_UNSEEN = (
    "which devices other users' processes have open is not seen: no scan proves a device free, "
    "starts pass the gate unverified, and nothing that outlives its pod is ended"
)


class Need(Struct, frozen=True, kw_only=True):
    """One thing that the daemon must be allowed."""

    check: str
    """The name under which the doctor tells of it."""
    privilege: str
    """What it is called where it is given: a capability without ``CAP_``, or a field of a pod."""
    has: Callable[[Privileges], bool | None]
    """Tells whether a process has it; None where that cannot be told."""
    lost: str
    """What does not work without it."""
    remedy: str
    asked: Callable[[Settings], bool] = lambda _settings: True
    """Tells whether settings ask for what it is needed for."""
    sure: bool = True
    """Whether lacking it always costs the feature, and not only in some cases."""


def _sees_hidden(found: Privileges) -> bool | None:
    if found.sight.capabilities is None:
        return None
    return not any("hidepid" in text for text in found.sight.hides)


def _terminates(settings: Settings) -> bool:
    return settings.reclaim.mode == "terminate"


def _resets(settings: Settings) -> bool:
    return settings.reclaim.reset != "never" or settings.reclaim.rebind


def _capability(name: str) -> str:
    return f"add {name} to securityContext.capabilities of the container"


NEEDS: tuple[Need, ...] = (
    Need(
        check="root-user",
        privilege="runAsUser",
        has=lambda found: None if found.uid is None else found.uid == 0,
        lost="kubelet's files, VFIO's nodes and the ledger belong to root: nothing is granted",
        remedy="set runAsUser: 0; on a host run as root",
    ),
    Need(
        check="user-namespace",
        privilege="hostUsers",
        has=lambda found: found.in_init_user_namespace,
        lost="capabilities count for nothing outside of the namespace, and the kernel's events do "
        f"not arrive in it; {_UNSEEN}",
        remedy="remove hostUsers: false from the pod",
    ),
    Need(
        check="pid-namespace",
        privilege="hostPID",
        has=lambda found: found.sight.in_init_pid_namespace,
        lost="processes outside of the namespace are not seen at all: no scan proves a device "
        "free, nobody is ended, and kubelet at the other end of its socket is not recognised",
        remedy="set hostPID: true",
    ),
    Need(
        check="sys-ptrace",
        privilege="SYS_PTRACE",
        has=lambda found: found.has(_SYS_PTRACE),
        lost=_UNSEEN,
        remedy=_capability("SYS_PTRACE"),
    ),
    Need(
        check="dac-read-search",
        privilege="DAC_READ_SEARCH",
        has=lambda found: found.has(_DAC_READ_SEARCH),
        lost=f"the folders of /proc that belong to other users are closed: {_UNSEEN}",
        remedy=_capability("DAC_READ_SEARCH"),
    ),
    Need(
        check="hidepid",
        privilege="procMount",
        has=_sees_hidden,
        lost="/proc hides other users' processes: they are not seen at all, and what they hold may "
        "look free",
        remedy=f"{_capability('SYS_PTRACE')}, which sees through it, or mount /proc without "
        "hidepid",
    ),
    Need(
        check="confinement",
        privilege="appArmorProfile",
        has=lambda found: not confined(found.label),
        lost="AppArmor or SELinux may refuse looks into other processes, whatever the "
        f"capabilities: {_UNSEEN}",
        remedy="set appArmorProfile.type: Unconfined, with SELinux seLinuxOptions.type: spc_t",
        sure=False,
    ),
    Need(
        check="cgroup-tree",
        privilege="volumes.cgroup",
        has=lambda found: found.whole_cgroup_tree,
        lost="which pod a process belongs to is not known: holders have no pod, nothing that "
        "outlives its pod is ended, and no limit of its memory is shown",
        remedy="mount the host's /sys/fs/cgroup, and let host.cgroup name where it lies",
    ),
    Need(
        check="kill",
        privilege="KILL",
        has=lambda found: found.has(_KILL),
        lost="another user's process that outlives its pod gets no SIGTERM: its pod's cgroup is "
        "killed, without time to finish; where that cannot be (version 1, a read-only tree) it "
        "lives on, and its device ends up in quarantine",
        remedy=f"{_capability('KILL')}, or set reclaim.mode: observe",
        asked=_terminates,
    ),
    Need(
        check="cgroup-writable",
        privilege="volumeMounts.cgroup.readOnly",
        has=lambda found: found.cgroup_writable if found.unified else True,
        lost="what outlives its pod is ended process by process and not as one: what forks "
        "fast enough stays",
        remedy="mount the host's cgroup tree writable, or set reclaim.mode: observe",
        asked=_terminates,
    ),
    Need(
        check="sys-writable",
        privilege="volumeMounts.sys-devices",
        has=lambda found: found.devices_writable,
        lost="no function is reset, and none that lost its driver is bound again",
        remedy="mount the host's /sys/devices writable, or set reclaim.reset: never and "
        "reclaim.rebind: false",
        asked=_resets,
    ),
    Need(
        check="bus-writable",
        privilege="volumeMounts.sys-bus-pci",
        has=lambda found: found.bus_writable,
        lost="no function that lost its driver is bound again",
        remedy="mount the host's /sys/bus/pci writable, or set reclaim.rebind: false",
        asked=lambda settings: settings.reclaim.rebind,
    ),
    Need(
        check="sys-admin",
        privilege="SYS_ADMIN",
        has=lambda found: found.has(_SYS_ADMIN),
        lost="NVIDIA's container runtime gives what a monitor of MIG sees to nobody without it: "
        "slices may not be found",
        remedy=f"{_capability('SYS_ADMIN')}, or set gpu.migStrategy: none",
        asked=lambda settings: settings.gpu.enabled and settings.gpu.mig_strategy != "none",
        sure=False,
    ),
)
"""In the order in which they are told."""
