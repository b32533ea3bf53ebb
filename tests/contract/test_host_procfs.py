"""Processes, visibility and boot: on the real /proc, and on files with odd content."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.host.own import boot_id, visibility
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from simulated.proctree import ProcTree
from waiting import wait_until

REAL = HostRoot.under()


class TestProcesses:
    def test_this_process_is_as_the_system_says(self) -> None:
        procfs = Procfs(REAL)
        facts = procfs.process(os.getpid())
        assert facts is not None
        assert facts.process.pid == procfs.own_pid() == os.getpid()
        assert facts.ppid == os.getppid()
        assert facts.state in {"R", "S"}
        assert facts.threads >= 1
        assert not facts.kernel_thread
        assert procfs.start_ticks(os.getpid()) == facts.process.start_ticks
        assert procfs.uid(os.getpid()) == os.geteuid()
        assert os.getpid() in procfs.pids()

    def test_a_proc_that_is_not_there_or_shows_nothing_is_no_node_without_processes(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        for name in ("missing", "empty"):
            procfs = Procfs(replace(REAL, proc=tmp_path / name))
            with pytest.raises(HostError, match="mount the host's /proc"):
                procfs.pids()

    def test_a_start_is_told_in_seconds_since_the_boot(self) -> None:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        child = subprocess.Popen(["sleep", "60"])
        try:
            facts = Procfs(REAL).process(child.pid)
            assert facts is not None
            started = Procfs(REAL).started_at(facts.process)
            assert before - 0.1 <= started <= time.clock_gettime(time.CLOCK_BOOTTIME) + 0.1
        finally:
            child.kill()
            child.wait()

    def test_an_exited_process_cannot_act_and_a_reaped_one_is_gone(self) -> None:
        procfs = Procfs(REAL)
        child = subprocess.Popen(["true"])

        def exited() -> bool:
            facts = procfs.process(child.pid)
            return facts is not None and not facts.can_act

        wait_until(exited, what="the exit")
        child.wait()
        assert procfs.process(child.pid) is None
        assert procfs.start_ticks(child.pid) is None
        assert procfs.uid(child.pid) is None
        assert procfs.program(child.pid) is None

    @pytest.mark.parametrize("comm", ["a b", "a) R 1 (b", "", "(((", ")))", "\n"])
    def test_a_name_may_hold_anything(self, tmp_path: Path, comm: str) -> None:
        tree = ProcTree(tmp_path)
        tree.process(70, comm=comm, state="Z", ppid=3, threads=2, started=99)
        facts = Procfs(tree.root).process(70)
        assert facts is not None
        assert (facts.comm, facts.state, facts.ppid, facts.threads) == (comm, "Z", 3, 2)
        assert facts.process.start_ticks == 99
        assert facts.can_act

    @pytest.mark.parametrize(
        "text",
        ["", "70", "70 (a", "70 (a) S 1", "70 (a) S x x x x x x x x x x x x x x x x x x x x"],
    )
    def test_a_stat_that_makes_no_sense_is_no_process(self, tmp_path: Path, text: str) -> None:
        tree = ProcTree(tmp_path)
        (tree.process(70) / "stat").write_text(text)
        assert Procfs(tree.root).process(70) is None

    def test_a_kernel_thread_is_known_as_one(self, tmp_path: Path) -> None:
        tree = ProcTree(tmp_path)
        tree.kernel_thread(2)
        facts = Procfs(tree.root).process(2)
        assert facts is not None
        assert facts.kernel_thread

    def test_a_drivers_major_number_is_that_of_its_character_devices(self, tmp_path: Path) -> None:
        assert Procfs(REAL).char_major("mem") == 1
        assert Procfs(REAL).char_major("vfio-nonsense") is None
        tree = ProcTree(tmp_path)
        assert Procfs(tree.root).char_major("vfio") is None
        tree.devices(vfio=246)
        assert Procfs(tree.root).char_major("vfio") == 246
        assert Procfs(tree.root).char_major("loop") is None


class TestVisibility:
    def test_a_process_with_everything_lacks_nothing(self, tmp_path: Path) -> None:
        tree = ProcTree(tmp_path)
        tree.myself()
        sight = visibility(tree.root)
        assert sight.in_init_pid_namespace
        assert (sight.lacking, sight.blinding, sight.hides) == ((), (), ())

    def test_lacking_capabilities_are_named(self, tmp_path: Path) -> None:
        tree = ProcTree(tmp_path)
        tree.myself(capabilities=1 << 19)
        sight = visibility(tree.root)
        assert sight.lacking == ("CAP_DAC_READ_SEARCH", "CAP_KILL")
        assert sight.blinding == ("CAP_DAC_READ_SEARCH",)
        assert sight.hides == ()

    def test_another_pid_namespace_hides_processes(self, tmp_path: Path) -> None:
        tree = ProcTree(tmp_path)
        tree.myself(namespace="pid:[4026532255]")
        (text,) = visibility(tree.root).hides
        assert "set hostPID: true" in text

    @pytest.mark.parametrize(
        ("options", "capabilities", "hidden"),
        [
            ("rw", 0, False),
            ("rw,hidepid=0", 0, False),
            ("rw,hidepid=off", 0, False),
            ("rw,hidepid=1", 0, False),
            ("rw,hidepid=noaccess", 0, False),
            ("rw,hidepid=2", 0, True),
            ("rw,gid=4,hidepid=invisible", 0, True),
            ("rw,hidepid=ptraceable", 0, True),
            ("rw,hidepid=2", 1 << 19, False),
        ],
    )
    def test_hidepid_counts_only_where_it_hides(
        self, tmp_path: Path, options: str, capabilities: int, hidden: bool
    ) -> None:
        tree = ProcTree(tmp_path)
        proc = tree.root.proc
        mounts = f"20 1 0:3 / /other/proc rw - proc proc rw,hidepid=2\n21 1 0:4 / {proc} rw,nosuid shared:9 - proc proc {options}\n"
        tree.myself(capabilities=capabilities, mountinfo=mounts)
        assert bool(visibility(tree.root).hides) is hidden

    def test_what_is_not_told_is_unknown_and_hides_nothing(self, tmp_path: Path) -> None:
        sight = visibility(HostRoot.under(tmp_path))
        assert (sight.capabilities, sight.in_init_pid_namespace, sight.hides) == (None, None, ())
        assert "CAP_SYS_PTRACE" in sight.lacking

    def test_the_real_process_can_be_judged(self) -> None:
        sight = visibility(REAL)
        assert sight.capabilities is not None
        assert sight.in_init_pid_namespace is not None


class TestBoot:
    def test_the_boot_id_is_the_kernels(self) -> None:
        assert boot_id(REAL) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    @pytest.mark.parametrize(
        "text", [None, "", "banana\n", "00000000-0000-0000-0000-00000000000g\n"]
    )
    def test_without_a_boot_id_there_is_no_guess(self, tmp_path: Path, text: str | None) -> None:
        tree = ProcTree(tmp_path)
        path = tree.root.proc / "sys/kernel/random/boot_id"
        if text is not None:
            path.parent.mkdir(parents=True)
            path.write_text(text)
        with pytest.raises(HostError, match="cannot read the boot id"):
            boot_id(tree.root)
