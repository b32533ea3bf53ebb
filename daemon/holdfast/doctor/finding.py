"""What a check of the doctor is given of the node, and what it finds."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.paths import Mount, as_its_process, below, mount_of, mounts
from holdfast.host.root import HostRoot
from holdfast.model.node.filesystems import CONTAINERS_OWN
from holdfast.settings import Settings


class Level(StrEnum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    """Something works less well, or cannot be told from here."""
    FAIL = "FAIL"
    """Something that the settings ask for cannot work until it is fixed."""


class Finding(Struct, frozen=True, kw_only=True):
    """One fact about the node, with what to do if it is not as it should be."""

    area: str = ""
    """The subject, such as `kubelet` or `vfio`; empty until `examine` says which it is."""
    check: str
    """The check's name, the same on every node and in every version: programs filter by it."""
    level: Level
    reason: str
    """What was seen, with the path or value where it was seen."""
    remedy: str = ""
    """What to do; never empty for WARN and FAIL."""


class Check(Struct, frozen=True):
    """Makes the findings of one check. A finding that is not OK cannot be made without a remedy.

    Each check is named by a literal, which docs/doctor.md lists with its area.
    """

    name: str

    def ok(self, reason: str) -> Finding:
        """Return that all is as it should be."""
        return self._finding(Level.OK, reason, "")

    def warn(self, reason: str, *, remedy: str) -> Finding:
        """Return that something works less well, or cannot be told from here."""
        return self._finding(Level.WARN, reason, remedy)

    def fail(self, reason: str, *, remedy: str) -> Finding:
        """Return that something that the settings ask for cannot work until it is fixed."""
        return self._finding(Level.FAIL, reason, remedy)

    def warn_or_fail(self, reason: str, *, remedy: str, fails: bool) -> Finding:
        """Return FAIL if it *fails* for sure, or else WARN."""
        return self._finding(Level.FAIL if fails else Level.WARN, reason, remedy)

    def _finding(self, level: Level, reason: str, remedy: str) -> Finding:
        return Finding(check=self.name, level=level, reason=reason, remedy=remedy)


class ProgramOutput(Struct, frozen=True, kw_only=True):
    """What a program wrote to standard output, or why there is no answer."""

    text: str = ""
    problem: str = ""


def _refuse(command: tuple[str, ...]) -> ProgramOutput:
    return ProgramOutput(problem=f"{command[0]} is not run: this is a copy of a node")


class Node(Struct, frozen=True, kw_only=True):
    """The live node, or a copied or mounted one below its own root.

    Each path of the node is looked up with `path`, also one read from a configuration file.
    """

    settings: Settings
    root: Path = Path("/")
    runtime_handlers: tuple[str, ...] = ()
    """The handlers that RuntimeClasses of the cluster name; no file of a node has them."""
    ask: Callable[[tuple[str, ...]], ProgramOutput] = _refuse
    """Runs a program of the node, given with its arguments; those of a copied node never are."""

    @property
    def live(self) -> bool:
        """Tell whether this is the running machine, whose programs and sockets can be asked."""
        return self.root == Path("/")

    @property
    def host(self) -> HostRoot:
        """Return where the folders of the node's kernel are.

        The settings name them as the daemon sees them from its container. A copy has them where
        every host has them.
        """
        if not self.live:
            return HostRoot.under(self.root)
        return HostRoot(**self.settings.host.folders())

    def mount(self, folder: Path) -> Mount | None:
        """Return the mount of *folder*, a result of `path`; None if it cannot be told.

        For a copied node, pid 1 of the copy's /proc tells it.
        """
        if self.live:
            return mount_of(mounts(self.host), os.path.realpath(folder))
        return mount_of(mounts(self.host, "1"), f"/{folder.relative_to(self.root)}")

    def path(self, absolute: str) -> Path:
        """Return where the node's file *absolute* is for us. Links of a copy stay below its root.

        /var/run is usually a link to /run: followed as it is, it would lead to our own.
        """
        plain = self.root / absolute.lstrip("/")
        return as_its_process(str(plain)) if self.live else below(self.root, absolute) or plain


def or_well(findings: Iterable[Finding], well: Finding) -> Iterator[Finding]:
    """Yield each of *findings* at once, for the next may not be found out; *well* for none."""
    found = None
    for found in findings:
        yield found
    if found is None:
        yield well


def unusable(node: Node, folder: Path, missing: Finding) -> Finding | None:
    """Return what is wrong with a shared *folder*, a result of `path`; None where it works.

    That is *missing* where it is not there. Raises PermissionError.
    """
    check, remedy = Check(missing.check), missing.remedy
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return check.fail(f"{folder} is not a folder", remedy=remedy)
    except PermissionError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return missing
    except OSError as error:
        return check.fail(f"{folder} cannot be looked at: {error.strerror}", remedy=remedy)
    mount = node.mount(folder)
    # A host may have an overlay of its own, such as on /etc; what a pod is given is a mount too.
    if mount is not None and mount.kind in CONTAINERS_OWN and mount.point == "/":
        return check.fail(
            f"{folder} is on {mount.kind}: it is a container's own, which the host does not see",
            remedy="mount the host's folder there",
        )
    wrong = ""
    if mount is not None and not mount.writable:
        wrong = "is mounted read-only: holdfast cannot write to it"
    elif node.live and os.geteuid() == 0 and not os.access(folder, os.W_OK):
        wrong = "cannot be written to"
    return check.fail(f"{folder} {wrong}", remedy="mount it writable") if wrong else None
