"""What a process may do and see on this host: capabilities, namespaces, mounts, confinement."""

import re
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.kernelfile import field_of, link_or_none, text_or_empty
from holdfast.host.files.paths import Mount, mount_of, mounted_at, mounts
from holdfast.host.proc.procfs import (
    INIT_CGROUP_NAMESPACE,
    INIT_PID_NAMESPACE,
    effective_capabilities,
)
from holdfast.host.root import HostRoot
from holdfast.model.node.cgroup_names import pod_of

_INIT_USER_NAMESPACE = "user:[4026531837]"
"""PROC_USER_INIT_INO, the same on every kernel."""
_EVERY_CAPABILITY = (1 << 38) - 1
"""The capabilities of every kernel since 3.16. Only a privileged container has them all."""
_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
_V1_TREES = ("systemd", "pids", "memory", "cpu")
_HIDEPID = "hidepid="
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


def visibility(root: HostRoot, process: str = "self") -> Visibility:
    """Return what limits the view of this process, or of another, below *root*. Never raises."""
    return _visibility(
        root, process, text_or_empty(root.proc / process / "status"), mounts(root, process)
    )


def privileges(root: HostRoot, process: str = "self") -> Privileges:
    """Return what *process*, a pid or ``self``, may do below *root*. Never raises.

    The folders of *root* are taken for those that the process itself would use.
    """
    home = root.proc / process
    status = text_or_empty(home / "status")
    uids, pid = field_of(status, "Uid").split(), field_of(status, "Pid")
    seen = mounts(root, process)
    sight = _visibility(root, process, status, seen)
    label = text_or_empty(home / "attr/apparmor/current") or text_or_empty(home / "attr/current")
    return Privileges(
        pid=int(pid) if pid.isdecimal() else None,
        uid=int(uids[1]) if len(uids) > 1 and uids[1].isdecimal() else None,
        sight=sight,
        in_init_user_namespace=_same(home / "ns/user", _INIT_USER_NAMESPACE),
        in_init_cgroup_namespace=_same(home / "ns/cgroup", INIT_CGROUP_NAMESPACE),
        no_new_privileges=field_of(status, "NoNewPrivs") == "1",
        label=label.strip("\0"),
        whole_cgroup_tree=_whole_tree(home / "root", root.cgroup),
        cgroup_writable=_writable(seen, root.cgroup),
        unified=_exists(home / "root" / str(root.cgroup).lstrip("/") / "cgroup.controllers"),
        devices_writable=_writable(seen, root.sys / "devices"),
        bus_writable=_writable(seen, root.sys / "bus/pci"),
        pods_devices_only=_in_unprivileged_pod(root, process, sight),
    )


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


def _visibility(root: HostRoot, process: str, status: str, seen: tuple[Mount, ...]) -> Visibility:
    namespace = link_or_none(root.proc / process / "ns/pid")
    proc = mounted_at(seen, root.proc)
    options = proc.options if proc is not None else ()
    return Visibility(
        capabilities=effective_capabilities(status),
        in_init_pid_namespace=None if namespace is None else namespace == INIT_PID_NAMESPACE,
        hidepid=next(
            (each.removeprefix(_HIDEPID) for each in options if each.startswith(_HIDEPID)), ""
        ),
    )


def _whole_tree(inside: Path, tree: Path) -> bool | None:
    """Tell whether the cgroup tree at *tree* is the node's: only its very top has these files."""
    top = inside / str(tree).lstrip("/")
    try:
        if not inside.exists():
            return None
        if (top / "cgroup.controllers").exists():
            return not (top / "cgroup.type").exists()
        found = [top / name for name in _V1_TREES if (top / name).is_dir()]
        return (found[0] / "cgroup.sane_behavior").exists() if found else False
    except OSError:
        return None


def _in_unprivileged_pod(root: HostRoot, process: str, sight: Visibility) -> bool | None:
    """Tell whether a runtime's device rules bind the process; a privileged container has none."""
    own = _same(root.proc / process / "ns/cgroup", INIT_CGROUP_NAMESPACE)
    lines = text_or_empty(root.proc / process / "cgroup").splitlines()
    in_pod = own is False or any(pod_of(line.rpartition(":")[2])[0] is not None for line in lines)
    if not in_pod:
        return None if own is None else False
    if sight.capabilities is None:
        return None
    return sight.capabilities & _EVERY_CAPABILITY != _EVERY_CAPABILITY


def _writable(seen: tuple[Mount, ...], path: Path) -> bool | None:
    mount = mount_of(seen, str(path))
    return None if mount is None else mount.writable


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _same(link: Path, expected: str) -> bool | None:
    found = link_or_none(link)
    return None if found is None else found == expected
