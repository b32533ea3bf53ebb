"""Where the host's files are: every path that is read starts here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoot:
    """The folders of the host, as this process sees them."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    cgroup: Path = Path("/sys/fs/cgroup")
    etc: Path = Path("/etc")

    @classmethod
    def under(cls, root: Path) -> Self:
        """Return the folders of a host whose root is mounted (or copied) at *root*."""
        return cls(
            sys=root / "sys",
            proc=root / "proc",
            dev=root / "dev",
            cgroup=root / "sys/fs/cgroup",
            etc=root / "etc",
        )

    def node(self, path: str) -> Path:
        """Return where the node that the host calls *path* (below /dev) can be reached."""
        return self.dev / path.removeprefix("/dev/")
