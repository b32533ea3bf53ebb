"""The scan for holders: real processes with real open files, and a /proc of plain files."""

import errno
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import name
from fakes.children import Start, ready
from fakes.inuse import holder_scan
from holdfast.host.proc.access import AccessSearch
from holdfast.host.proc.openfiles import FileTables, TooMuchError
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import _HolderSample
from holdfast.host.use.survey import Uses
from holdfast.model.ids import PciAddress, ProcessId
from holdfast.model.use.holders import DeviceAccess, Holder, Scan, ScanTarget
from simulated.proctree import ProcTree
from waiting import wait_until

UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
_OTHER_UID = UID.replace("6f1e", "7f1e")
ONE = PciAddress("0000:00:05.0")
TWO = PciAddress("0000:00:06.0")
_CLONE_FILES = 0x400
_MEMORY = "".join(
    f"7f5c8a000000-7f5c8a100000 {('rw-', 'r-x')[each % 2]}s {each:08x} 00:01 7   /dev/zero (deleted)\n"
    for each in range(40)
)
"""A file of memory that is mapped in many pieces, as a gVisor sandbox maps its own."""


class Terminals:
    """Pseudo-terminals: character devices that anybody may make."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def make(self) -> tuple[str, int]:
        """Return the path and the device number of a new one."""
        pair = os.openpty()
        self._fds += pair
        return os.ttyname(pair[1]), os.fstat(pair[1]).st_rdev

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    made = Terminals()
    yield made
    made.close()


@pytest.fixture
def hold(start: Start) -> Start:
    """Start a child that runs some Python, and return it when it is ready."""

    def run(code: str) -> "subprocess.Popen[str]":
        script = f"import os, sys, threading, time\n{code}\nprint(flush=True)\nsys.stdin.read()\n"
        child = start(script)
        ready(child)
        return child

    return run


def _other_thread(pid: int) -> int:
    (other,) = {int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()} - {pid}
    return other


def _fds(folder: str) -> set[str]:
    return {each.name for each in Path(folder).iterdir()}


def _tables() -> FileTables:
    """Return what compares tables of open files; skip the test where the kernel does not."""
    tables = FileTables(HostRoot.under())
    if not tables.usable:
        pytest.skip("this kernel does not compare file tables here")
    return tables


def target(device: str, rdev: int, *addresses: PciAddress) -> ScanTarget:
    return ScanTarget(device=name(device), rdevs=frozenset({rdev}), addresses=frozenset(addresses))


def access(scan: Scan, device: str) -> dict[int, set[DeviceAccess]]:
    return {each.process.pid: set(each.access) for each in scan.holders.get(name(device), ())}


def loose(scan: Scan) -> dict[int, set[DeviceAccess]]:
    return {each.process.pid: set(each.access) for each in scan.unattributed}


class TestOnRealProcesses:
    def test_a_process_that_has_the_node_open_is_named_with_its_start_time(
        self, terminals: Terminals, hold: Start
    ) -> None:
        path, rdev = terminals.make()
        child = hold(f"kept = open({path!r}, 'rb')")
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)])
        assert access(scan, "a") == {child.pid: {DeviceAccess.NODE}}
        (holder,) = scan.holders[name("a")]
        assert holder.process.start_ticks == Procfs(HostRoot.under()).start_ticks(child.pid)
        assert holder.uid == os.getuid()
        assert scan.processes > 1
        assert scan.seconds > 0

    def test_a_node_under_another_name_is_the_same_device(
        self, terminals: Terminals, hold: Start, tmp_path: Path
    ) -> None:
        path, rdev = terminals.make()
        (tmp_path / "innocent").symlink_to(path)
        child = hold(f"kept = open({str(tmp_path / 'innocent')!r}, 'rb')")
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid])
        assert access(scan, "a") == {child.pid: {DeviceAccess.NODE}}

    def test_a_child_that_inherited_the_file_is_a_holder_too(
        self, terminals: Terminals, hold: Start
    ) -> None:
        path, rdev = terminals.make()
        child = hold(
            f"kept = open({path!r}, 'rb')\nforked = os.fork()\nif not forked: time.sleep(600)\nopen('/dev/null')"
        )
        forked = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])
        try:
            scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid, forked])
        finally:
            os.kill(forked, signal.SIGKILL)  # or the end of its parent's output is never seen
        assert set(access(scan, "a")) == {child.pid, forked}

    @pytest.mark.parametrize(("flag", "holds"), [("os.O_PATH", False), ("3", True)])
    def test_a_mere_reference_by_o_path_holds_nothing(
        self, terminals: Terminals, hold: Start, flag: str, *, holds: bool
    ) -> None:
        """A file that is open for neither reading nor writing, for ioctl(2) alone, is open."""
        path, rdev = terminals.make()
        child = hold(f"kept = os.open({path!r}, {flag} | os.O_NOCTTY)")
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid])
        assert bool(scan.holders) is holds

    @pytest.mark.skipif(
        os.getuid() != 0, reason="only root may look into a process whose leader has exited"
    )
    def test_threads_of_a_leader_that_exited_are_looked_at(
        self, terminals: Terminals, hold: Start
    ) -> None:
        path, rdev = terminals.make()
        code = f"kept = open({path!r}, 'rb')\nimport ctypes\nthreading.Thread(target=time.sleep, args=(600,)).start()\nprint(flush=True)\nctypes.CDLL(None).syscall({60 if os.uname().machine == 'x86_64' else 93}, 0)"
        child = hold(code)
        procfs = Procfs(HostRoot.under())

        def leader_exited() -> bool:
            facts = procfs.process(child.pid)
            return facts is not None and facts.state == "Z"

        wait_until(leader_exited, what="the leader's exit")
        facts = procfs.process(child.pid)
        assert facts is not None
        assert facts.can_act
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid])
        assert access(scan, "a") == {child.pid: {DeviceAccess.NODE}}

    @pytest.mark.parametrize("compares", [True, False])
    def test_a_thread_with_a_file_table_of_its_own_is_found_by_any_look(
        self,
        terminals: Terminals,
        hold: Start,
        tmp_path: Path,
        compares: bool,
    ) -> None:
        """Its table may even have the same numbers in it as the leader's."""
        path, rdev = terminals.make()
        code = f"""
import ctypes
ready = threading.Event()
number = os.open("/dev/null", os.O_RDONLY)
def alone():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    os.close(number)
    assert os.open({path!r}, os.O_RDONLY) == number
    ready.set()
    time.sleep(600)
threading.Thread(target=alone, daemon=True).start()
ready.wait()
"""
        child = hold(code)
        thread = f"/proc/{child.pid}/task/{_other_thread(child.pid)}"
        assert _fds(f"/proc/{child.pid}/fd") == _fds(f"{thread}/fd")
        root = HostRoot.under()
        if not compares:  # as on a kernel without kcmp
            tree = ProcTree(tmp_path)
            tree.myself()
            tree.real(child.pid)
            root = tree.root
        else:
            _tables()
        scan = holder_scan(root).scan([target("a", rdev)], pids=[child.pid])
        assert set(access(scan, "a")) == {child.pid}

    def test_threads_that_share_one_file_table_are_told_to_and_others_not_to(self) -> None:
        tables, ends = _tables(), threading.Event()
        thread = threading.Thread(target=ends.wait)
        thread.start()
        assert thread.native_id is not None
        assert tables.same(os.getpid(), thread.native_id)
        ends.set()
        thread.join()
        with subprocess.Popen(["sleep", "600"]) as child:
            assert not tables.same(os.getpid(), child.pid)
            child.kill()
        assert not tables.same(os.getpid(), child.pid), "a process that is gone shares nothing"

    def test_of_processes_that_share_a_file_table_the_files_are_read_once(
        self, terminals: Terminals, hold: Start
    ) -> None:
        """All processes of a gVisor sandbox share one table, with hundreds of files."""
        root, tables = HostRoot.under(), _tables()
        path, rdev = terminals.make()
        child = hold(f"""
import ctypes
kept = os.open({path!r}, os.O_RDONLY)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
done, told = os.pipe()
if not os.fork():
    os.close(kept)
    os.write(told, b"closed")
    time.sleep(600)
os.read(done, 9)
clone = {56 if os.uname().machine == "x86_64" else 220}
if not ctypes.CDLL(None).syscall(clone, {_CLONE_FILES | signal.SIGCHLD}, 0, 0, 0, 0):
    time.sleep(600)
""")
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        apart, sharing = (int(each) for each in children)
        try:
            search = AccessSearch(root, [target("a", rdev)], None, tables, maps=False, hidden=False)
            assert search.at(child.pid).access == {name("a"): {DeviceAccess.NODE}}
            assert search.at(sharing, most=0).access == {name("a"): {DeviceAccess.NODE}}
            with pytest.raises(TooMuchError):
                search.at(apart, most=0)
            scan = holder_scan(root).scan([target("a", rdev)], pids=[child.pid, apart, sharing])
            assert set(access(scan, "a")) == {child.pid, sharing}
        finally:
            os.kill(apart, signal.SIGKILL)
            os.kill(sharing, signal.SIGKILL)

    def test_a_file_whose_path_is_too_long_to_be_told_hides_nothing(
        self, terminals: Terminals, hold: Start, tmp_path: Path
    ) -> None:
        path, rdev = terminals.make()
        child = hold(f"""
os.chdir({str(tmp_path)!r})
for _ in range(20):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
low = open("file", "w")
kept = open({path!r}, "rb")
high = open("file", "w")
""")
        links = list(Path(f"/proc/{child.pid}/fd").iterdir())
        with pytest.raises(OSError, match="File name too long"):
            [link.readlink() for link in links]
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid])
        assert not scan.gaps
        assert access(scan, "a") == {child.pid: {DeviceAccess.NODE}}

    @pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a /dev")
    def test_a_plain_file_that_is_called_like_a_device_and_removed_makes_no_look_incomplete(
        self, hold: Start
    ) -> None:
        """Any container's root may do so, without any capability and without any device."""
        child = hold("""
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # private, with all below
assert libc.mount(b"none", b"/dev", b"tmpfs", 0, None) == 0
made = os.open("/dev/accel0", os.O_RDWR | os.O_CREAT)
os.ftruncate(made, 4096)
kept = mmap.mmap(made, 4096)
kept[0] = 1
os.unlink("/dev/accel0")
os.close(made)
""")
        assert "/dev/accel0 (deleted)" in Path(f"/proc/{child.pid}/maps").read_text()
        scan = holder_scan(HostRoot.under()).scan([target("a", 1)], pids=[child.pid], maps=True)
        assert scan.gaps == ()

    def test_a_mapped_device_is_found_by_its_number_through_the_process_own_root(
        self, hold: Start
    ) -> None:
        rdev = Path("/dev/zero").stat().st_rdev
        child = hold(
            "import mmap\nkept = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096, flags=mmap.MAP_PRIVATE)\nos.closerange(3, 10)"
        )
        scan = holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[child.pid], maps=True)
        assert access(scan, "a") == {child.pid: {DeviceAccess.MAPPED}}
        assert not scan.gaps

    def test_memory_that_the_kernel_makes_files_of_is_no_gap(self, hold: Start) -> None:
        child = hold("""
import mmap
memory = os.memfd_create("accel0")
os.ftruncate(memory, 4096)
kept = [mmap.mmap(memory, 4096), mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)]
""")
        told = Path(f"/proc/{child.pid}/maps").read_text()
        assert "/memfd:accel0 (deleted)" in told
        assert "/dev/zero (deleted)" in told
        root = HostRoot.under()
        search = AccessSearch(
            root, [target("a", 1)], None, FileTables(root), maps=True, hidden=False
        )
        assert not search.at(child.pid)
        assert not search.unexplained

    def test_this_process_itself_is_left_out(self, terminals: Terminals) -> None:
        _, rdev = terminals.make()
        assert (
            not holder_scan(HostRoot.under()).scan([target("a", rdev)], pids=[os.getpid()]).holders
        )

    def test_a_pid_that_is_gone_is_no_gap(self) -> None:
        child = subprocess.Popen(["true"])
        child.wait()
        scan = holder_scan(HostRoot.under()).scan([target("a", 1)], pids=[child.pid], maps=True)
        assert not scan.gaps or scan.gaps == holder_scan(HostRoot.under()).scan([], pids=[]).gaps

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
    def test_another_users_process_is_a_gap_without_the_capabilities(self, hold: Start) -> None:
        child = hold("")
        scanned, told = os.pipe()
        other = os.fork()
        if not other:  # no Python started as another user could read this checkout
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            gaps = holder_scan(HostRoot.under()).scan([], pids=[child.pid]).gaps
            os.write(told, "; ".join(gaps).encode())
            os._exit(0)
        os.waitpid(other, 0)
        os.close(told)
        with os.fdopen(scanned) as answer:
            said = answer.read()
        assert f"pid {child.pid} (python" in said
        assert "Permission denied; holdfast lacks CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE" in said


def _mapped(path: str, *, kind: str = "s") -> str:
    """Return the line of a mapping of what the kernel calls *path*."""
    return f"7f5c8a000000-7f5c8a100000 rw-{kind} 00000000 00:05 99   {path}\n"


def _maps(tree: ProcTree, path: str, flags: str, *, kind: str = "s") -> Path:
    """Return the folder of a process that has mapped what the kernel calls *path*."""
    home, line = tree.process(70), _mapped(path, kind=kind)
    (home / "maps").write_text(line)
    (home / "smaps").write_text(f"{line}VmFlags: {flags}\n")
    return home


def _beside(tree: ProcTree, path: str, *, many: int = 1) -> None:
    """Let a process have the node at *path* open, and so many device fds."""
    home = tree.process(70)
    tree.open_file(home, 3, path)
    for number in range(7, 7 + many):
        tree.open_file(home, number, "anon_inode:[vfio-device]")


class TestOnATree:
    def scan(self, tree: ProcTree, *targets: ScanTarget, maps: bool = False) -> Scan:
        return holder_scan(tree.root).scan(targets, maps=maps)

    def test_the_pod_and_container_of_a_holder_come_from_its_cgroup(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        container = "ab" * 32
        cgroup = f"/kubepods/burstable/pod{UID}/{container}"
        tree.open_file(tree.process(70, cgroup=cgroup, comm="a) (b"), 3, path)
        (holder,) = self.scan(tree, target("a", rdev)).holders[name("a")]
        assert (holder.pod, holder.container, holder.cgroup) == (UID, container, cgroup)
        assert (holder.command, holder.uid, holder.process.start_ticks) == ("a) (b", 1000, 4711)

    def test_a_program_started_through_proc_self_exe_goes_by_its_first_argument(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        home = tree.process(70, comm="exe")
        (home / "cmdline").write_bytes(b"/usr/bin/runsc-sandbox\0boot\0")
        tree.open_file(home, 3, path)
        (holder,) = self.scan(tree, target("a", rdev)).holders[name("a")]
        assert holder.command == "runsc-sandbox"

    def test_a_device_fd_goes_to_the_function_that_the_kernel_names(self, tree: ProcTree) -> None:
        home = tree.process(70)
        for number, function in ((7, TWO), (8, "0000:00:1f.0")):
            info = f"vfio-device-syspath: /sys/devices/pci0000:00/{function}\n"
            tree.open_file(home, number, "anon_inode:[vfio-device]", info=info)
        scan = self.scan(tree, target("one", 1, ONE), target("two", 2, TWO))
        assert access(scan, "two") == {70: {DeviceAccess.DEVICE_FD}}
        assert not access(scan, "one")
        assert not scan.unattributed

    def test_a_device_fd_beside_one_group_node_is_that_groups(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        _beside(tree, path)
        scan = self.scan(tree, target("one", rdev, ONE), target("two", 2, TWO))
        assert access(scan, "one") == {70: {DeviceAccess.NODE, DeviceAccess.DEVICE_FD}}
        assert not scan.unattributed

    def test_a_device_fd_without_any_node_is_unattributed(self, tree: ProcTree) -> None:
        tree.open_file(tree.process(70), 7, "anon_inode:[vfio-device]")
        scan = self.scan(tree, target("one", 1, ONE))
        assert not scan.holders
        assert loose(scan) == {70: {DeviceAccess.DEVICE_FD}}

    def test_more_device_fds_than_the_open_nodes_explain_stay_unattributed(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        _beside(tree, path, many=2)
        scan = self.scan(tree, target("one", rdev, ONE))
        assert 70 in access(scan, "one")
        assert loose(scan) == {70: {DeviceAccess.DEVICE_FD}}

    def test_a_device_of_two_functions_explains_two_device_fds(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        _beside(tree, path, many=2)
        assert not self.scan(tree, target("one", rdev, ONE, TWO)).unattributed

    def test_a_device_fd_beside_a_group_that_nobody_asked_about_is_not_blamed_on_the_target(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        tree.devices(vfio=os.major(rdev))
        _beside(tree, path)
        scan = self.scan(tree, target("other", 1, ONE))
        assert not scan.holders
        assert not scan.unattributed

    def test_mappings_are_looked_at_only_on_request(self, tree: ProcTree) -> None:
        (tree.process(70) / "maps").write_text(_mapped("anon_inode:[vfio-device]"))
        assert not self.scan(tree, target("one", 1, ONE)).unattributed
        assert loose(self.scan(tree, target("one", 1, ONE), maps=True)) == {
            70: {DeviceAccess.MAPPED}
        }

    @pytest.mark.parametrize("around", ["", _MEMORY], ids=["alone", "amid many of one file"])
    def test_a_mapped_node_is_told_by_its_number(
        self, tree: ProcTree, terminals: Terminals, around: str
    ) -> None:
        path, rdev = terminals.make()
        home = tree.process(70)
        (home / "root/dev").mkdir(parents=True)
        (home / "root/dev/accel0").symlink_to(path)
        (home / "maps").write_text(f"{around}{_mapped('/dev/accel0')}{around}")
        assert access(self.scan(tree, target("one", rdev), maps=True), "one") == {
            70: {DeviceAccess.MAPPED}
        }

    def test_a_mapped_node_is_looked_for_on_the_node_where_the_processs_root_does_not_show_it(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        tree.root.dev.mkdir()
        (tree.root.dev / "accel0").symlink_to(path)
        (tree.process(70) / "maps").write_text(_mapped("/dev/accel0"))
        assert access(self.scan(tree, target("one", rdev), maps=True), "one") == {
            70: {DeviceAccess.MAPPED}
        }

    def test_a_mapping_of_a_removed_node_makes_the_scan_incomplete(self, tree: ProcTree) -> None:
        (tree.process(70) / "maps").write_text(_mapped("/dev/accel9 (deleted)"))
        scan = self.scan(tree, target("one", 1), maps=True)
        assert scan.gaps == ("pid 70 maps /dev/accel9, which is gone: it cannot be told apart",)

    @pytest.mark.parametrize(
        ("flags", "found"), [("rd wr sh mr mw me ms sd", set()), ("rd wr sh io pf dd", {70})]
    )
    def test_what_is_at_a_path_now_need_not_be_what_was_mapped_by_it(
        self, tree: ProcTree, terminals: Terminals, flags: str, found: set[int]
    ) -> None:
        """Else who maps a plain file, and then makes a node of that name, seems to have a device."""
        path, rdev = terminals.make()
        home = tree.process(70)
        (home / "root/dev").mkdir(parents=True)
        (home / "root/dev/accel0").symlink_to(path)
        line = _mapped("/dev/accel0 (deleted)")
        (home / "maps").write_text(line)
        (home / "smaps").write_text(
            "7f5c00000000-7f5c00100000 rw-p 00000000 00:00 0\nVmFlags: rd wr io pf\n"
            f"{line}Size: 1024 kB\nVmFlags: {flags} \n"
        )
        scan = self.scan(tree, target("one", rdev), maps=True)
        assert set(access(scan, "one")) == found
        assert not scan.gaps

    def test_device_memory_of_a_removed_node_is_a_gap_and_is_told_in_plain_letters(
        self, tree: ProcTree
    ) -> None:
        _maps(tree, "/dev/accel\x1b[2J (deleted)", "rd wr sh io pf")
        scan = self.scan(tree, target("one", 1), maps=True)
        assert scan.gaps == (
            "pid 70 maps /dev/accel\\x1b[2J, which is gone: it cannot be told apart",
        )

    @pytest.mark.parametrize("kind", ["s", "p"])
    @pytest.mark.parametrize(("flags", "gap"), [("rd wr io pf", True), ("rd wr sd", False)])
    def test_device_memory_of_a_node_that_was_made_elsewhere_and_is_gone_is_a_gap(
        self, tree: ProcTree, kind: str, flags: str, *, gap: bool
    ) -> None:
        home = _maps(tree, "/tmp/x (deleted)", flags, kind=kind)
        (home / "root/tmp").mkdir(parents=True)
        (home / "root/tmp/x").write_text("another file")
        scan = self.scan(tree, target("one", 1), maps=True)
        text = "pid 70 maps /tmp/x, which is gone: it cannot be told apart"
        assert scan.gaps == ((text,) if gap else ())

    @pytest.mark.parametrize(
        "path",
        [
            "/nowhere",
            "/new\\012line",
            "/memfd:x",
            "/memfd:x (deleted)",
            "/SYSV00000000 (deleted)",
            "/dev/zero2",
            "/dev/zero (deleted)",
            "/dev/shm/x",
        ],
    )
    @pytest.mark.parametrize(("flags", "gap"), [("rd wr io pf", True), ("rd wr sd", False)])
    def test_no_name_hides_a_node_that_is_mapped(
        self, tree: ProcTree, path: str, flags: str, *, gap: bool
    ) -> None:
        """Who may make a node may call it as the kernel calls memory."""
        home = _maps(tree, path, flags)
        (home / "root").mkdir()
        (home / "root/new\\012line").write_text("")
        assert bool(self.scan(tree, target("one", 1), maps=True).gaps) is gap

    @pytest.mark.parametrize(
        ("state", "threads", "gap"), [("S", 1, True), ("Z", 1, False), ("Z", 2, True)]
    )
    def test_what_is_not_found_of_a_process_that_has_ended_since_is_no_gap(
        self, tree: ProcTree, state: str, threads: int, *, gap: bool
    ) -> None:
        """Its paths lead nowhere any more; whoever inherited its mappings is looked at as well."""
        home = tree.process(70, state=state, threads=threads)
        (home / "maps").write_text(_mapped("/usr/lib/gconv-modules.cache"))
        assert bool(self.scan(tree, target("one", 1), maps=True).gaps) is gap

    @pytest.mark.parametrize(("flags", "gap"), [("rd wr io pf", True), ("rd wr sd", False)])
    def test_a_node_outside_of_the_root_that_its_process_has_now_is_not_what_is_there_inside(
        self, tree: ProcTree, tmp_path: Path, flags: str, *, gap: bool
    ) -> None:
        jail = tmp_path / "jail"
        jail.mkdir()
        (jail / "x").write_text("")
        (_maps(tree, "/x", flags) / "root").symlink_to(jail)
        assert bool(self.scan(tree, target("one", 1), maps=True).gaps) is gap

    def test_a_node_inside_of_that_root_is_told_by_its_number(
        self, tree: ProcTree, terminals: Terminals, tmp_path: Path
    ) -> None:
        path, rdev = terminals.make()
        jail = tmp_path / "jail"
        jail.mkdir()
        (jail / "x").symlink_to(path)
        (_maps(tree, f"{jail}/x", "rd wr io pf") / "root").symlink_to(jail)
        assert access(self.scan(tree, target("one", rdev), maps=True), "one") == {
            70: {DeviceAccess.MAPPED}
        }

    def test_what_cannot_be_looked_into_is_a_gap_only_where_something_can_act(
        self, tree: ProcTree
    ) -> None:
        for home in (
            tree.kernel_thread(2),
            tree.process(70, state="Z"),
            tree.process(71, state="X"),
            tree.process(72, comm="hidden"),
        ):
            shutil.rmtree(home / "fd")
            (home / "fd").symlink_to("fd")
        (gap,) = self.scan(tree, target("one", 1)).gaps
        assert gap.startswith("pid 72 (hidden) cannot be inspected")

    def test_an_open_device_that_cannot_be_looked_at_is_a_gap(self, tree: ProcTree) -> None:
        # A security module can refuse the file and show its path: here nothing is at the path.
        tree.open_file(tree.process(70, comm="hidden"), 3, "/dev/nothing/here")
        tree.open_file(tree.process(71), 3, "/srv/on-a-server-that-is-gone")
        assert self.scan(tree, target("one", 1)).gaps == (
            "pid 70 (hidden) cannot be inspected: an open device cannot be looked at",
        )

    def test_what_a_pid_had_is_not_blamed_on_the_process_that_has_the_pid_next(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        home = tree.process(70, comm="old")
        tree.open_file(home, 3, path)
        maps = home / "maps"
        maps.unlink()
        os.mkfifo(maps)  # a look waits for us there, when it has read the open files

        def meanwhile() -> None:
            with maps.open("w"):
                home.rename(tree.root.proc / "gone")
                tree.process(70, comm="new")

        threading.Thread(target=meanwhile, daemon=True).start()
        scan = holder_scan(tree.root, patience=30.0).scan([target("a", rdev)], maps=True)
        assert not scan.holders

    def test_a_uid_that_cannot_be_read_is_not_told_as_roots(
        self, tree: ProcTree, terminals: Terminals
    ) -> None:
        path, rdev = terminals.make()
        home = tree.process(70)
        (home / "status").write_text("Name:\tworker\nUid:\n")
        tree.open_file(home, 3, path)
        (holder,) = self.scan(tree, target("a", rdev)).holders[name("a")]
        assert holder.uid is None

    def test_a_uid_is_left_out_where_naming_others_took_all_the_time(
        self, tree: ProcTree, terminals: Terminals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, rdev = terminals.make()
        tree.open_file(tree.process(70), 3, path)
        monkeypatch.setattr("holdfast.host.use.holders._NAMING", -1.0)
        (holder,) = self.scan(tree, target("a", rdev)).holders[name("a")]
        assert (holder.process.pid, holder.uid) == (70, None)

    def test_the_mappings_of_an_exited_leader_are_read_from_a_thread(self, tree: ProcTree) -> None:
        tree.process(70, state="Z", threads=2)
        (tree.thread(70, 71) / "maps").write_text(_mapped("anon_inode:[vfio-device]"))
        assert loose(self.scan(tree, target("one", 1, ONE), maps=True)) == {
            70: {DeviceAccess.MAPPED}
        }

    def test_entries_that_vanish_or_make_no_sense_are_passed_over(self, tree: ProcTree) -> None:
        home = tree.process(70)
        tree.open_file(home, 3, "/nowhere/at/all")
        tree.open_file(home, 4, "socket:[12]")
        (tree.root.proc / "71").mkdir()
        (tree.root.proc / "72").symlink_to("/proc/nothing")
        (tree.root.proc / "73x").mkdir()
        (tree.process(74) / "stat").write_text("garbage")
        scan = self.scan(tree, target("one", 1, ONE), maps=True)
        assert not scan.gaps

    def test_who_has_a_device_and_cannot_be_told_from_the_next_of_its_pid_is_a_gap(
        self, tree: ProcTree
    ) -> None:
        (tree.process(74) / "stat").write_text("garbage")
        tree.open_file(tree.root.proc / "74", 7, "anon_inode:[vfio-device]")
        scan = self.scan(tree, target("one", 1, ONE), maps=True)
        assert scan.gaps
        assert loose(scan) == {74: {DeviceAccess.DEVICE_FD}}

    def test_a_foreign_pid_namespace_is_a_gap(self, tmp_path: Path) -> None:
        tree = ProcTree(tmp_path)
        tree.myself(namespace="pid:[4026532001]")
        gaps = self.scan(tree, target("one", 1)).gaps
        assert ["hostPID" in gap for gap in gaps] == [True]

    def test_a_node_of_one_user_is_seen_in_full_without_any_capability(
        self, tmp_path: Path, terminals: Terminals
    ) -> None:
        tree = ProcTree(tmp_path)
        tree.myself(capabilities=0)
        path, rdev = terminals.make()
        tree.open_file(tree.process(70), 3, path)
        tree.kernel_thread(2)
        scan = self.scan(tree, target("a", rdev))
        assert not scan.gaps
        assert access(scan, "a") == {70: {DeviceAccess.NODE}}

    def test_a_proc_that_cannot_be_listed_is_a_gap_and_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "proc").write_text("")
        scan = holder_scan(HostRoot.under(tmp_path)).scan([target("one", 1)])
        assert not scan.holders

    def test_a_holder_reads_as_people_need_it(self, tree: ProcTree, terminals: Terminals) -> None:
        path, rdev = terminals.make()
        tree.open_file(tree.process(70, cgroup=f"/kubepods/pod{UID}"), 3, path)
        holders: tuple[Holder, ...] = self.scan(tree, target("a", rdev)).holders[name("a")]
        assert str(holders[0]) == f"pid 70 (worker) of pod {UID} [node open]"


def test_however_many_of_a_pod_have_a_device_another_pods_holder_is_told_of() -> None:
    """So is one in a sandbox: what it is called decides whose it is."""
    kept = _HolderSample()
    uses = Uses(
        process=ProcessId(7, 7),
        command="python",
        cgroup=f"/kubepods/pod{UID}",
        access=((name("a"), frozenset({DeviceAccess.NODE})),),
        unnamed=frozenset(),
    )
    for _ in range(100):
        kept.wanted(uses)
    assert not kept.wanted(uses)
    assert kept.wanted(replace(uses, cgroup=f"/kubepods/pod{_OTHER_UID}"))
    assert kept.wanted(replace(uses, command="runsc-sandbox"))
    machines = [kept.wanted(replace(uses, command=f"qemu-{number}")) for number in range(100)]
    assert machines[0]
    assert not machines[-1], "a name that anybody can take makes nobody another one"


def test_who_has_exited_has_nothing_of_what_another_had_that_has_exited_too(
    terminals: Terminals, hold: Start
) -> None:
    """Neither has a table of files any more: to compare them says that they are the same."""
    root, tables = HostRoot.under(), _tables()
    path, rdev = terminals.make()
    had = hold(f"kept = [os.open({path!r}, os.O_RDONLY) for _ in range(100)]")
    other = hold("")
    search = AccessSearch(root, [target("a", rdev)], None, tables, maps=False, hidden=False)
    assert search.at(had.pid)
    for each in (had, other):
        each.kill()
        os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)
    assert tables.same(had.pid, other.pid)
    assert not search.at(other.pid)


class _AlwaysTheSame(FileTables):
    """Says of any two processes that they share their table of open files."""

    def __init__(self) -> None:
        self.usable = True

    def same(self, _one: int, _other: int) -> bool:
        return True


def _many_open(tree: ProcTree, pid: int, *more: str) -> Path:
    """Make a process with so many open files that they are remembered, and those named *more*."""
    home = tree.process(pid)
    for number in range(100):
        tree.open_file(home, number, "pipe:[7]")
    for number, file in enumerate(more, start=100):
        tree.open_file(home, number, file)
    return home


def _search(tree: ProcTree, rdev: int) -> AccessSearch:
    tables = _AlwaysTheSame()
    return AccessSearch(tree.root, [target("a", rdev)], None, tables, maps=False, hidden=False)


def test_what_a_process_had_is_not_that_of_one_that_shares_files_with_the_next_of_its_pid(
    tmp_path: Path, terminals: Terminals
) -> None:
    path, rdev = terminals.make()
    tree = ProcTree(tmp_path)
    had = _many_open(tree, 60, path)
    search = _search(tree, rdev)
    assert search.at(60)
    had.rename(tmp_path / "former")  # kept, so that its inode is not given away again
    _many_open(tree, 60)
    _many_open(tree, 61)
    assert not search.at(61)


def test_a_process_of_which_nothing_can_be_read_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file left to open, neither its files nor what it is can be read."""
    tree = ProcTree(tmp_path)
    stat = tree.process(70) / "stat"
    stat.unlink()
    stat.mkdir()

    def none_left(*_: object, **__: object) -> list[bytes]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("holdfast.host.proc.access.open_files", none_left)
    scan = holder_scan(tree.root).scan([], pids=[70])
    assert [each for each in scan.gaps if "pid 70" in each], scan.gaps
    assert "Too many open files" in scan.gaps[-1]
