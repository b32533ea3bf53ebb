"""What a process may do and see on this host: its capabilities, namespaces, mounts, confinement."""

import re
from pathlib import Path

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_link, read_text
from holdfast.host.files.mounts import Mount, mount_of, mounts
from holdfast.host.own.visibility import Visibility, visibility
from holdfast.host.root import HostRoot
from holdfast.model.node.cgroup_names import pod_of

# The numbers of the first namespaces, the same on every kernel.
_INIT_USER_NAMESPACE = "user:[4026531837]"
_INIT_CGROUP_NAMESPACE = "cgroup:[4026531835]"
_EVERY_CAPABILITY = (1 << 38) - 1
"""Those that every kernel since 3.16 has; only a privileged container has them all."""
_V1_TREES = ("systemd", "pids", "memory", "cpu")


class Privileges(Struct, frozen=True, kw_only=True):
    """What was seen of one process; None where it could not be told.

    `label` is what AppArmor or SELinux calls it, empty where neither does.
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
    """Whether the cgroup tree is of version 2, in which a cgroup can be ended as one."""
    devices_writable: bool | None
    """Below /sys/devices, where functions are reset."""
    bus_writable: bool | None
    """Below /sys/bus/pci, where functions are given drivers."""
    pods_devices_only: bool | None = None
    """Whether it runs in a pod's container without privileges: it may open no other device nodes
    than the runtime gave it."""

    def has(self, capability: int) -> bool | None:
        """Tell whether *capability*, by its number, is among the effective ones."""
        mask = self.sight.capabilities
        return None if mask is None else bool(mask >> capability & 1)


def privileges(root: HostRoot, process: str = "self") -> Privileges:
    """Return what *process*, a pid or ``self``, may do below *root*. Never raises.

    The folders of *root* are taken for those that the process itself would use.
    """
    home = root.proc / process
    status = dict(
        line.split(":", 1) for line in (_text(home / "status") or "").splitlines() if ":" in line
    )
    uids = status.get("Uid", "").split()
    pid = status.get("Pid", "").strip()
    seen = mounts(root, process)
    sight = visibility(root, process)
    return Privileges(
        pid=int(pid) if pid.isdecimal() else None,
        uid=int(uids[1]) if len(uids) > 1 and uids[1].isdecimal() else None,
        sight=sight,
        in_init_user_namespace=_same(home / "ns/user", _INIT_USER_NAMESPACE),
        in_init_cgroup_namespace=_same(home / "ns/cgroup", _INIT_CGROUP_NAMESPACE),
        no_new_privileges=status.get("NoNewPrivs", "").strip() == "1",
        label=(_text(home / "attr/apparmor/current") or _text(home / "attr/current") or "").strip(
            "\0"
        ),
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
    own = _same(root.proc / process / "ns/cgroup", _INIT_CGROUP_NAMESPACE)
    path = _text(root.proc / process / "cgroup") or ""
    in_pod = own is False or any(
        pod_of(line.rpartition(":")[2])[0] is not None for line in path.splitlines()
    )
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
    try:
        found = read_link(link)
    except HostError:
        return None
    return None if found is None else found == expected


def _text(path: Path) -> str | None:
    try:
        return read_text(path)
    except HostError:
        return None
