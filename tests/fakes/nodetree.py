"""A whole node below a folder, in order until a test breaks it, and the doctor's words on it."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from holdfast.cli import main
from holdfast.doctor.finding import Level
from simulated.hosttree import HostTree

CHIP = "0000:00:05.0"
SECOND = "0000:00:06.0"
BOOT = "5f4d1c2a-6b0e-4c39-9d7e-0a1b2c3d4e5f"


class Told(Struct, frozen=True):
    """What `holdfast doctor --root` printed of a tree, as JSON, and how it ended."""

    code: int
    findings: tuple[dict[str, str], ...]

    def of(self, area: str, check: str) -> dict[str, str]:
        """Return the worst finding of one check."""
        found = [each for each in self.findings if (each["area"], each["check"]) == (area, check)]
        assert found, f"nothing is told of {area} {check}: {self.findings}"
        return max(found, key=lambda each: list(Level).index(Level(each["level"])))

    def bad(self, area: str) -> dict[str, str]:
        """Return the level of each check of *area* that is not OK."""
        return {
            each["check"]: each["level"]
            for each in self.findings
            if each["area"] == area and each["level"] != "OK"
        }


class NodeTree:
    """The files of a node with two TPU chips, kubelet and holdfast, all as they should be."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.host = HostTree(folder)
        self._capsys = capsys
        self.host.tpu(CHIP, group=1)
        self.host.tpu(SECOND, group=2)
        (folder / "sys/module/vfio_iommu_type1").mkdir(parents=True)
        self.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n")
        self.write("proc/cmdline", "root=/dev/sda1 intel_iommu=on iommu=pt\n")
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT}\n")
        self.kubelet()
        self.mounts("/ ext4", "/proc proc", "/sys sysfs", "/sys/fs/cgroup cgroup2")

    def close(self) -> None:
        self.host.close()

    def write(self, path: str, text: str) -> Path:
        """Write a file of the node."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder of the node."""
        file = self.folder / path
        file.rmdir() if file.is_dir() else file.unlink()

    @property
    def plugins(self) -> Path:
        return self.folder / "var/lib/kubelet/device-plugins"

    def kubelet(self) -> None:
        """Lay out what kubelet has on disk; nobody listens on its sockets."""
        self.checkpoint({"google.com/tpu": [CHIP, SECOND]})
        for path in (
            self.plugins / "kubelet.sock",
            self.plugins.parent / "pod-resources/kubelet.sock",
        ):
            self.socket(path)

    def socket(self, path: Path) -> None:
        """Leave a socket there that nobody listens on any more."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            # By a short way: the path of a test's folder may be longer than a socket's.
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                left.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)

    def checkpoint(
        self,
        registered: Mapping[str, Sequence[str]],
        entries: Sequence[Mapping[str, Any]] = (),
    ) -> Path:
        """Write kubelet's checkpoint."""
        data = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": registered}
        text = json.dumps({"Data": data, "Checksum": 3695880397})
        return self.write("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", text)

    def mounts(self, *mounts: str) -> None:
        """Say what the node's first process has mounted: ``POINT KIND``, in order."""
        lines = [
            f"{20 + place} 1 8:{place} / {point} rw,relatime shared:1 - {kind} /dev/x rw\n"
            for place, (point, kind) in enumerate(mount.split() for mount in mounts)
        ]
        self.write("proc/1/mountinfo", "".join(lines))

    def told(self, *arguments: str) -> Told:
        """Run the doctor on the tree through the real command line."""
        command = ["doctor", "--root", str(self.folder), "--output", "json", *arguments]
        code = main(command)
        report = json.loads(self._capsys.readouterr().out)
        return Told(code=code, findings=tuple(report["findings"]))
