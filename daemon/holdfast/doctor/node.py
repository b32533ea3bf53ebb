"""The node that is looked at: where its files lie, and what may be asked of it besides files."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.host.below import below
from holdfast.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The live node, or a copied or mounted one under a root of its own.

    Every path of the node, also one read from a configuration file, is looked up with `path`.
    """

    settings: Settings
    root: Path = Path("/")

    @property
    def live(self) -> bool:
        """Tell whether this is the running machine, so that programs and sockets may be asked."""
        return self.root == Path("/")

    def path(self, absolute: str) -> Path:
        """Return where the node's file *absolute* lies for us; links of a copy stay below its root.

        /var/run is mostly a link to /run: followed as it is, it would lead to our own.
        """
        plain = self.root / absolute.lstrip("/")
        return plain if self.live else below(self.root, absolute) or plain
