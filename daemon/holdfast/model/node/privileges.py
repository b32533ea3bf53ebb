"""What a process is allowed to do and see, as facts, and whether a label confines it."""

import re

from msgspec import Struct

_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
_SHOWS_PROCESSES = frozenset({"", "0", "off", "1", "noaccess"})
"""With 1 every process is listed, but its files are refused: that shows as EACCES later."""


class Visibility(Struct, frozen=True, kw_only=True):
    """What limits a process's view of others; None if the kernel does not say.

    `capabilities` is the effective set as a mask. `hidepid` is the mount option of /proc, empty
    if it has none. `in_init_pid_namespace`: every process of the node has a pid here.
    """

    capabilities: int | None
    in_init_pid_namespace: bool | None
    hidepid: str = ""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the missing capabilities that seeing and ending other processes takes."""
        mask = self.capabilities or 0
        return tuple(name for name, bit in _CAPABILITIES.items() if not mask >> bit & 1)

    @property
    def blinding(self) -> tuple[str, ...]:
        """Return those of `lacking` without which other users' processes cannot be inspected."""
        return tuple(name for name in self.lacking if name != "CAP_KILL")

    @property
    def hides(self) -> tuple[str, ...]:
        """Return what hides whole processes. What only shows as EACCES is not among it."""
        found: list[str] = []
        if self.in_init_pid_namespace is False:
            found.append("processes outside this pid namespace cannot be seen; set hostPID: true")
        # CAP_SYS_PTRACE sees through every hidepid.
        if self.hidepid not in _SHOWS_PROCESSES and "CAP_SYS_PTRACE" in self.lacking:
            found.append(
                f"/proc is mounted with hidepid={self.hidepid}, which hides others' processes; "
                "add the capability SYS_PTRACE"
            )
        return tuple(found)


class Privileges(Struct, frozen=True, kw_only=True):
    """What one process is allowed; None if it cannot be told.

    `label` is the process's AppArmor or SELinux label, empty if it has none.
    """

    pid: int | None
    uid: int | None
    sight: Visibility
    in_init_user_namespace: bool | None
    in_init_cgroup_namespace: bool | None
    no_new_privileges: bool
    label: str
    whole_cgroup_tree: bool | None
    cgroup_writable: bool | None
    unified: bool
    """Whether the cgroup tree is of version 2, in which a cgroup can be ended as a whole."""
    devices_writable: bool | None
    """Below /sys/devices, where functions are reset."""
    bus_writable: bool | None
    """Below /sys/bus/pci, where functions are given drivers."""
    pods_devices_only: bool | None = None
    """Whether it runs in a pod's container without privileges. Then it may open only the device
    nodes that the runtime gave it."""

    def has(self, capability: int) -> bool | None:
        """Tell whether *capability*, by its number, is in the effective set."""
        mask = self.sight.capabilities
        return None if mask is None else bool(mask >> capability & 1)


def confined(label: str) -> bool:
    """Tell whether AppArmor or SELinux may refuse looks into other processes under *label*.

    >>> confined("cri-containerd.apparmor.d (enforce)"), confined("unconfined")
    (True, False)
    """
    if not label or label.startswith("unconfined") or label.endswith("(complain)"):
        return False
    kind = label.split(":")[2:3]
    return (
        not kind
        or re.fullmatch(r"(spc|kernel|init|unconfined|unconfined_service)_t", kind[0]) is None
    )
