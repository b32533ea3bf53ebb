"""Checks the state folder: that the ledger in it outlives reboots, can be written, and is ours."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.host.files.paths import Mount
from holdfast.host.proc.peer import listener, lock_holder
from holdfast.host.proc.procfs import Procfs
from holdfast.ledger.disk import RESERVE_BYTES
from holdfast.ledger.examine import examine
from holdfast.ledger.store import FILE, LOCK, SCHEMA_VERSION
from holdfast.model.node.filesystems import unfit
from holdfast.names import CONTROL_SOCKET

_AREA = Area("state")
_MIB = 1 << 20
_SCARCE = 64 * _MIB
"""Below this the disk is as good as full: logs and images fill it in a moment."""
_MOVE = "set stateDir to a folder on a local disk of the node, mounted as a hostPath"


def state_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the state folder. May raise PermissionError."""
    folder = node.path(node.settings.state_dir)
    try:
        found = folder.stat()
        disk = os.statvfs(folder)
    except (FileNotFoundError, NotADirectoryError):
        yield _missing(node, folder)
        return
    except PermissionError:
        raise
    except OSError as error:
        yield _AREA.fail(
            check="folder",
            reason=f"{folder} cannot be looked at: {error.strerror}",
            remedy=_MOVE,
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield _AREA.fail(
            check="folder",
            reason=f"{folder} is not a folder",
            remedy="move it away, or set stateDir",
        )
        return
    yield _AREA.ok(check="folder", reason=f"{folder} is there")
    yield _filesystem(node.mount(folder), folder)
    yield _writable(node, folder, found, disk)
    yield _space(folder, disk)
    in_use, told = _daemon(node, folder)
    yield told
    yield from _ledger(folder, in_use=in_use)


def _missing(node: Node, folder: Path) -> Finding:
    reason = f"{folder} is not there; the first start of the daemon makes it"
    above = next(each for each in folder.parents if each.is_dir())
    mount = node.mount(above)
    problem = "" if mount is None else unfit(mount.kind)
    if problem and node.live:
        return _AREA.warn(
            check="folder", reason=f"{reason} on {above}, where {problem}", remedy=_MOVE
        )
    return _AREA.ok(check="folder", reason=reason)


def _filesystem(mount: Mount | None, folder: Path) -> Finding:
    if mount is None:
        return _AREA.warn(
            check="filesystem",
            reason=f"cannot tell what kind of filesystem {folder} is on",
            remedy="run the doctor on the node itself, with the host's /proc",
        )
    if problem := unfit(mount.kind):
        return _AREA.fail(
            check="filesystem", reason=f"{folder} is on {mount.point}: {problem}", remedy=_MOVE
        )
    return _AREA.ok(check="filesystem", reason=f"{folder} is on {mount.kind}")


def _writable(node: Node, folder: Path, found: os.stat_result, disk: os.statvfs_result) -> Finding:
    if disk.f_flag & os.ST_RDONLY:
        return _AREA.fail(
            check="writable",
            reason=f"{folder} is on a filesystem that is mounted read-only",
            remedy="mount it writable; after an error of its disk: mend that first",
        )
    if not node.live:
        return _AREA.ok(check="writable", reason="it is not mounted read-only")
    if found.st_uid != 0 or found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        return _AREA.warn(
            check="writable",
            reason=f"{folder} belongs to uid {found.st_uid} with mode "
            f"{stat.S_IMODE(found.st_mode):o}: root without DAC_OVERRIDE, as the daemon is in its "
            "pod, cannot write there",
            remedy=f"chown root {folder}; chmod 700 {folder}",
        )
    if os.geteuid() == 0 and not os.access(folder, os.W_OK | os.X_OK):
        return _AREA.fail(
            check="writable",
            reason=f"{folder} does not let root write to it",
            remedy="look for an immutable flag (lsattr -d), AppArmor or SELinux",
        )
    return _AREA.ok(check="writable", reason=f"root can write to {folder}")


def _space(folder: Path, disk: os.statvfs_result) -> Finding:
    free = disk.f_bavail * disk.f_frsize
    make_room = f"make room on the disk of {folder}: without it no new device is granted"
    if free < RESERVE_BYTES or (disk.f_files and not disk.f_favail):
        what = f"{free >> 10} KiB" if free < RESERVE_BYTES else "no inode"
        return _AREA.fail(check="space", reason=f"{what} is left for {folder}", remedy=make_room)
    if free < _SCARCE:
        return _AREA.warn(
            check="space", reason=f"{free // _MIB} MiB are left for {folder}", remedy=make_room
        )
    return _AREA.ok(check="space", reason=f"{free // _MIB} MiB are free")


def _daemon(node: Node, folder: Path) -> tuple[bool, Finding]:
    """Tell whether a daemon has the folder in use, by its socket and by the kernel's locks."""
    if not node.live:
        return False, _AREA.ok(check="daemon", reason="no daemon is looked for on a copied node")
    holder = lock_holder(Procfs(node.host), folder / LOCK)
    try:
        pid = listener(folder / CONTROL_SOCKET)
    except PermissionError:
        return holder is not None, _AREA.warn(
            check="daemon",
            reason=f"{folder / CONTROL_SOCKET} may not be asked",
            remedy="run the doctor as root",
        )
    except OSError as error:
        if holder is None:
            return False, _AREA.ok(check="daemon", reason=f"no daemon runs on {folder}")
        return True, _AREA.warn(
            check="daemon",
            reason=f"pid {holder} holds {folder / LOCK}, but nobody answers on "
            f"{CONTROL_SOCKET} ({error.strerror or error})",
            remedy="it starts, ends or hangs: read its log; if it stays so, restart it",
        )
    return True, _AREA.ok(check="daemon", reason=f"the daemon runs on {folder}{_pid(pid)}")


def _pid(pid: int) -> str:
    return f", pid {pid}" if pid else ", out of our sight in another pid namespace"


def _ledger(folder: Path, *, in_use: bool) -> Iterator[Finding]:
    if not (folder / FILE).exists():
        yield _AREA.ok(
            check="ledger", reason=f"no ledger in {folder} yet; the first start makes it"
        )
        return
    try:
        examine(folder, in_use=in_use)
    except LedgerUnusableError as error:
        yield _AREA.fail(
            check="ledger",
            reason=str(error),
            remedy="install the holdfast that wrote it, or move the file away: the next start "
            "makes an empty one, which kubelet's checkpoint then fills",
        )
    except LedgerError as error:
        yield _AREA.warn(
            check="ledger",
            reason=str(error),
            remedy="run the doctor as root, where it has a /tmp to copy the ledger to",
        )
    else:
        reason = f"{folder / FILE} is whole, of version {SCHEMA_VERSION} or older"
        yield _AREA.ok(check="ledger", reason=reason)
