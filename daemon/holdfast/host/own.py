"""This process: what it may do and see on this host, its boot, memory and limit of open files."""

import contextlib
import ctypes
import gc
import os
import re
import resource
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    field_of,
    is_folder,
    link_or_none,
    read_text,
    seen,
    text_or_empty,
)
from holdfast.host.files.paths import Mount, mount_of, mounted_at, mounts
from holdfast.host.proc.procfs import (
    INIT_CGROUP_NAMESPACE,
    INIT_PID_NAMESPACE,
    effective_capabilities,
)
from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.node.privileges import Privileges, Visibility

_INIT_USER_NAMESPACE = "user:[4026531837]"
"""PROC_USER_INIT_INO, the same on every kernel."""
_EVERY_CAPABILITY = (1 << 38) - 1
"""The capabilities of every kernel since 3.16. Only a privileged container has them all."""
_V1_TREES = ("systemd", "pids", "memory", "cpu")
_HIDEPID = "hidepid="
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt(3)."""
_LARGE = 128 << 10
"""Bytes from which on a block is returned to the node when it is freed: glibc's first value."""
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def visibility(root: HostRoot, process: str = "self") -> Visibility:
    """Return what limits the view of this process, or of another, below *root*. Never raises."""
    proc = mounted_at(mounts(root, process), root.proc)
    options = proc.options if proc is not None else ()
    return Visibility(
        capabilities=effective_capabilities(text_or_empty(root.proc / process / "status")),
        in_init_pid_namespace=_same(root.proc / process / "ns/pid", INIT_PID_NAMESPACE),
        hidepid=next(
            (each.removeprefix(_HIDEPID) for each in options if each.startswith(_HIDEPID)), ""
        ),
    )


def privileges(root: HostRoot, process: str = "self") -> Privileges:
    """Return what *process*, a pid or ``self``, may do below *root*. Never raises.

    The folders of *root* are taken for those that the process itself would use.
    """
    home = root.proc / process
    status = text_or_empty(home / "status")
    uids, pid = field_of(status, "Uid").split(), field_of(status, "Pid")
    seen = mounts(root, process)
    sight = visibility(root, process)
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
        unified=os.path.exists(home / "root" / str(root.cgroup).lstrip("/") / "cgroup.controllers"),
        devices_writable=_writable(seen, root.sys / "devices"),
        bus_writable=_writable(seen, root.sys / "bus/pci"),
        pods_devices_only=_in_unprivileged_pod(root, process, sight),
    )


def _whole_tree(inside: Path, tree: Path) -> bool | None:
    """Tell whether the cgroup tree at *tree* is the node's: only its very top has these files."""
    top = inside / str(tree).lstrip("/")
    try:
        if not seen(inside):
            return None
        if seen(top / "cgroup.controllers"):
            return not seen(top / "cgroup.type")
        found = [top / name for name in _V1_TREES if is_folder(top / name)]
        return bool(found) and seen(found[0] / "cgroup.sane_behavior") is not None
    except HostError:
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


def _same(link: Path, expected: str) -> bool | None:
    found = link_or_none(link)
    return None if found is None else found == expected


def boot_id(root: HostRoot) -> BootId:
    """Return the random id that the kernel gave this boot; raise HostError if it has none.

    Without it, a lock of this boot and a lock of an earlier boot look the same. So nothing is
    guessed.
    """
    path = root.proc / "sys/kernel/random/boot_id"
    text = read_text(path)
    if text is None or not _BOOT_ID.fullmatch(text):
        seen = "it is missing" if text is None else f"it says {text[:40]!r}"
        raise HostError(f"cannot read the boot id from {path}: {seen}; mount the host's /proc")
    return BootId(text)


def keep_freed_memory_small() -> None:
    """Have the C library keep less of what is freed; call it before there are threads.

    glibc has an arena for each thread, and memory that is free in one is of no use to another. And
    after the first large block is freed, it keeps blocks of that size too. Both let the process
    grow for as long as pods come and go, though nothing leaks.
    """
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE)


def give_back_memory() -> None:
    """Collect garbage, and have the C library return its free pages to the node.

    The C library keeps freed memory for later, and the cgroup counts it as used. This takes tens
    of milliseconds: run it on a lane, and rarely.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    Each followed process, watched file and call from kubelet is an open file. systemd's default
    soft limit of 1024 is meant for programs that use select(2), which this one does not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
