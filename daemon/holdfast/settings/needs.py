"""Which privileges the settings need, and which feature is lost without each.

This is the only table of them. Tests compare deploy/ and the docs with it.
"""

from collections.abc import Callable

from msgspec import Struct

from holdfast.model.node.privileges import Privileges, confined
from holdfast.settings.sections import Settings

_DAC_READ_SEARCH, _KILL, _SYS_PTRACE, _SYS_ADMIN = 2, 5, 19, 21
_UNSEEN = (
    "holdfast cannot see which devices other users' processes have open: no scan proves a device "
    "free, containers start unverified, and orphans are not ended"
)


class Need(Struct, frozen=True, kw_only=True):
    """One privilege that the daemon needs."""

    check: str
    """The name of the doctor's check."""
    privilege: str
    """Its name in a pod: a capability without ``CAP_``, or a field."""
    has: Callable[[Privileges], bool | None]
    """Tells whether a process has it; None if that cannot be told."""
    lost: str
    """What does not work without it."""
    remedy: str
    asked: Callable[[Settings], bool] = lambda _settings: True
    """Tells whether settings need it."""
    sure: bool = True
    """Whether the feature is always lost without it, not only in some cases."""


def _sees_hidden(found: Privileges) -> bool | None:
    if found.sight.capabilities is None:
        return None
    return not any("hidepid" in text for text in found.sight.hides)


def resets(settings: Settings) -> bool:
    """Tell whether some device is reset, by the section reclaim or by a rule of its own."""
    rules = (each.reset for each in settings.devices)
    asked = "afterForcedRelease" in (settings.reclaim.reset, *rules)
    return asked and _has_functions(settings)


def _terminates(settings: Settings) -> bool:
    rules = (each.reclaim_mode for each in settings.devices)
    return "terminate" in (settings.reclaim.mode, *rules)


def _has_functions(settings: Settings) -> bool:
    """Tell whether PCI functions are passed on: a GPU with NVIDIA's driver is never reset."""
    return any(each.enabled for each in settings.functions)


def _may_rebind(found: Privileges) -> bool | None:
    both = found.devices_writable, found.bus_writable
    return False if False in both else None if None in both else True


def _capability(name: str) -> str:
    return f"add {name} to securityContext.capabilities of the container"


NEEDS: tuple[Need, ...] = (
    Need(
        check="root-user",
        privilege="runAsUser",
        has=lambda found: None if found.uid is None else found.uid == 0,
        lost="the daemon cannot use kubelet's files, VFIO's nodes or the ledger: nothing is "
        "granted",
        remedy="set runAsUser: 0; on a host, run as root",
    ),
    Need(
        check="user-namespace",
        privilege="hostUsers",
        has=lambda found: found.in_init_user_namespace,
        lost="capabilities have no effect outside the namespace, and the kernel's events do not "
        f"arrive in it; {_UNSEEN}",
        remedy="remove hostUsers: false from the pod",
    ),
    Need(
        check="pid-namespace",
        privilege="hostPID",
        has=lambda found: found.sight.in_init_pid_namespace,
        lost="processes outside the namespace cannot be seen: no scan proves a device free, no "
        "process is ended, and kubelet is not recognised behind its socket",
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
        lost=f"other users' folders in /proc cannot be read: {_UNSEEN}",
        remedy=_capability("DAC_READ_SEARCH"),
    ),
    Need(
        check="hidepid",
        privilege="procMount",
        has=_sees_hidden,
        lost="/proc hides other users' processes: a device that they hold may look free",
        remedy=f"{_capability('SYS_PTRACE')}, which sees through it, or mount /proc without "
        "hidepid",
    ),
    Need(
        check="confinement",
        privilege="appArmorProfile",
        has=lambda found: not confined(found.label),
        lost="AppArmor or SELinux may refuse access to other processes, whatever the capabilities: "
        f"{_UNSEEN}",
        remedy="set appArmorProfile.type: Unconfined; with SELinux, set seLinuxOptions.type: spc_t",
        sure=False,
    ),
    Need(
        check="cgroup-tree",
        privilege="volumes.cgroup",
        has=lambda found: found.whole_cgroup_tree,
        lost="holdfast cannot tell which pod a process belongs to: holders have no pod, orphans "
        "are not ended, and memory limits are not shown",
        remedy="mount the host's /sys/fs/cgroup, and set host.cgroup to where it is mounted",
    ),
    Need(
        check="kill",
        privilege="KILL",
        has=lambda found: found.has(_KILL),
        lost="another user's orphan gets no SIGTERM: its pod's cgroup is killed without a grace "
        "period. If that is not possible (cgroup v1, a read-only tree), the orphan stays and its "
        "device is quarantined",
        remedy=f"{_capability('KILL')}, or set reclaim.mode, and reclaimMode of each "
        "rule of devices, to observe",
        asked=_terminates,
    ),
    Need(
        check="cgroup-writable",
        privilege="volumeMounts.cgroup.readOnly",
        has=lambda found: found.cgroup_writable if found.unified else True,
        lost="orphans are ended one by one, not together: a program that forks fast enough stays",
        remedy="mount the host's cgroup tree writable, or set reclaim.mode, and reclaimMode of "
        "each rule of devices, to observe",
        asked=_terminates,
    ),
    Need(
        check="sys-writable",
        privilege="volumeMounts.sys-devices",
        # A pod that may not open a function's group resets none anyway: see `device-nodes`.
        has=lambda found: found.pods_devices_only or found.devices_writable,
        lost="no PCI function is reset",
        remedy="mount the host's /sys/devices writable, or set reclaim.reset, and reset of each "
        "rule of devices, to never",
        asked=resets,
    ),
    Need(
        check="bus-writable",
        privilege="volumeMounts.sys-bus-pci",
        has=_may_rebind,
        lost="no PCI function that lost its driver is bound again",
        remedy="mount the host's /sys/devices and /sys/bus/pci writable, or set reclaim.rebind: "
        "false",
        asked=lambda settings: settings.reclaim.rebind and _has_functions(settings),
    ),
    Need(
        check="sys-admin",
        privilege="SYS_ADMIN",
        has=lambda found: found.has(_SYS_ADMIN),
        lost="NVIDIA's container runtime does not give the daemon access to MIG's monitor "
        "capability: MIG slices may not be found",
        remedy=f"{_capability('SYS_ADMIN')}, or set gpu.migStrategy: none",
        asked=lambda settings: settings.gpu.enabled and settings.gpu.mig_strategy != "none",
        sure=False,
    ),
)
"""In the order in which they are shown."""
