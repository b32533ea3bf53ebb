"""Pods of the guest as kubelet lays them out: folders of the cgroup v2 tree."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vm.guest.waits import wait_until

CGROUP = Path("/sys/fs/cgroup")
Qos = Literal["guaranteed", "burstable", "besteffort"]
CgroupDriver = Literal["cgroupfs", "systemd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod's cgroup. Processes live in its containers, never in the pod's own folder."""

    uid: str
    path: Path
    driver: CgroupDriver = "cgroupfs"

    def container(self, name: str = "main") -> Path:
        """Return the cgroup of a container, made if it is not there; *name* stands for its id."""
        container_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.uid}/{name}").hex * 2
        scope = f"cri-containerd-{container_id}.scope" if self.driver == "systemd" else container_id
        folder = self.path / scope
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def populated(self) -> bool:
        return "populated 1" in (self.path / "cgroup.events").read_text()

    @property
    def processes(self) -> list[int]:
        """The pids of all containers."""
        return sorted(
            int(pid) for file in self.path.rglob("cgroup.procs") for pid in file.read_text().split()
        )

    def kill(self) -> None:
        """Kill every process of the pod at once, as the kernel's cgroup.kill does."""
        (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the empty pod's cgroups, as kubelet does once everything has exited."""
        wait_until(lambda: not self.populated, what=f"{self.path} to be empty")
        for folder in (*_deepest_first(self.path), self.path):
            folder.rmdir()


def make(uid: str, qos: Qos = "besteffort", driver: CgroupDriver = "cgroupfs") -> Pod:
    """Make the cgroup of a pod where kubelet with this cgroup driver would put it."""
    if driver == "systemd":
        level = "" if qos == "guaranteed" else f"-{qos}"
        parent = CGROUP / "kubepods.slice"
        if level:
            parent /= f"kubepods{level}.slice"
        path = parent / f"kubepods{level}-pod{uid.replace('-', '_')}.slice"
    else:
        parent = CGROUP / "kubepods"
        path = (parent if qos == "guaranteed" else parent / qos) / f"pod{uid}"
    path.mkdir(parents=True)
    return Pod(uid=uid, path=path, driver=driver)


def _deepest_first(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _deepest_first(entry)
            yield entry
