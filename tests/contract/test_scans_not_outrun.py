"""A scan is not outrun: who comes, hands on or hides a device meanwhile is seen, or a gap."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from inotify_simple import INotify, flags

from fakes.books import name
from fakes.children import Start, ready
from fakes.faultydisk import not_here
from fakes.inuse import holder_scan
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.own import visibility
from holdfast.host.proc.access import AccessSearch, ProcessUse
from holdfast.host.proc.openfiles import (
    MOST_FILES,
    FileTables,
    SocketTable,
    has_more,
    open_files,
)
from holdfast.host.proc.procfs import Procfs
from holdfast.host.proc.visits import Visits
from holdfast.host.root import HostRoot
from holdfast.host.use.survey import Survey
from holdfast.model.ids import PodUid
from holdfast.model.use.holders import DeviceAccess, Scan, ScanTarget
from simulated.proctree import ProcTree
from waiting import wait_until

ONE = name("one")
UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
_LONGEST = 5.0
_SCANS = 10
_NO_RING = 38, 1  # ENOSYS and EPERM


class Terminal:
    """A character device that anybody may make, and which this process does not keep open."""

    def __init__(self) -> None:
        self._main, other = os.openpty()
        self.path = os.ttyname(other)
        self.rdev = os.fstat(other).st_rdev
        os.close(other)
        self.target = ScanTarget(device=ONE, rdevs=frozenset({self.rdev}), addresses=frozenset())

    def close(self) -> None:
        os.close(self._main)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def _pids(scan: Scan) -> list[int]:
    return [each.process.pid for each in scan.holders.get(ONE, ())]


def _of(scan: Scan, *pids: int) -> tuple[str, ...]:
    """Return the gaps that name one of *pids* first."""
    return tuple(gap for gap in scan.gaps if any(gap.startswith(f"pid {pid} ") for pid in pids))


@contextmanager
def _meanwhile(home: Path, change: Callable[[], object]) -> Iterator[None]:
    """Let *change* happen when a look has come to the mappings of the process in *home*."""
    maps = home / "maps"
    maps.unlink(missing_ok=True)
    os.mkfifo(maps)

    def run() -> None:
        with maps.open("w"):
            change()
            if maps.exists():
                maps.unlink()
                maps.write_text("")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join()


_FIRST_BORN = 5_000_000
"""Above 2**22, and so never the pid of the test itself, which the tree has too."""


@contextmanager
def _births(tree: ProcTree, first: int, *, many: int = 1) -> Iterator[list[int]]:
    """Let so *many* be born whenever the last one before is looked at; yield the last of each time.

    A look is at one when it comes to its mappings.
    """
    born, over = [first], threading.Event()
    os.mkfifo(_without_maps(tree.process(first)))

    def run() -> None:
        while True:
            with (tree.root.proc / str(born[-1]) / "maps").open("w"):
                if over.is_set():
                    return
                for pid in range(born[-1] + 1, born[-1] + many):
                    tree.process(pid)
                os.mkfifo(_without_maps(tree.process(born[-1] + many)))
                born.append(born[-1] + many)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield born
    over.set()
    fd = os.open(tree.root.proc / str(born[-1]) / "maps", os.O_RDWR)
    thread.join()
    os.close(fd)


def _without_maps(home: Path) -> Path:
    (home / "maps").unlink()
    return home / "maps"


@contextmanager
def _order_of(homes: Mapping[int, Path]) -> Iterator[list[int]]:
    """Yield the processes in the order in which a look comes to their mappings."""
    order: list[int] = []
    with INotify() as events:
        pids = {events.add_watch(home / "maps", flags.OPEN): pid for pid, home in homes.items()}
        yield order
        order += [pids[event.wd] for event in events.read(timeout=0)]


@contextmanager
def _answers_once(file: Path, text: str = "") -> Iterator[None]:
    """Let the first who reads *file* have *text*, and any other wait until the end."""
    with _no_answer(file):
        thread = threading.Thread(target=file.write_text, args=[text], daemon=True)
        thread.start()
        yield
        thread.join()


@contextmanager
def _no_answer(file: Path) -> Iterator[None]:
    """Let whoever reads *file* wait until the end."""
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    try:
        yield
    finally:
        fd = os.open(file, os.O_RDWR)
        file.unlink()
        os.close(fd)


@contextmanager
def _socket(folder: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        yield str(folder / "socket")


def test_a_process_that_was_born_since_the_others_were_listed_is_looked_at(
    tree: ProcTree, terminal: Terminal
) -> None:
    home = tree.process(70)
    with _meanwhile(home, lambda: tree.open_file(tree.process(60), 3, terminal.path)):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert _pids(scan) == [60]
    assert not scan.gaps


def test_whoever_was_looked_at_before_is_looked_at_again_where_a_holder_has_ended(
    tree: ProcTree, terminal: Terminal
) -> None:
    """It may have handed on what it had open to anybody, in a message on a socket."""
    heir, holder = tree.process(60), tree.process(65)
    tree.open_file(holder, 3, terminal.path)

    def hand_on() -> None:
        tree.open_file(heir, 3, terminal.path)
        shutil.rmtree(holder)

    with _meanwhile(tree.process(70), hand_on):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert _pids(scan) == [60]
    assert not scan.gaps


def test_a_holder_that_cannot_be_read_any_more_has_not_ended(
    tree: ProcTree, terminal: Terminal
) -> None:
    """Such as when no more files can be opened."""
    holder = tree.process(65)
    tree.open_file(holder, 3, terminal.path)

    def hide() -> None:
        (holder / "stat").unlink()
        (holder / "stat").mkdir()

    with _meanwhile(tree.process(70), hide):
        scan = holder_scan(tree.root, patience=30.0).scan(
            [terminal.target], pids=[65, 70], maps=True
        )
    assert _pids(scan) == [65]


def test_what_a_process_had_that_ended_while_it_was_looked_at_is_looked_for_again(
    tree: ProcTree, terminal: Terminal
) -> None:
    heir, holder = tree.process(60), tree.process(65)
    tree.open_file(holder, 3, terminal.path)

    def hand_on() -> None:
        tree.open_file(heir, 3, terminal.path)
        shutil.rmtree(holder)

    with _meanwhile(holder, hand_on):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert _pids(scan) == [60]


def test_one_that_lives_is_the_same_process_when_the_kernel_drops_its_folder(
    terminal: Terminal,
) -> None:
    root = HostRoot.under()
    search = AccessSearch(root, [terminal.target], None, FileTables(root), maps=False, hidden=False)
    drops = Path("/proc/sys/vm/drop_caches")
    with search.following(os.getpid()) as same:
        try:
            drops.write_text("2")
        except OSError as error:
            pytest.skip(f"the kernel's caches cannot be dropped here: {error}")
        assert same()


_IN_FLIGHT = """
import os, socket, sys
one, other = socket.socketpair()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
socket.send_fds(one, [b"!"], [fd])
os.close(fd)
print(flush=True)
sys.stdin.readline()
socket.recv_fds(other, 1, 1)
print(flush=True)
sys.stdin.read()
"""


def test_a_file_in_a_message_that_nobody_takes_is_a_gap_until_it_is_taken(
    terminal: Terminal, start: Start
) -> None:
    child = start(_IN_FLIGHT, terminal.path)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    scan = holder_scan(HostRoot.under()).scan([terminal.target], pids=[child.pid], hidden=True)
    assert "files are in messages on its unix sockets" in "".join(_of(scan, child.pid))
    assert not _pids(scan)
    child.stdin.write("\n")
    child.stdin.flush()
    child.stdout.readline()
    scan = holder_scan(HostRoot.under()).scan([terminal.target], pids=[child.pid], hidden=True)
    assert _pids(scan) == [child.pid]
    assert not _of(scan, child.pid)


@pytest.mark.parametrize("taken", [False, True])
def test_what_comes_by_a_socket_after_its_process_was_looked_at_is_seen(
    tree: ProcTree, terminal: Terminal, tmp_path: Path, *, taken: bool
) -> None:
    """Two that pass a file to and fro are each looked at while the other has it."""
    home = tree.process(60)

    def comes() -> None:
        (home / "fdinfo/3").write_text("scm_fds: 1\n")
        if taken:
            tree.open_file(home, 4, terminal.path)

    with _socket(tmp_path) as path:
        tree.open_file(home, 3, path, info="scm_fds: 0\n")
        with _meanwhile(tree.process(70), comes):
            holders = holder_scan(tree.root, patience=30.0)
            scan = holders.scan([terminal.target], maps=True, hidden=True)
    assert _pids(scan) == ([60] if taken else [])
    assert "files are in messages on its unix sockets" in "".join(_of(scan, 60))


_HAS_A_SOCKET = """
import os, socket, sys
one, other = socket.socketpair()
print(one.fileno(), flush=True)
for line in sys.stdin:
    if line == "open\\n":
        more = os.open(os.devnull, os.O_RDONLY)
    elif line == "close\\n":
        os.close(more)
    else:
        socket.send_fds(other, [b"!"], [1])
    print(flush=True)
"""


def test_a_table_with_a_socket_tells_of_a_file_that_came_since_and_of_none_that_went(
    start: Start,
) -> None:
    child = start(_HAS_A_SOCKET)
    assert child.stdin is not None
    assert child.stdout is not None
    name = child.stdout.readline().strip().encode()
    folder = f"/proc/{child.pid}/fd"
    files = len(open_files(folder))
    if not has_more(folder, []):
        pytest.skip("the kernel counts open files since Linux 6.2 only")
    table = SocketTable(folder, files, (name,))
    assert not table.has_more()
    for does, more in (("open", True), ("close", False), ("send", True)):
        child.stdin.write(f"{does}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "\n"
        assert table.has_more() is more
    gone = 1 << 22  # no kernel has such a pid
    assert not SocketTable(f"/proc/{gone}/fd", 0, (b"3",)).has_more()


@pytest.mark.parametrize(
    ("state", "flags", "gap"),
    [("D", 0x4, True), ("S", 0, False), ("Z", 0x4, False), ("S", 0x200004, False)],
    ids=["exits", "has no files", "has exited", "is the kernel's"],
)
def test_a_process_that_exits_and_shows_no_files_is_a_gap(
    tree: ProcTree, terminal: Terminal, state: str, flags: int, *, gap: bool
) -> None:
    tree.process(70, state=state, flags=flags)
    scan = holder_scan(tree.root).scan([terminal.target], maps=True, hidden=True)
    assert bool(_of(scan, 70)) is gap


def test_a_thread_with_files_of_its_own_that_exits_and_shows_none_is_a_gap(
    tree: ProcTree, terminal: Terminal
) -> None:
    home = tree.process(70)
    tree.open_file(home, 3, "pipe:[7]")
    tree.thread(70, 71)
    stat = home / "task/71/stat"
    assert not _of(holder_scan(tree.root).scan([terminal.target], hidden=True), 70)
    shutil.copy(tree.process(80, state="D", flags=0x4) / "stat", stat)
    assert _of(holder_scan(tree.root).scan([terminal.target], hidden=True), 70)


def test_what_never_settles_is_a_gap(tree: ProcTree, terminal: Terminal) -> None:
    """Where whoever has the device has ended whenever all others were looked at."""
    tree.open_file(tree.process(60), 3, terminal.path)
    maps = tree.process(70) / "maps"
    maps.unlink(missing_ok=True)
    os.mkfifo(maps)

    def hand_on() -> None:
        for pid in (60, 61, 62):
            with maps.open("w"):
                shutil.rmtree(tree.root.proc / str(pid))
                tree.open_file(tree.process(pid + 1), 3, terminal.path)
                maps.unlink()
                os.mkfifo(maps)

    thread = threading.Thread(target=hand_on, daemon=True)
    thread.start()
    scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    thread.join()
    assert 62 in _pids(scan), "it had the device a moment ago"
    assert scan.gaps == (
        "pid 62 (worker) cannot be inspected: it ended, and may have handed on what it had open",
    )


def test_where_births_never_end_a_look_does_and_whoever_was_born_last_is_looked_at(
    tree: ProcTree, terminal: Terminal
) -> None:
    """Each has what its parent has: of a chain of forks the last one is the one to look at."""
    heir = tree.process(60)
    (tree.root.proc / "loadavg").write_text("0.50 0.40 0.30 1/99 60\n")
    with (
        _meanwhile(tree.process(70), lambda: tree.open_file(heir, 3, terminal.path)),
        _births(tree, _FIRST_BORN) as born,
    ):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert _pids(scan) == [60]
    assert "processes come and go faster than they can be looked at" in "".join(scan.gaps)
    assert len(born) < 50


def test_a_crowd_that_is_born_as_fast_as_it_is_looked_at_is_a_gap_soon(
    tree: ProcTree, terminal: Terminal
) -> None:
    """Others wait for the look, and more of it shows no more."""
    with _births(tree, _FIRST_BORN, many=100) as born:
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert "processes come and go faster than they can be looked at" in "".join(scan.gaps)
    assert len(born) < 8


@pytest.mark.slow
def test_who_comes_when_a_look_has_taken_too_long_is_a_gap(
    tree: ProcTree, terminal: Terminal
) -> None:
    """A look is made on the one lane for all, and others wait for it."""

    def come_late() -> None:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + _LONGEST, what="the end of its time")
        tree.open_file(tree.process(60), 3, terminal.path)

    with _meanwhile(tree.process(70), come_late):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert not _pids(scan)
    assert scan.unread == {60}


def test_of_those_that_have_much_open_the_owners_come_first_and_then_the_smallest(
    tree: ProcTree, terminal: Terminal
) -> None:
    """The time for all of them is short, and theirs are the devices."""
    homes = {
        70: (tree.process(70), 700),
        71: (tree.process(71), 300),
        72: (tree.process(72, cgroup=f"/kubepods/pod{UID}/1"), 700),
    }
    for home, files in homes.values():
        for number in range(files):
            (home / "fd" / str(number)).symlink_to("/dev/null")
    with _order_of({pid: home for pid, (home, _) in homes.items()}) as order:
        holders = holder_scan(tree.root, patience=30.0)
        holders.scan([terminal.target], maps=True, owners={PodUid(UID)})
    assert order == [72, 71, 70]


def test_what_one_takes_out_of_another_after_it_was_looked_at_is_found(
    tree: ProcTree, terminal: Terminal
) -> None:
    """By a pidfd: it is in the one that was looked at first when the other is looked at."""
    taker = tree.process(60)
    tree.open_file(taker, 3, "anon_inode:[pidfd]")
    with _meanwhile(tree.process(70), lambda: tree.open_file(taker, 4, terminal.path)):
        holders = holder_scan(tree.root, patience=30.0)
        scan = holders.scan([terminal.target], maps=True, hidden=True)
    assert _pids(scan) == [60]


def test_messages_in_more_processes_than_can_be_looked_at_twice_again_are_gaps(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    """Else whoever has messages in some hundred processes hides the one with the device."""
    with _socket(tmp_path) as path:
        for pid in (60, 70):
            tree.open_file(tree.process(pid), 3, path, info="scm_fds: 1\n")
        with _answers_once(tree.root.proc / "70/maps"):
            holders = holder_scan(tree.root, patience=0.5)
            scan = holders.scan([terminal.target], maps=True, hidden=True)
    assert scan.unread == {60, 70}
    assert "files are in messages on its unix sockets" in "".join(_of(scan, 60))


def test_a_message_in_a_process_that_gives_no_answer_any_more_is_a_gap(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    home = tree.process(70)
    with _socket(tmp_path) as path:
        tree.open_file(home, 3, path)
        with _answers_once(home / "fdinfo/3", "scm_fds: 1\n"):
            scan = holder_scan(tree.root, patience=0.2).scan([terminal.target], hidden=True)
    assert scan.unread == {70}


def test_a_message_in_a_process_that_takes_long_to_read_is_a_gap(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    home = tree.process(70)
    for number in range(300):
        (home / "fd" / str(number)).symlink_to("/dev/null")
    with _socket(tmp_path) as path:
        tree.open_file(home, 300, path, info="scm_fds: 1\n")
        scan = holder_scan(tree.root).scan([terminal.target], hidden=True)
    assert scan.unread == {70}


def test_a_process_that_gives_no_answer_about_its_files_is_a_gap(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    home = tree.process(70)
    with _socket(tmp_path) as path:
        tree.open_file(home, 3, path)
        with _no_answer(home / "fdinfo/3"):
            scan = holder_scan(tree.root, patience=0.2).scan([terminal.target], hidden=True)
    assert scan.unread == {70}


def test_a_pid_that_is_another_processs_since_the_others_were_listed_is_looked_at(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    before = tree.process(60)

    def begin_anew() -> None:
        before.rename(tmp_path / "ended")
        tree.open_file(tree.process(60, started=4712), 3, terminal.path)

    with _meanwhile(tree.process(70), begin_anew):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert _pids(scan) == [60]


def _search(tree: ProcTree, terminal: Terminal) -> AccessSearch:
    tables = FileTables(tree.root)
    return AccessSearch(tree.root, [terminal.target], None, tables, maps=False, hidden=False)


def test_a_file_that_is_never_where_it_was_listed_is_a_gap(
    tree: ProcTree, terminal: Terminal
) -> None:
    home = tree.process(60)
    tree.open_file(home, 3, terminal.path)
    numbers = iter(range(3, 100))

    def move() -> None:
        number = next(numbers)
        (home / "fd" / str(number)).unlink()
        tree.open_file(home, number + 1, terminal.path)

    use = _search(tree, terminal).at(60, beat=move)
    assert not use
    assert use.unseen == "it opens and closes files faster than they can be looked at"


def test_a_file_that_moves_on_while_a_list_is_made_is_in_the_next_one(
    tree: ProcTree, terminal: Terminal
) -> None:
    """One list that has nothing of it is no sign that it was closed."""
    home = tree.process(60)
    tree.open_file(home, 3, terminal.path)

    def close_it() -> None:
        (home / "fd/3").unlink()
        tree.open_file(home, 4, "/dev/null")

    def open_it() -> None:
        tree.open_file(home, 5, terminal.path)

    steps = iter([close_it, open_it])

    def go_on() -> None:
        for step in islice(steps, 1):
            step()

    use = _search(tree, terminal).at(60, beat=go_on)
    assert use.access == {ONE: {DeviceAccess.NODE}}


_HOP = """
import ctypes, os, sys, time
kept = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
ctypes.CDLL(None).prctl(36, 1)
if os.fork():
    os.close(kept)
    print(flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
    os._exit(0)
while not os.path.exists(sys.argv[2]):
    time.sleep(float(sys.argv[3]))
    if os.fork():
        os._exit(0)
"""


@pytest.mark.parametrize("stay", ["0", "0.02"])
def test_a_device_that_is_handed_on_by_fork_is_never_seen_as_nobodys(
    terminal: Terminal,
    start: Start,
    tmp_path: Path,
    stay: str,
) -> None:
    """Daemons and launchers do that once; a program that never stops must not get through."""
    stop = tmp_path / "stop"
    holders = holder_scan(HostRoot.under())
    before = set(holders.scan([terminal.target]).gaps)
    chain = start(_HOP, terminal.path, str(stop), stay)
    ready(chain)
    try:
        for _ in range(_SCANS):
            scan = holders.scan([terminal.target])
            assert _pids(scan) or set(scan.gaps) - before
    finally:
        stop.touch()
        chain.wait()


_HOP_WITH_A_MESSAGE = """
import os, socket, sys, time
one, other = socket.socketpair()
kept = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
socket.send_fds(other, [b"!"], [kept])
os.close(kept)
print(flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
    if os.fork():
        os._exit(0)
"""


def test_a_device_in_a_message_that_is_handed_on_by_fork_is_never_seen_as_nobodys(
    terminal: Terminal, start: Start, tmp_path: Path
) -> None:
    """Who has the sockets next was not born when all were listed."""
    stop = tmp_path / "stop"
    holders = holder_scan(HostRoot.under())
    before = set(holders.scan([terminal.target]).gaps)
    chain = start(_HOP_WITH_A_MESSAGE, terminal.path, str(stop))
    ready(chain)
    try:
        for _ in range(_SCANS):
            assert set(holders.scan([terminal.target], hidden=True).gaps) - before
    finally:
        stop.touch()
        chain.communicate()  # until nobody of the chain is left


_RELAY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FLAGS CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
static char stacks[64][16384] __attribute__((aligned(16)));
static unsigned turn;
static int step(void *unused) {
  usleep(100);
  while (clone(step, stacks[++turn % 64] + 16320, FLAGS, 0) < 0);
  syscall(SYS_exit, 0);
  return 0;
}
int main(int count, char **words) {
  int fd = open(words[1], O_RDWR | O_NOCTTY);
  clone(step, stacks[0] + 16320, FLAGS, 0);
  close(fd);
  if (write(1, "\n", 1)) for (;;) pause();
}
"""


def test_threads_that_hand_on_their_own_table_and_end_hide_nothing(
    tmp_path: Path, terminal: Terminal
) -> None:
    source, program = tmp_path / "relay.c", tmp_path / "relay"
    source.write_text(_RELAY)
    compiler = shutil.which("cc")
    if compiler is None:
        not_here("threads without a leader need a C compiler (cc)")
    subprocess.run([str(compiler), "-O1", "-o", program, source], check=True)
    with subprocess.Popen([program, terminal.path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            for _ in range(60):
                look = holder_scan(HostRoot.under())
                scan = look.scan([terminal.target], pids=[child.pid], hidden=True)
                assert _pids(scan) == [child.pid] or _of(scan, child.pid)
        finally:
            child.kill()


_TO_AND_FRO = """
import os, sys
here, there = 50, 51
os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY), here)
os.closerange(3, here)
print(flush=True)
while True:
    os.dup2(here, there)
    os.close(here)
    here, there = there, here
"""


def test_a_device_that_goes_to_and_fro_between_two_numbers_is_seen_at_each_look(
    terminal: Terminal, start: Start
) -> None:
    child = start(_TO_AND_FRO, terminal.path)
    ready(child)
    holders = holder_scan(HostRoot.under())
    for _ in range(200):
        scan = holders.scan([terminal.target], pids=[child.pid])
        assert _pids(scan) == [child.pid] or _of(scan, child.pid)


_KEEPS = """
import os, sys
print(os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY), flush=True)
sys.stdin.read()
"""


def test_a_file_that_moves_to_a_number_that_a_list_has_passed_is_seen_by_the_count(
    terminal: Terminal, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that the list has is closed meanwhile: only the kernel's count tells."""
    if not Path("/proc/self/fd").stat().st_size:
        pytest.skip("the kernel does not count open files: Linux 6.2 does")
    child = start(_KEEPS, terminal.path)
    assert child.stdout is not None
    number = child.stdout.readline().strip().encode()
    lists: list[list[bytes]] = []

    def passed_it(folder: str, *, most: int = MOST_FILES) -> list[bytes]:
        names = open_files(folder, most=most)
        if not lists:
            names.remove(number)
        lists.append(names)
        return names

    monkeypatch.setattr("holdfast.host.proc.access.open_files", passed_it)
    root = HostRoot.under()
    search = AccessSearch(root, [terminal.target], None, FileTables(root), maps=False, hidden=False)
    use = search.at(child.pid)
    assert use.access == {ONE: {DeviceAccess.NODE}}


_RING = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
if ring < 0:
    print(-ctypes.get_errno(), flush=True)
    raise SystemExit
files = (ctypes.c_int * 1)(os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY))
done = libc.syscall(427, ring, 2, files, 1)
os.close(files[0])
if sys.argv[2:3] == ["map"]:
    libc.mmap(None, 4096, 3, 1, ring, 0)
    for number in map(int, sys.argv[3:]):
        os.close(number)
print(done, flush=True)
sys.stdin.read()
"""


def _ring(start: Start, *arguments: str) -> subprocess.Popen[str]:
    child = start(_RING, *arguments)
    assert child.stdout is not None
    answer = int(child.stdout.readline())
    if -answer in _NO_RING:
        pytest.skip("this kernel has no io_uring for us")
    assert not answer
    return child


_OF_A_RING = "it has an io_uring, and what that has registered is not read"


@pytest.mark.parametrize("kept", [(), ("map", "3")], ids=["open", "only mapped"])
@pytest.mark.parametrize("hidden", [False, True])
def test_an_io_uring_is_a_gap_where_nothing_else_tells_of_what_it_has(
    terminal: Terminal, start: Start, kept: tuple[str, ...], *, hidden: bool
) -> None:
    child = _ring(start, terminal.path, *kept)
    holders = holder_scan(HostRoot.under())
    scan = holders.scan([terminal.target], pids=[child.pid], maps=True, hidden=hidden)
    gaps = [gap.endswith(_OF_A_RING) for gap in _of(scan, child.pid)]
    assert (_pids(scan), gaps) == ([], [True] if hidden else [])


def test_what_a_ring_has_is_not_read(tree: ProcTree, terminal: Terminal) -> None:
    """The kernel would put all of it, of any length, into memory that counts as the reader's."""
    home = tree.process(70)
    tree.open_file(home, 3, "anon_inode:[io_uring]")
    tree.open_file(home, 4, terminal.path)
    with INotify() as events:
        events.add_watch(home / "fdinfo/3", flags.OPEN)
        scan = holder_scan(tree.root).scan([terminal.target], maps=True, hidden=True)
        assert not events.read(timeout=0)
    assert _pids(scan) == [70], "what it has besides is seen"
    assert [gap.endswith(_OF_A_RING) for gap in _of(scan, 70)] == [True]


def test_of_a_node_that_is_open_for_reading_no_list_of_locks_is_read(
    tree: ProcTree, terminal: Terminal
) -> None:
    """Its holder may set hundreds of thousands, which would all be in memory at once."""
    home = tree.process(70)
    tree.open_file(home, 3, terminal.path)
    with INotify() as events:
        events.add_watch(home / "fdinfo/3", flags.OPEN)
        assert _pids(holder_scan(tree.root).scan([terminal.target])) == [70]
        assert not events.read(timeout=0)


def test_a_socket_with_more_locks_than_are_read_may_have_files_in_messages(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    """The kernel tells of messages behind the locks."""
    locks = "lock:\t1: POSIX  ADVISORY  READ 70 00:07:9 0 0\n"
    with _socket(tmp_path) as path:
        for pid, many in ((60, 20), (61, 2000)):
            tree.open_file(tree.process(pid), 3, path, info=f"{locks * many}scm_fds: 0\n")
        scan = holder_scan(tree.root).scan([terminal.target], hidden=True)
    assert scan.unread == {61}
    assert "files are in messages on its unix sockets" in "".join(_of(scan, 61))


_FILES = """
import os, resource, sys
most = int(sys.argv[1])
most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 64)
resource.setrlimit(resource.RLIMIT_NOFILE, (most + 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(most):
    os.dup(0)
for _ in range(int(sys.argv[2])):
    if not os.fork():
        break
else:
    print(flush=True)
sys.stdin.read()
"""


def test_many_open_files_of_others_are_a_gap_of_these_alone(
    terminal: Terminal, start: Start
) -> None:
    """Anybody may open a million; who looks for holders must not take minutes for it."""
    many = start(_FILES, "100000", "59")
    ready(many)
    kept = start(
        "import sys\nkept = open(sys.argv[1], 'rb')\nprint(flush=True)\nsys.stdin.read()",
        terminal.path,
    )
    ready(kept)
    holders = holder_scan(HostRoot.under())
    scan = holders.scan([terminal.target])
    assert _pids(scan) == [kept.pid], "all others are seen"
    assert any("it has more open or mapped than can be read in time" in gap for gap in scan.gaps)
    assert scan.unread
    assert scan.seconds < 60
    many.kill()
    many.communicate()
    wait_until(
        lambda: not any("more open" in gap for gap in holders.scan([terminal.target]).gaps),
        what="their end",
    )


def test_processes_that_give_no_answer_blind_nobody_to_another(
    tree: ProcTree, terminal: Terminal
) -> None:
    """What has a device mapped, and no file open, is seen by its mappings alone."""
    status = Path(terminal.path).stat()
    holder = tree.process(900)
    (holder / "root").symlink_to("/")
    line = (
        f"7f0000000000-7f0000001000 rw-s 00000000 {os.major(status.st_dev):02x}:"
        f"{os.minor(status.st_dev):02x} {status.st_ino} {terminal.path}\n"
    )
    (holder / "maps").write_text(line)
    stuck = range(100, 120)
    with ExitStack() as hang:
        for pid in stuck:
            hang.enter_context(_no_answer(tree.process(pid) / "maps"))
        scan = holder_scan(tree.root).scan([terminal.target], maps=True)
    assert _pids(scan) == [900]
    assert scan.unread == {*stuck}
    assert scan.seconds < len(stuck), "a second for each, in turn, are more"


@pytest.mark.parametrize("by_driver", [False, True])
def test_arguments_that_give_no_answer_take_a_second_of_all_together(
    tree: ProcTree, terminal: Terminal, *, by_driver: bool
) -> None:
    stuck, holders = range(100, 130), holder_scan(tree.root)
    with ExitStack() as hang:
        for pid in stuck:
            home = tree.process(pid, comm="exe")
            tree.open_file(home, 3, terminal.path)
            hang.enter_context(_no_answer(home / "cmdline"))
        began = time.monotonic()
        if by_driver:
            found = list(holders.named(range(100, 131)))
        else:
            found = _pids(holders.scan([terminal.target]))
        took = time.monotonic() - began
    assert found == list(stuck)
    assert took < len(stuck), "a second for each, in turn, are more"


class _Slow:
    """Makes searches of which each look takes so many seconds in which the thread only waits."""

    def __init__(self, root: HostRoot, seconds: float) -> None:
        self._root, self._seconds = root, seconds
        self.longest = 0.0

    def search(self) -> AccessSearch:
        outer = self

        class Search(AccessSearch):
            def at(self, pid: int, **how: Any) -> ProcessUse:
                del pid
                outer.wait(how["beat"])
                return ProcessUse()

        return Search(self._root, [], None, FileTables(self._root), maps=False, hidden=False)

    def wait(self, beat: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            while time.monotonic() < began + self._seconds:
                time.sleep(0.01)
                beat()
        finally:
            self.longest = max(self.longest, time.monotonic() - began)


def _looked_at(
    search: Callable[[], AccessSearch], root: HostRoot, *pids: int, owners: Collection[PodUid] = ()
) -> Survey:
    """Look at *pids*, at all without, while *owners* have the device."""
    procfs = Procfs(root)
    survey = Survey(
        root=root,
        search=search,
        visits=Visits(procfs.start_ticks, patience=60),
        procfs=procfs,
        cgroups=Cgroups(root),
        sight=visibility(root),
        owners=owners,
    )
    if pids:
        survey.look_at(pids)
    else:
        survey.look_at_all()
    return survey


_TAKES = """
import os, socket, sys
sockets = socket.socketpair()
print(flush=True)
sys.stdin.readline()
os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print(flush=True)
sys.stdin.read()
"""


class _Then:
    """Searches for a terminal, after the first of which a child has it open."""

    def __init__(self, terminal: Terminal, child: "subprocess.Popen[str]") -> None:
        self._terminal = terminal
        self._child = child
        self._took = False

    def search(self) -> AccessSearch:
        return _Handed(self, HostRoot.under(), self._terminal.target)

    def take(self) -> None:
        if self._took:
            return
        self._took = True
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        self._child.stdout.readline()


class _Handed(AccessSearch):
    def __init__(self, then: _Then, root: HostRoot, target: ScanTarget) -> None:
        super().__init__(root, [target], None, FileTables(root), maps=False, hidden=True)
        self._then = then

    def at(self, pid: int, **how: Any) -> ProcessUse:
        use = super().at(pid, **how)
        self._then.take()
        return use


def test_who_has_a_socket_and_one_more_file_than_when_it_was_looked_at_is_looked_at_again(
    terminal: Terminal, start: Start
) -> None:
    child = start(_TAKES, terminal.path)
    ready(child)
    if not has_more(f"/proc/{child.pid}/fd", []):
        pytest.skip("the kernel counts open files since Linux 6.2 only")
    survey = _looked_at(_Then(terminal, child).search, HostRoot.under(), child.pid)
    assert [dict(each.access) for each in survey.found.values()] == [{ONE: {DeviceAccess.NODE}}]


_POD = f"/kubepods/pod{UID}/1"


@pytest.mark.parametrize(("cgroup", "seconds", "at_most"), [("/", 0.5, 0.9), (_POD, 0.4, 0.55)])
def test_time_that_others_take_on_a_busy_node_is_not_a_process_s_own(
    tree: ProcTree, cgroup: str, seconds: float, at_most: float
) -> None:
    """A quarter of a second is allowed of the processor, for which a busy node takes longer."""
    pids = 7, 8, 9
    for pid in pids:
        tree.process(pid, cgroup=cgroup)

    def in_time() -> list[str] | None:
        slowly = _Slow(tree.root, seconds)
        gaps = _looked_at(slowly.search, tree.root, *pids).gaps.texts()
        return gaps if slowly.longest < at_most else None

    tries = (in_time() for _ in range(100))
    assert next((each for each in tries if each is not None), None) == []


def test_a_process_is_not_waited_for_as_long_as_it_likes(tree: ProcTree) -> None:
    tree.process(7)
    gaps = _looked_at(_Slow(tree.root, 8).search, tree.root, 7).gaps.texts()
    told = "it has more open or mapped than can be read in time"
    assert [told in gap for gap in gaps] == [True]


_CROWDED = "its pod has more processes than can be looked at in time"


@pytest.mark.parametrize("owns", [False, True])
def test_of_a_pod_with_more_processes_than_can_be_looked_at_in_time_the_rest_is_a_gap(
    tree: ProcTree, *, owns: bool
) -> None:
    """Others wait for the look. Of the pod that has the device all are looked at."""
    pids = range(100, 112)
    for pid in pids:
        tree.process(pid, cgroup=_POD)
    tree.process(200)
    owners = {PodUid(UID)} if owns else set[PodUid]()
    survey = _looked_at(_Slow(tree.root, 0.1).search, tree.root, *pids, 200, owners=owners)
    assert (_CROWDED in " ".join(survey.gaps.texts())) is not owns
    assert survey.gaps.pids <= {*pids}


def test_a_process_without_a_name_in_such_a_pod_is_a_gap_as_well(tree: ProcTree) -> None:
    for pid in range(10, 20):
        tree.process(pid, cgroup=_POD, comm="")
    survey = _looked_at(_Slow(tree.root, 0.1).search, tree.root)
    assert [_CROWDED in gap for gap in survey.gaps.texts()] == [True]


class _Bears(_Slow):
    """Before each list of processes is looked at, one more is born."""

    def __init__(self, tree: ProcTree, seconds: float) -> None:
        super().__init__(tree.root, seconds)
        self._tree = tree
        self.born = [100]

    def search(self) -> AccessSearch:
        self._tree.process(self.born[-1], cgroup=_POD)
        self.born.append(self.born[-1] + 1)
        return super().search()


def test_who_is_born_in_a_pod_that_has_too_many_keeps_no_look_from_its_end(
    tree: ProcTree,
) -> None:
    for pid in range(10, 20):
        tree.process(pid, cgroup=_POD)
    survey = _looked_at(_Bears(tree, 0.1).search, tree.root)
    assert [_CROWDED in gap for gap in survey.gaps.texts()] == [True]
    assert {19, 100} <= survey.gaps.pids


@pytest.mark.slow
def test_those_of_one_pod_that_give_no_answer_are_waited_for_no_longer_than_others_are_read(
    tree: ProcTree, terminal: Terminal
) -> None:
    tree.open_file(tree.process(200), 3, terminal.path)
    with ExitStack() as hang:
        for pid in range(100, 120):
            hang.enter_context(_no_answer(tree.process(pid, cgroup=_POD) / "maps"))
        began = time.monotonic()
        scan = holder_scan(tree.root, patience=60.0).scan([terminal.target], maps=True)
        assert time.monotonic() - began < 30
    assert scan.unread == {*range(100, 120)}
    assert _pids(scan) == [200]


_NO_THREADS = """
import os, resource, sys
from holdfast.errors import HostError
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
holders, procfs = HolderScan(HostRoot.under()), Procfs(HostRoot.under())
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if not os.geteuid():
    os.setuid(65534)
print(*holders.scan([]).gaps, procfs.arguments(1), flush=True)
"""


def test_where_no_thread_can_be_started_that_is_a_gap_and_no_end(
    start: Start,
) -> None:
    """Whoever is born without a pause may have all numbers, or the pod's limit is reached."""
    child = start(_NO_THREADS)
    assert child.stdout is not None
    told = child.stdout.readline()
    assert "cannot start a thread to look at processes" in told
    assert told.endswith("()\n")


def test_who_was_met_before_a_look_had_to_end_has_the_device(
    tree: ProcTree, terminal: Terminal, tmp_path: Path
) -> None:
    tree.open_file(tree.process(60), 3, terminal.path)
    with _meanwhile(tree.process(70), lambda: tree.root.proc.rename(tmp_path / "gone")):
        scan = holder_scan(tree.root, patience=30.0).scan([terminal.target], maps=True)
    assert "cannot list" in "".join(scan.gaps)
    assert _pids(scan) == [60]
