"""A node in a temporary folder: /sys, /proc and cgroups that are kept true while processes run."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from holdfast.model.ids import PciAddress
from simulated.hosttree import HostTree, replace
from simulated.proctree import ProcTree

PAUSE = "pause"
"""The container of a pod that is its sandbox."""
_LOOK = 0.01
_KUBEPODS = "kubepods.slice/kubepods-besteffort.slice"
_NAMESPACES = {"pid": "pid:[4026531836]", "mnt": "mnt:[4026531841]"}
_LINKS = ("fd", "fdinfo", "maps", "stat", "status", "comm", "task", "mountinfo")
_TELL_PARENT = """
exec 3<&0
{ read -r _ <&3; read -r _ _ _ parent _ </proc/self/stat; echo "$parent"; } &
"""


class SimulatedNode:
    """Four v5e chips (or more), and the processes that its runtime says are on it.

    What the kernel would do is done every 10 ms: `enable` follows the opens of each node,
    `cgroup.events` follows exits, and a write to `cgroup.kill` ends the members.
    """

    def __init__(self, folder: Path, *, chips: int = 4) -> None:
        """Build the node below *folder*."""
        self.tree = HostTree(folder)
        self.root = self.tree.root
        self._groups = {
            self.tree.tpu(
                f"0000:{5 + place >> 5:02x}:{5 + place & 31:02x}.0",
                group=10 + place,
                numa=place * 2 // chips,
            ): (f"/dev/vfio/{10 + place}")
            for place in range(chips)
        }
        self._members: dict[str, dict[int, str]] = {}
        self._enabled: dict[PciAddress, bool] = {}
        self._build_proc()
        self.root.cgroup.mkdir(parents=True, exist_ok=True)
        (self.root.cgroup / "cgroup.controllers").write_text("cpu memory pids\n")
        (self.root.cgroup / _KUBEPODS).mkdir(parents=True)
        self.add_process(os.getpid(), "/system.slice/kubelet.service")

    async def run(self) -> None:
        """Keep the trees true, until it is cancelled."""
        while True:
            self._keep()
            await asyncio.sleep(_LOOK)

    def close(self) -> None:
        """End what is left, and give the terminals back."""
        for members in self._members.values():
            for pid in members:
                _end(pid)
        self.tree.close()

    def node(self, path: str) -> Path:
        """Return where a container opens the node that the host calls *path*."""
        return self.root.node(path)

    def add_pod(self, uid: str) -> None:
        """Make the pod's cgroup, if it is not there."""
        folder = self._pod(uid)
        if not folder.exists():
            folder.mkdir()
            self._members[uid] = {}
            (folder / "cgroup.kill").write_text("")
            (folder / "cgroup.events").touch()
            self._write_members(uid)

    def enter(self, uid: str, container: str, pid: int) -> None:
        """Put a process into the container's cgroup, and on the node."""
        if pid in self._members[uid]:
            return
        self._members[uid][pid] = container
        self.add_process(
            pid, f"{self._name(uid)}/cri-containerd-{_container_id(uid, container)}.scope"
        )
        self._write_members(uid)

    def lives(self, uid: str) -> bool:
        """Tell whether any process is in the pod's cgroup."""
        return bool(self._members.get(uid))

    def remove_pod(self, uid: str) -> None:
        """Remove the pod's cgroup."""
        if self._members.pop(uid, None) is not None:
            shutil.rmtree(self._pod(uid))

    def has(self, pid: int) -> bool:
        """Tell whether a process of some pod is on the node."""
        return any(pid in members for members in self._members.values())

    def members(self, uid: str) -> tuple[int, ...]:
        """Return the processes of a pod, but the one of its sandbox."""
        members = self._members.get(uid, {})
        return tuple(pid for pid, container in members.items() if container != PAUSE)

    def add_process(self, pid: int, cgroup: str) -> None:
        """Show a real process on this node, in *cgroup*."""
        folder = self.root.proc / str(pid)
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        for name in _LINKS:
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(f"/proc/{pid}/{name}")
        links = {"root": "/", **{f"ns/{kind}": each for kind, each in _NAMESPACES.items()}}
        for name, told in links.items():
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(told)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def remove_process(self, pid: int) -> None:
        """Take a process that has ended off this node."""
        shutil.rmtree(self.root.proc / str(pid), ignore_errors=True)

    def reboot(self, *, groups: Mapping[int, int] | None = None) -> None:
        """Begin another boot: no pod's process or cgroup is left; *groups* get other numbers."""
        for uid, members in list(self._members.items()):
            for pid in members:
                _end(pid)
                self.remove_process(pid)
            self.remove_pod(uid)
        (self.root.proc / "sys/kernel/random/boot_id").write_text(f"{uuid4()}\n")
        renumbered = {
            address: groups[int(Path(path).name)]
            for address, path in self._groups.items()
            if groups is not None and int(Path(path).name) in groups
        }
        self.tree.regroup(renumbered)
        self._groups |= {each: f"/dev/vfio/{group}" for each, group in renumbered.items()}

    def _keep(self) -> None:
        """Do once what the kernel does all the time."""
        for address, path in self._groups.items():
            in_use = self.tree.in_use(path)
            if in_use != self._enabled.get(address, False):
                self._enabled[address] = in_use
                self.tree.write(address, "enable", str(int(in_use)))
        self._remove_dead()
        self._kill()

    def _build_proc(self) -> None:
        proc = self.root.proc
        # Whoever adopts orphans on this machine is the first process of this node.
        init = ProcTree(self.tree.folder).process(
            adopter(), comm="systemd", ppid=0, started=0, cgroup="/init.scope", uid=0
        )
        (init / "cmdline").touch()
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(_NAMESPACES["pid"])
        for name in ("status", "mountinfo"):
            (proc / "self" / name).symlink_to(f"/proc/self/{name}")
        (proc / "self/cgroup").write_text("0::/system.slice/holdfast.service\n")
        (proc / "stat").symlink_to("/proc/stat")
        (proc / "mounts").symlink_to("/proc/mounts")
        # No "vfio" among the drivers: a terminal can be opened twice, so an open
        # that succeeds proves nothing.
        (proc / "devices").write_text("Character devices:\n136 pts\n\nBlock devices:\n")
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{uuid4()}\n")

    def _remove_dead(self) -> None:
        """Take processes that ended off the node."""
        for uid, members in self._members.items():
            dead = [pid for pid in members if not _lives(pid)]
            for pid in dead:
                del members[pid]
                self.remove_process(pid)
            if dead:
                self._write_members(uid)

    def _kill(self) -> None:
        """Do what the kernel does when 1 is written to cgroup.kill."""
        for uid in list(self._members):
            file = f"{self._pod(uid)}/cgroup.kill"
            if os.stat(file).st_size:  # noqa: PTH116 - a hundred times a second for each pod
                Path(file).write_text("")
                for pid in self._members[uid]:
                    _end(pid)

    def _write_members(self, uid: str) -> None:
        folder, members = self._pod(uid), self._members[uid]
        replace(folder / "cgroup.procs", "")
        for container in dict.fromkeys(members.values()):
            below = folder / f"cri-containerd-{_container_id(uid, container)}.scope"
            below.mkdir(exist_ok=True)
        for below in folder.glob("*.scope"):
            pids = [
                pid
                for pid, container in members.items()
                if _container_id(uid, container) in below.name
            ]
            replace(below / "cgroup.procs", "".join(f"{pid}\n" for pid in pids))
        # In place, because it is watched; always of one length, so that it is never half written.
        with (folder / "cgroup.events").open("r+") as events:
            events.write(f"populated {int(bool(members))}\nfrozen 0\n")

    def _pod(self, uid: str) -> Path:
        return self.root.cgroup / self._name(uid).lstrip("/")

    @staticmethod
    def _name(uid: str) -> str:
        return f"/{_KUBEPODS}/kubepods-besteffort-pod{uid.replace('-', '_')}.slice"


@cache
def adopter() -> int:
    """Return the pid of who becomes the parent of orphans here: not 1 on everybody's desktop."""
    command = ["/bin/sh", "-c", _TELL_PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.wait()
        told, _ = parent.communicate(b"\n")
    return int(told)


def _container_id(uid: str, container: str) -> str:
    return sha256(f"{uid}/{container}".encode()).hexdigest()


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - asked as often
            stat = file.read()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
