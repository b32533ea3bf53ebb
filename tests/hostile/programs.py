"""The attackers' programs, built from C, and how they and the daemon are started."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.host.proc.procfs import INIT_CGROUP_NAMESPACE, INIT_PID_NAMESPACE

_NATIVE = Path(__file__).with_name("native")
_SCRIPTS = Path(__file__).with_name("scripts")


class Programs:
    """Programs in one folder, which is there already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon_starter = str(folder / "daemon")

    @property
    def init(self) -> str:
        """Return the program that is to be the first process."""
        return str(self.folder / "init")

    @property
    def tied(self) -> str:
        """Return the program that lets another end when who started it ends."""
        return str(self.folder / "tied")

    def build(self) -> str:
        """Build all; return why it cannot be done here, or nothing."""
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            return "it needs a C compiler (cc, gcc or clang)"
        for source in _NATIVE.glob("*.c"):
            target = self.folder / source.stem
            subprocess.run([compiler, "-O1", "-pthread", "-o", target, source], check=True)
        self._write_daemon_starter()
        return ""

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command of an attack, which waits until it is told to begin."""
        name, *rest = words
        enter = str(self.folder / "enter")
        script = _SCRIPTS / f"{name}.py"
        if script.exists():
            return [enter, sys.executable, "-I", str(script), *rest]
        return [enter, str(self.folder / name), *rest]

    def _write_daemon_starter(self) -> None:
        """Write a program that is Python, to which this looks like the host's own namespaces.

        Else the daemon would say that it cannot see the host's other processes, which is true.
        """
        namespaces = self.folder / "ns"
        namespaces.mkdir()
        (namespaces / "pid").symlink_to(INIT_PID_NAMESPACE)
        (namespaces / "cgroup").symlink_to(INIT_CGROUP_NAMESPACE)
        starter = Path(self.daemon_starter)
        starter.write_text(
            "#!/bin/sh\n"
            f"mount --bind {shlex.quote(str(namespaces))} /proc/$$/ns && "
            f'exec {shlex.quote(sys.executable)} "$@"\n'
        )
        starter.chmod(0o755)
