"""The node that is looked at: where its files are, and whether it can be asked more."""

import os
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.paths import Mount, below, mount_of, mounts
from holdfast.host.root import HostRoot
from holdfast.model.node.filesystems import CONTAINERS_OWN
from holdfast.settings import Settings

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""Filesystems that a reboot empties."""


class Node(Struct, frozen=True, kw_only=True):
    """The live node, or a copied or mounted one below its own root.

    Each path of the node is looked up with `path`, also one read from a configuration file.
    """

    settings: Settings
    root: Path = Path("/")
    runtime_handlers: tuple[str, ...] = ()
    """The handlers that RuntimeClasses of the cluster name; no file of a node has them."""

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
        return plain if self.live else below(self.root, absolute) or plain


def unusable(mount: Mount | None) -> tuple[str, str] | None:
    """Return why a shared folder on *mount* does not work, and what to do; None if it can."""
    if mount is not None and mount.kind in CONTAINERS_OWN:
        return (
            f"is on {mount.kind}: it is a container's own, which the host does not see",
            "mount the host's folder there",
        )
    if mount is not None and not mount.writable:
        return "is mounted read-only: holdfast cannot write to it", "mount it writable"
    return None
