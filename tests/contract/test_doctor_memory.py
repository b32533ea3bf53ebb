"""The doctor on memory: limits, pods near theirs and too little to lock, on made-up nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.memory import memory_findings
from holdfast.settings import Settings
from simulated.proctree import ProcTree

MIB = 1 << 20
UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
POD = f"kubepods/burstable/pod{UID}"
ENOUGH = 64 << 30


class Sick:
    """A node below a folder, with VFIO group 3 as /dev/vfio/3, and the daemon as pid 9."""

    def __init__(self, folder: Path, terminal: str) -> None:
        self.terminal = terminal
        self.folder = folder
        self.tree = ProcTree(folder)
        (self.tree.root.proc / "meminfo").write_text(
            "MemTotal:        1048576 kB\nMemAvailable:     921600 kB\n"
        )
        self.write("sys/fs/cgroup/cgroup.controllers", "memory")

    def write(self, path: str, text: object) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def cgroup(self, path: str, **values: object) -> None:
        for name, value in values.items():
            self.write(f"sys/fs/cgroup/{path}/memory.{name}", value)

    def node(self, kind: str) -> None:
        path = self.folder / "dev" / kind
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.terminal)

    def limits(self, home: Path, memlock: object) -> None:
        (home / "limits").write_text(f"Max locked memory         {memlock}    {memlock}    bytes\n")

    def holder(self, *, memlock: object = "unlimited") -> None:
        home = self.tree.process(71, comm="train", cgroup=f"/{POD}/c")
        self.tree.open_file(home, 5, self.terminal)
        self.limits(home, memlock)

    def daemon(self, cgroup: str = "system.slice/holdfast.service") -> None:
        lock = self.write("var/lib/holdfast/lock", "").stat()
        device = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
        (self.tree.root.proc / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 9 {device} 0 EOF\n")
        self.tree.process(9, comm="holdfast", cgroup=f"/{cgroup}")

    def findings(self) -> list[Finding]:
        return list(memory_findings(Node(settings=Settings(), root=self.folder)))

    def one(self, check: str) -> Finding:
        (found,) = [each for each in self.findings() if each.check == check]
        return found


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Sick]:
    pair = os.openpty()
    yield Sick(tmp_path, os.ttyname(pair[1]))
    for fd in pair:
        os.close(fd)


@pytest.mark.parametrize(
    ("limit", "usage", "level", "said"),
    [
        (128 * MIB, 50 * MIB, Level.OK, "128.0 MiB by cgroup /system.slice/holdfast.service"),
        (64 * MIB, 50 * MIB, Level.OK, "64.0 MiB"),
        (64 * MIB - 1, 50 * MIB, Level.FAIL, "needs 64.0 MiB"),
        (128 * MIB, 125 * MIB, Level.WARN, "3.0 MiB left of the 128.0 MiB"),
        ("max", 50 * MIB, Level.OK, "1.0 GiB by the node's memory"),
    ],
)
def test_the_daemons_limit_is_held_against_its_need(
    sick: Sick, limit: object, usage: int, level: Level, said: str
) -> None:
    sick.daemon()
    sick.cgroup("system.slice/holdfast.service", max=limit, current=usage)

    found = sick.one("limit")

    assert found.level is level
    assert said in found.reason
    assert bool(found.remedy) is (level is not Level.OK)


@pytest.mark.parametrize(("limit", "level"), [(103, Level.WARN), (104, Level.OK), (128, Level.OK)])
def test_a_container_has_room_for_a_command_beside_the_daemon(
    sick: Sick, limit: int, level: Level
) -> None:
    sick.daemon(cgroup=f"{POD}/c")
    sick.cgroup(f"{POD}/c", max=limit * MIB, current=50 * MIB)

    assert sick.one("limit").level is level


def test_of_a_copied_node_without_a_daemon_no_limit_is_told(sick: Sick) -> None:
    assert [each.check for each in sick.findings()] == ["pods"]


@pytest.mark.parametrize("kind", ["vfio/3", "vfio/devices/vfio0", "nvidia0", "accel0"])
def test_a_pod_with_a_device_that_is_near_its_limit_is_named(sick: Sick, kind: str) -> None:
    sick.node(kind)
    sick.holder()
    sick.cgroup(f"{POD}/c", max="max", current=395 * MIB)
    sick.cgroup(POD, max=400 * MIB, current=395 * MIB)

    found = sick.one("near-limit")

    assert found.level is Level.WARN
    assert f"pid 71 (train) of pod {UID}, which has /dev/{kind}," in found.reason
    assert f"5.0 MiB left of the 400.0 MiB of cgroup /{POD}" in found.reason


def test_a_pod_above_memory_high_is_told_to_be_slowed(sick: Sick) -> None:
    sick.node("vfio/3")
    sick.holder()
    sick.cgroup(f"{POD}/c", max=400 * MIB, high=200 * MIB, current=200 * MIB)

    assert sick.one("slowed").level is Level.WARN


@pytest.mark.parametrize(
    ("kind", "memlock", "warned"),
    [
        ("vfio/3", 8 * MIB, True),
        ("vfio/3", ENOUGH, False),
        ("vfio/3", "unlimited", False),
        ("nvidia0", 8 * MIB, False),
    ],
)
def test_who_has_a_vfio_device_must_be_able_to_lock_its_memory(
    sick: Sick, kind: str, memlock: object, *, warned: bool
) -> None:
    sick.node(kind)
    sick.holder(memlock=memlock)

    checks = [each.check for each in sick.findings()]

    assert ("memlock" in checks) is warned
    if warned:
        assert "may lock 8.0 MiB" in sick.one("memlock").reason
        assert "IPC_LOCK" in sick.one("memlock").remedy


@pytest.mark.parametrize(
    ("kind", "memlock", "level"),
    [
        ("vfio/3", 8 * MIB, Level.WARN),
        ("vfio/3", "unlimited", Level.OK),
        ("nvidia0", 8 * MIB, None),
    ],
)
def test_what_the_runtime_gives_containers_to_lock_matters_where_there_is_vfio(
    sick: Sick, kind: str, memlock: object, level: Level | None
) -> None:
    sick.node(kind)
    sick.limits(sick.tree.process(50, comm="containerd"), memlock)

    levels = [each.level for each in sick.findings() if each.check == "runtime-memlock"]

    assert levels == ([] if level is None else [level])


def test_with_room_everywhere_it_says_so_once(sick: Sick) -> None:
    sick.node("vfio/3")
    sick.holder()
    sick.cgroup(f"{POD}/c", max=400 * MIB, current=100 * MIB)

    assert [(each.check, each.level) for each in sick.findings()] == [("pods", Level.OK)]
    assert sick.one("pods").reason.startswith("1 process has a device")


def test_this_machine_can_be_looked_at() -> None:
    found = list(memory_findings(Node(settings=Settings())))
    assert found[0].check == "limit"
    assert all(each.remedy for each in found if each.level is not Level.OK)
