"""The node that is looked at: where its files lie, and what may be asked of it besides files."""

from pathlib import Path

from msgspec import Struct

from holdfast.host.below import below
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
        host = self.settings.host
        return HostRoot(
            sys=Path(host.sys),
            proc=Path(host.proc),
            dev=Path(host.dev),
            cgroup=Path(host.cgroup),
            etc=Path(host.etc),
            run=Path(host.run),
        )

    def path(self, absolute: str) -> Path:
        """Return where the node's file *absolute* lies for us; links of a copy stay below its root.

        /var/run is mostly a link to /run: followed as it is, it would lead to our own.
        """
        plain = self.root / absolute.lstrip("/")
        return plain if self.live else below(self.root, absolute) or plain
