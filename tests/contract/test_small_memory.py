"""What others have in plenty, open files, mappings, arguments, files, is read in a little memory."""

import gc
import os
import platform
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fakes.books import name
from fakes.children import Start, ready
from fakes.inuse import holder_scan
from fakes.runtimes import RuntimeFolder, spec
from holdfast.app.answers.reports import moves_wanted
from holdfast.discovery.source import Sources
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.openfiles import TooMuchError, fdinfo_field, open_files
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.kubelet import checkpoint
from holdfast.model.ids import PodUid
from holdfast.model.text import MOST_MOVES
from holdfast.model.use.holders import DeviceAccess, Scan, ScanTarget
from simulated.proctree import ProcTree
from waiting import wait_until

KIB = 1 << 10
MIB = 1 << 20
UID = PodUid("6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b")
ONE = name("one")

_MANY_FILES = """
import os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
null = os.open("/dev/null", os.O_RDONLY)
for _ in range(18000):
    os.dup(null)
device = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print(flush=True)
sys.stdin.read()
"""

# Pages with other rights than their neighbours' are mappings of their own.
_MANY_MAPPINGS = """
import ctypes, mmap, sys
pages = mmap.mmap(-1, 20000 * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for page in range(0, 20000, 2):
    protect(address + page * mmap.PAGESIZE, mmap.PAGESIZE, 1)
print(flush=True)
sys.stdin.read()
"""


def peak(call: Callable[[], object]) -> int:
    """Return how many bytes *call* needed at one time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def scan(pid: int, rdev: int, *, maps: bool) -> Scan:
    target = ScanTarget(device=ONE, rdevs=frozenset({rdev}), addresses=frozenset())
    return holder_scan(HostRoot.under()).scan([target], pids=[pid], maps=maps)


@pytest.mark.parametrize("maps", [False, True])
def test_a_process_with_very_many_open_files_is_looked_at_file_by_file(
    start: Start, *, maps: bool
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 19_000:
        pytest.skip("this machine lets no process open 19,000 files")
    if Path("/proc/self/fd").stat().st_size == 0:
        pytest.skip("this kernel does not tell how many files a process has open (Linux 6.2)")
    main, other = os.openpty()
    try:
        pid = ready(start(_MANY_FILES, os.ttyname(other)))
        rdev = os.fstat(other).st_rdev

        def found() -> bool:
            # Where the machine has much else to do, they are not all read in time.
            holders = scan(pid, rdev, maps=maps).holders.get(ONE, ())
            return {each.process.pid for each in holders} == {pid}

        wait_until(found, what="all of its files to be read in time")
        assert peak(lambda: scan(pid, rdev, maps=maps)) < 1500 * KIB, "their numbers, once"
    finally:
        os.close(main)
        os.close(other)


def test_of_more_files_than_may_be_read_no_list_is_made(tmp_path: Path) -> None:
    """Also before Linux 6.2, which does not tell how many there are."""
    for number in range(10_000):
        (tmp_path / str(number)).touch()

    def look() -> None:
        with pytest.raises(TooMuchError):
            open_files(str(tmp_path), most=256)

    look()
    assert peak(look) < 100 * KIB


def test_a_process_with_very_many_mappings_is_looked_at_part_by_part(
    start: Start,
) -> None:
    pid = ready(start(_MANY_MAPPINGS))
    assert len(Path(f"/proc/{pid}/maps").read_bytes()) > MIB
    assert peak(lambda: scan(pid, 1, maps=True)) < 600 * KIB


def test_a_mapping_is_found_wherever_the_parts_of_the_file_end(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.myself()
    home = tree.process(70)
    line = "7f0000000000-7f0000001000 rw-s 00000000 00:0e 1 anon_inode:[vfio-device]\n"
    other = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
    for shift in range(0, 2 * len(line), 7):
        before = other * ((1 << 16) // len(other) - 2)
        filler = f"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 {'x' * shift}\n"
        (home / "maps").write_text(before + filler + line + other)
        target = ScanTarget(device=ONE, rdevs=frozenset({1}), addresses=frozenset())
        found = holder_scan(tree.root).scan([target], maps=True)
        assert [each.access for each in found.unattributed] == [frozenset({DeviceAccess.MAPPED})]


def test_of_an_open_file_with_very_many_locks_a_part_is_read(tmp_path: Path) -> None:
    info = tmp_path / "info"
    info.write_text("flags:\t02\n" + "lock:\t1: POSIX  ADVISORY  READ 70 00:07:9 0 0\n" * 100_000)
    assert fdinfo_field(str(info), b"flags:") == b"02"
    assert peak(lambda: fdinfo_field(str(info), b"scm_fds:")) < 200 * KIB


def test_a_mapping_with_a_path_of_any_length_is_a_gap_and_is_not_read(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.myself()
    deep = "/folder" * MIB
    text = f"7f0000000000-7f0000001000 rw-s 00000000 00:0e 1 {deep}\n"
    (tree.process(70) / "maps").write_text(text)
    target = ScanTarget(device=ONE, rdevs=frozenset({1}), addresses=frozenset())
    holders = holder_scan(tree.root)
    assert holders.scan([target], maps=True).unread == {70}
    assert peak(lambda: holders.scan([target], maps=True)) < 4 * MIB


def test_of_very_many_riddles_a_few_are_told(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.myself()
    line = "7f0000000000-7f0000001000 rw-s 00000000 00:0e 1 /dev/accel{} (deleted)\n"
    (tree.process(70) / "maps").write_text("".join(line.format(each) for each in range(500)))
    target = ScanTarget(device=ONE, rdevs=frozenset({1}), addresses=frozenset())
    assert 1 <= len(holder_scan(tree.root).scan([target], maps=True).gaps) <= 40


def test_of_a_path_of_any_length_a_little_is_told(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.myself()
    line = f"7f0000000000-7f0000001000 rw-s 00000000 00:0e 1 {'/folder' * 10_000} (deleted)\n"
    (tree.process(70) / "maps").write_text(line)
    target = ScanTarget(device=ONE, rdevs=frozenset({1}), addresses=frozenset())
    (gap,) = holder_scan(tree.root).scan([target], maps=True).gaps
    assert gap.startswith("pid 70 maps /folder/folder")
    assert len(gap) < 300


def test_the_daemon_may_open_as_many_files_as_the_kernel_allows() -> None:
    code = (
        "import resource as r; from holdfast.host.own import raise_open_files_limit; "
        "most = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, most)); "
        "print(raise_open_files_limit() == most, r.getrlimit(r.RLIMIT_NOFILE) == (most, most))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True True\n"


_FREED = """
import ctypes, threading
from holdfast.host.own import keep_freed_memory_small
keep_freed_memory_small()

together = threading.Barrier(4)
def allocate():
    block = bytearray(10_000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
for _ in range(3):
    large = bytearray(8 << 20)
    del large

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
told = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
"""


def test_threads_share_freed_memory_and_large_blocks_go_back_to_the_node() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library than the image's")

    ran = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)

    heaps = ET.fromstring(ran.stdout)
    assert len(heaps.findall("heap")) == 1
    mapped = heaps.find("system[@type='current']")
    assert mapped is not None
    assert int(mapped.attrib["size"]) < 8 << 20


@pytest.mark.slow
def test_of_thousands_of_processes_of_one_pod_what_is_the_same_is_kept_once(
    tmp_path: Path,
) -> None:
    tree = ProcTree(tmp_path)
    tree.myself()
    main, other = os.openpty()
    kept: list[tracemalloc.Snapshot] = []
    try:
        for pid in range(2_000_000, 2_001_000):
            cgroup = f"/kubepods/burstable/pod{UID}/{'ab' * 32}"
            tree.open_file(tree.process(pid, cgroup=cgroup), 5, os.ttyname(other))
        rdev = os.fstat(other).st_rdev
        target = ScanTarget(device=ONE, rdevs=frozenset({rdev}), addresses=frozenset())
        scans = holder_scan(tree.root, patience=30.0)

        def all_counted() -> bool:
            # Where the machine has much else to do, there is not time for each of them, and a thread
            # that has done its work may have to wait for a processor to end, with all that it has.
            found = scans.scan([target], owners={PodUid(UID)})
            for thread in threading.enumerate():
                if thread.name == "visits":
                    thread.join()
            gc.collect()
            if tracemalloc.is_tracing():
                kept.append(tracemalloc.take_snapshot())
            # The first few stand for all.
            return (len(found.holders[ONE]), found.more) == (64, {ONE: 1000 - 64})

        wait_until(all_counted, what="what is made once to be made")
        tracemalloc.start()
        try:
            wait_until(all_counted, what="all of its processes to be counted")
        finally:
            tracemalloc.stop()
    finally:
        os.close(main)
        os.close(other)
    # Not meant is a block of megabytes: Python's table of names, which all parts of a path are in, may
    # just have grown.
    small = sum(each.size for each in kept[-1].traces if each.size < 64 * KIB)
    assert small < 1000 * 150, kept[-1].statistics("lineno")[:10]


def test_of_very_long_arguments_the_beginning_is_read(start: Start) -> None:
    pid = ready(start("import sys; print(flush=True); sys.stdin.read()", *["x" * 100_000] * 10))
    arguments = Procfs(HostRoot.under()).arguments(pid)
    assert arguments[1] == "-c"
    assert sum(map(len, arguments)) <= 64 * KIB


def test_a_name_is_short_whatever_a_program_calls_itself(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    (tree.process(70, comm="exe") / "cmdline").write_bytes(b"/bin/" + b"n" * 50_000 + b"\0")
    assert Procfs(tree.root).program(70) == "n" * 64


def test_a_runtimes_file_that_is_too_large_says_nothing_of_its_pod(tmp_path: Path) -> None:
    runtime = RuntimeFolder(HostRoot.under(tmp_path).run)
    files = RuntimeFiles(HostRoot.under(tmp_path))
    file = runtime.bundle("s1", spec("sandbox", "s1", uid=UID))
    assert files.state(UID).only_pause
    os.truncate(file, 60 * MIB)
    assert peak(lambda: files.state(UID)) < 16 * MIB
    assert not files.state(UID).only_pause
    assert str(file) in files.state(UID).problem


def test_a_checkpoint_that_is_too_large_is_garbage(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("{}")
    os.truncate(file, 60 * MIB)
    assert peak(lambda: checkpoint.read(file, Sources())) < 40 * MIB
    found = checkpoint.read(file, Sources())
    assert found.state is checkpoint.CheckpointState.UNREADABLE
    assert "larger than 16 MiB" in found.problem


@pytest.mark.parametrize(
    ("asked", "told"), [(100, 100), (1, 1), (0, 1), (-1, 1), (10**9, MOST_MOVES), ("5", 5)]
)
def test_one_answer_has_a_bounded_part_of_the_history(asked: object, told: int) -> None:
    assert moves_wanted(asked) == told
