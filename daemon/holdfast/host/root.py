"""Says where the files of the host's kernel lie, so that a test can bring their own."""

from pathlib import Path
from typing import Self

from msgspec import Struct

from holdfast.settings.sections import Host


class HostRoot(Struct, frozen=True, kw_only=True):
    """The folders that everything in `holdfast.host` reads and writes.

    `cgroup` is the cgroup filesystem of the host, not of our own container.
    """

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    cgroup: Path = Path("/sys/fs/cgroup")
    etc: Path = Path("/etc")
    run: Path = Path("/run")

    @classmethod
    def of(cls, host: Host) -> Self:
        """Return the root that the settings name."""
        return cls(
            sys=Path(host.sys),
            proc=Path(host.proc),
            dev=Path(host.dev),
            cgroup=Path(host.cgroup),
            etc=Path(host.etc),
            run=Path(host.run),
        )

    @classmethod
    def under(cls, root: Path) -> Self:
        """Return the root of a host whose tree begins at *root*."""
        return cls(
            sys=root / "sys",
            proc=root / "proc",
            dev=root / "dev",
            cgroup=root / "sys/fs/cgroup",
            etc=root / "etc",
            run=root / "run",
        )

    def node(self, path: str) -> Path:
        """Return where the device node *path*, spelled as in a container, lies on this host."""
        return self.dev / path.removeprefix("/dev/").lstrip("/")
