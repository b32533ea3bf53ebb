"""Builds a /proc of plain files and links, in which a process may have what no test could open."""

import os
from pathlib import Path

from holdfast.host.root import HostRoot

STARTED = 4711
_KERNEL_THREAD = 0x00200000


class ProcTree:
    """A /proc below a folder, with made-up processes, and links to those that are real."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.root.proc.mkdir(parents=True, exist_ok=True)
        self.root.cgroup.mkdir(parents=True, exist_ok=True)

    def process(
        self,
        pid: int,
        *,
        comm: str = "worker",
        state: str = "S",
        ppid: int = 1,
        threads: int = 1,
        started: int = STARTED,
        flags: int = 0,
        cgroup: str = "/",
        uid: int = 1000,
    ) -> Path:
        home = self.root.proc / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "fdinfo").mkdir()
        self.thread(pid, pid)
        fields = [state, ppid, pid, pid, 0, -1, flags, *[0] * 10, threads, 0, started, *[0] * 30]
        fields[17] = threads
        fields[19] = started
        (home / "stat").write_text(f"{pid} ({comm}) {' '.join(map(str, fields))}\n")
        (home / "status").write_text(f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (home / "cgroup").write_text(f"0::{cgroup}\n")
        (home / "maps").write_text("")
        return home

    def kernel_thread(self, pid: int) -> Path:
        return self.process(pid, comm="kworker/0:1", flags=_KERNEL_THREAD)

    def thread(self, pid: int, tid: int) -> Path:
        home = self.root.proc / str(pid) / "task" / str(tid)
        (home / "fd").mkdir(parents=True)
        (home / "fdinfo").mkdir()
        (home / "maps").write_text("")
        return home

    def real(self, pid: int) -> Path:
        """Show a real process, in the root cgroup."""
        home = self.root.proc / str(pid)
        home.mkdir()
        for name in ("fd", "fdinfo", "maps", "stat", "status", "task", "cmdline", "ns"):
            (home / name).symlink_to(f"/proc/{pid}/{name}")
        (home / "root").symlink_to("/")
        (home / "cgroup").write_text("0::/\n")
        return home

    def myself(
        self,
        *,
        namespace: str = "pid:[4026531836]",
        capabilities: int = 0x1FFFFFFFFFF,
        mountinfo: str = "",
        cgroup: str = "/",
        cgroup_namespace: str = "cgroup:[4026531835]",
    ) -> Path:
        """Say what this process may see."""
        home = self.process(os.getpid(), comm="holdfast", cgroup=cgroup)
        (self.root.proc / "self").symlink_to(str(os.getpid()))
        (home / "ns").mkdir()
        (home / "ns/pid").symlink_to(namespace)
        (home / "ns/cgroup").symlink_to(cgroup_namespace)
        with (home / "status").open("a") as status:
            status.write(f"CapEff:\t{capabilities:016x}\n")
        (home / "mountinfo").write_text(mountinfo)
        return home

    def devices(self, **majors: int) -> None:
        lines = "".join(f"{number:3} {name}\n" for name, number in majors.items())
        (self.root.proc / "devices").write_text(
            f"Character devices:\n  1 mem\n{lines}\nBlock devices:\n  7 loop\n"
        )

    @staticmethod
    def open_file(home: Path, number: int, target: str, *, info: str = "") -> None:
        (home / "fd" / str(number)).symlink_to(target)
        (home / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t0100002\nmnt_id:\t15\n{info}")
