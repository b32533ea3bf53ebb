"""The node that is looked at: where its files lie, and what may be asked of it besides files."""

import os
from pathlib import Path

from msgspec import Struct

from holdfast.host.files.paths import Mount, below, mount_of, mounts
from holdfast.host.root import HostRoot
from holdfast.settings import Settings


class Node(Struct, frozen=True, kw_only=True):
    """The live node, or a copied or mounted one under a root of its own.

    Every path of the node, also one read from a configuration file, is looked up with `path`.
    """

    settings: Settings
    root: Path = Path("/")
    runtime_handlers: tuple[str, ...] = ()
    """What RuntimeClasses of the cluster call their handlers: no file of a node says it."""

    @property
    def live(self) -> bool:
        """Tell whether this is the running machine, so that programs and sockets may be asked."""
        return self.root == Path("/")

    @property
    def host(self) -> HostRoot:
        """Return where the folders of the node's kernel lie.

        The settings name them as the daemon sees them from its container; a copy has them where
        every host has them.
        """
        if not self.live:
            return HostRoot.under(self.root)
        return HostRoot(**self.settings.host.folders())

    def mount(self, folder: Path) -> Mount | None:
        """Return the mount that *folder*, found by `path`, lies on; None where it cannot be told.

        Of a copied node it is what pid 1 of the copy's /proc says.
        """
        if self.live:
            return mount_of(mounts(self.host), os.path.realpath(folder))
        return mount_of(mounts(self.host, "1"), f"/{folder.relative_to(self.root)}")

    def path(self, absolute: str) -> Path:
        """Return where the node's file *absolute* lies for us; links of a copy stay below its root.

        /var/run is mostly a link to /run: followed as it is, it would lead to our own.
        """
        plain = self.root / absolute.lstrip("/")
        return plain if self.live else below(self.root, absolute) or plain
