"""Says where the files of the host's kernel lie, so that a test can bring their own."""

from pathlib import Path

from msgspec import Struct


class HostRoot(Struct, frozen=True, kw_only=True):
    """The folders that everything in `holdfast.host` reads and writes.

    `cgroup` is the cgroup filesystem of the host, not of our own container.
    """

    sys: Path
    proc: Path
    dev: Path
    cgroup: Path
    etc: Path
    run: Path

    @classmethod
    def under(cls, root: Path = Path("/")) -> "HostRoot":
        """Return the root of a host whose tree begins at *root*, by default this machine's."""
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
