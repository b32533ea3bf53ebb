"""Checks the state folder: whether its ledger survives reboots, can be written, and is ours."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.programs import ask_daemon
from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.host.files.kernelfile import is_folder, seen
from holdfast.host.files.paths import Mount
from holdfast.host.proc.procfs import Procfs
from holdfast.ledger.disk import FILE, LOCK, RESERVE_BYTES, kept_aside, sealed
from holdfast.ledger.examine import examine
from holdfast.model.node.filesystems import unfit
from holdfast.names import CONTROL_SOCKET

_MIB = 1 << 20
_SCARCE = 64 * _MIB
"""Below this the disk is almost full: logs and images fill the rest quickly."""
_MOVE = "set stateDir to a folder on a local disk of the node, mounted as a hostPath"


def state_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the state folder."""
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
        yield Check("folder").fail(f"{folder} cannot be looked at: {error.strerror}", remedy=_MOVE)
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Check("folder").fail(
            f"{folder} is not a folder", remedy="move it away, or set stateDir to another path"
        )
        return
    yield Check("folder").ok(f"{folder} is there")
    yield _filesystem(node.mount(folder), folder)
    yield _writable(node, folder, found, disk)
    yield _space(folder, disk)
    in_use, told = _daemon(node, folder)
    yield told
    yield _ledger(folder, in_use=in_use)


def _missing(node: Node, folder: Path) -> Finding:
    reason = f"{folder} is not there; the first start of the daemon makes it"
    above = next(each for each in folder.parents if is_folder(each))
    mount = node.mount(above)
    problem = "" if mount is None else unfit(mount.kind)
    if problem and node.live:
        return Check("folder").warn(f"{reason} on {above}, where {problem}", remedy=_MOVE)
    return Check("folder").ok(reason)


def _filesystem(mount: Mount | None, folder: Path) -> Finding:
    if mount is None:
        return Check("filesystem").warn(
            f"cannot tell what kind of filesystem {folder} is on",
            remedy="run the doctor on the node itself, with the host's /proc",
        )
    if problem := unfit(mount.kind):
        return Check("filesystem").fail(f"{folder} is on {mount.point}: {problem}", remedy=_MOVE)
    return Check("filesystem").ok(f"{folder} is on {mount.kind}")


def _writable(node: Node, folder: Path, found: os.stat_result, disk: os.statvfs_result) -> Finding:
    if disk.f_flag & os.ST_RDONLY:
        return Check("writable").fail(
            f"{folder} is on a filesystem that is mounted read-only",
            remedy="mount it writable; after a disk error, repair the disk first",
        )
    if not node.live:
        return Check("writable").ok("it is not mounted read-only")
    if found.st_uid != 0 or found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        return Check("writable").warn(
            f"{folder} belongs to uid {found.st_uid} with mode "
            f"{stat.S_IMODE(found.st_mode):o}: the daemon in its pod is root without DAC_OVERRIDE, "
            "and cannot write there",
            remedy=f"chown root {folder}; chmod 700 {folder}",
        )
    if os.geteuid() == 0 and not os.access(folder, os.W_OK | os.X_OK):
        return Check("writable").fail(
            f"{folder} does not let root write to it",
            remedy="check for an immutable flag (lsattr -d), AppArmor or SELinux",
        )
    return Check("writable").ok(f"root can write to {folder}")


def _space(folder: Path, disk: os.statvfs_result) -> Finding:
    free = disk.f_bavail * disk.f_frsize
    make_room = f"free space on the disk of {folder}: without it, no new device is granted"
    if free < RESERVE_BYTES or (disk.f_files and not disk.f_favail):
        what = f"{free >> 10} KiB" if free < RESERVE_BYTES else "no inode"
        return Check("space").fail(f"{what} is left for {folder}", remedy=make_room)
    if free < _SCARCE:
        return Check("space").warn(f"{free // _MIB} MiB are left for {folder}", remedy=make_room)
    return Check("space").ok(f"{free // _MIB} MiB are free")


def _daemon(node: Node, folder: Path) -> tuple[bool, Finding]:
    """Return whether a daemon uses the folder, by its socket and by the kernel's file locks."""
    if not node.live:
        return False, Check("daemon").ok("a copy of a node runs no daemon")
    holder = Procfs(node.host).flock_holder(folder / LOCK)
    answer = ask_daemon(node)
    if not answer.problem:
        pid = f"pid {answer.pid}" if answer.pid else "which cannot be seen from this pid namespace"
        return True, Check("daemon").ok(f"the daemon runs on {folder}, {pid}")
    if holder is None:
        return False, Check("daemon").ok(f"no daemon runs on {folder}")
    who = f"pid {holder}" if holder else "a process that cannot be seen from here"
    return True, Check("daemon").warn(
        f"{who} holds {folder / LOCK}, but nobody answers on {CONTROL_SOCKET} ({answer.problem})",
        remedy="it is starting, stopping or stuck: read its log; if it stays so, restart it",
    )


def _ledger(folder: Path, *, in_use: bool) -> Finding:
    try:
        if not seen(folder / FILE):
            return _missing_ledger(folder)
        examine(folder, in_use=in_use)
    except LedgerUnusableError as error:
        return Check("ledger").fail(
            str(error),
            remedy="install the holdfast that wrote it, or move the file away: the next start "
            "makes an empty one and fills it from kubelet's checkpoint",
        )
    except LedgerError as error:
        return Check("ledger").warn(
            str(error),
            remedy="run the doctor as root, with a /tmp that the ledger can be copied to",
        )
    return _whole(folder)


def _missing_ledger(folder: Path) -> Finding:
    if sealed(folder) is None and not kept_aside(folder / FILE):
        return Check("ledger").ok(f"no ledger in {folder} yet; the first start makes it")
    return Check("ledger").warn(
        f"there was a ledger in {folder}, and {FILE} is gone",
        remedy="do not restart a daemon that runs: it writes the ledger again from its memory. "
        "Otherwise set the quarantines and the drain that were made by hand again",
    )


def _whole(folder: Path) -> Finding:
    kept = sorted(each.name for each in kept_aside(folder / FILE))
    if kept:
        return Check("ledger").warn(
            f"{folder / FILE} is whole; an earlier start could not read {', '.join(kept)} and "
            "began with an empty ledger",
            remedy="set the quarantines and the drain that were made by hand again, then remove "
            "the file with its -wal and -shm",
        )
    return Check("ledger").ok(f"{folder / FILE} is whole")
