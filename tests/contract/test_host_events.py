"""Pidfds, inotify, uevents, a socket's peer and the exclusive open, on the real kernel."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from inotify_simple import flags

from holdfast.errors import HostError
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.files.kernelfile import device_number
from holdfast.host.pci.udev import Uevents
from holdfast.host.pci.vfio import exclusive_open
from holdfast.host.proc.pidfd import Pidfds, peer_of
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import ProcessId
from holdfast.model.use.free import OpenOutcome
from simulated.hosttree import HostTree
from simulated.proctree import ProcTree
from waiting import until

REAL = Procfs(HostRoot.under())


def sleeper() -> tuple[subprocess.Popen[bytes], ProcessId]:
    child = subprocess.Popen(["sleep", "600"])
    ticks = REAL.start_ticks(child.pid)
    assert ticks is not None
    return child, ProcessId(child.pid, ticks)


class TestPidfds:
    async def test_an_exit_is_heard_of_once(self) -> None:
        child, process = sleeper()
        pidfds, heard = Pidfds(REAL), list[ProcessId]()
        assert pidfds.watch(process, heard.append)
        assert pidfds.watch(process, heard.append)
        assert pidfds.watched == {process}
        child.kill()
        await until(lambda: heard, what="the exit")
        child.wait()
        await asyncio.sleep(0)
        assert heard == [process]
        assert not pidfds.watched

    async def test_a_process_with_another_start_time_is_another_process(self) -> None:
        child, process = sleeper()
        impostor = ProcessId(process.pid, process.start_ticks + 1)
        pidfds = Pidfds(REAL)
        assert not pidfds.watch(impostor, lambda _: None)
        with pidfds.holding([impostor]) as held:
            assert not held
            with pytest.raises(HostError, match="no pidfd of it is held"):
                pidfds.send(impostor, signal.SIGKILL)
        assert child.poll() is None
        child.kill()
        child.wait()

    async def test_one_that_cannot_be_read_is_not_taken_for_gone(self, tmp_path: Path) -> None:
        """It is here as long as nothing shows the opposite, such as with too many open files."""
        (tmp_path / "proc" / str(os.getpid()) / "stat").mkdir(parents=True)
        pidfds, mine = Pidfds(Procfs(HostRoot.under(tmp_path))), ProcessId(os.getpid(), 1)
        before = set(Path("/proc/self/fd").iterdir())
        with pytest.raises(HostError, match="cannot read"), pidfds.holding([mine]):
            pass
        with pytest.raises(HostError, match="cannot read"):
            pidfds.watch(mine, lambda _process: None)
        assert len(set(Path("/proc/self/fd").iterdir())) == len(before)

    async def test_a_signal_goes_through_the_pidfd_that_is_held(self) -> None:
        child, process = sleeper()
        pidfds = Pidfds(REAL)
        with pidfds.holding([process]) as held:
            assert held == {process}
            assert pidfds.send(process, signal.SIGTERM) == "sent"
            assert child.wait() == -signal.SIGTERM
            assert pidfds.send(process, signal.SIGKILL) == "gone"
        with pidfds.holding([process]) as held:
            assert not held

    async def test_one_that_two_hold_is_held_until_both_have_let_go(self) -> None:
        child, process = sleeper()
        pidfds = Pidfds(REAL)
        with pidfds.holding([process]) as held:
            assert held == {process}
            with pidfds.holding([process]):
                pass
            assert pidfds.send(process, signal.SIGTERM) == "sent"
        assert child.wait() == -signal.SIGTERM
        with pytest.raises(HostError):
            pidfds.send(process, signal.SIGKILL)

    async def test_what_is_no_longer_watched_is_not_heard_of(self) -> None:
        child, process = sleeper()
        pidfds, heard = Pidfds(REAL), list[ProcessId]()
        before = len(list(Path("/proc/self/fd").iterdir()))
        pidfds.watch(process, heard.append)
        with pidfds.holding([process]):
            pidfds.close()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        child.kill()
        child.wait()
        await asyncio.sleep(0)
        assert not heard

    async def test_a_thread_is_no_process_to_watch(self) -> None:
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
            ],
        )
        tasks = Path(f"/proc/{child.pid}/task")
        await until(lambda: len(list(tasks.iterdir())) > 1, what="a thread")
        thread = next(int(each.name) for each in tasks.iterdir() if each.name != str(child.pid))
        ticks = REAL.start_ticks(thread)
        assert ticks is not None
        with Pidfds(REAL).holding([ProcessId(thread, ticks)]) as held:
            child.kill()
            child.wait()
        assert not held


class TestPathWatcher:
    async def test_entries_that_come_and_go_are_told_by_name(self, tmp_path: Path) -> None:
        watcher, seen = PathWatcher(), list[tuple[str, int]]()
        watcher.watch(tmp_path, lambda name, mask: seen.append((name, mask)))
        (tmp_path / "kubelet.sock").touch()
        await until(
            lambda: any(name == "kubelet.sock" and mask & flags.CREATE for name, mask in seen)
        )
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(tmp_path / "checkpoint")
        await until(
            lambda: any(name == "checkpoint" and mask & flags.MOVED_TO for name, mask in seen)
        )
        (tmp_path / "kubelet.sock").unlink()
        await until(
            lambda: any(name == "kubelet.sock" and mask & flags.DELETE for name, mask in seen)
        )
        watcher.close()

    async def test_a_folder_that_is_made_again_can_be_watched_again(self, tmp_path: Path) -> None:
        watcher, seen = PathWatcher(), list[tuple[str, int]]()
        folder = tmp_path / "plugins"
        folder.mkdir()
        watcher.watch(folder, lambda name, mask: seen.append((name, mask)))
        folder.rmdir()
        await until(
            lambda: any(mask & flags.IGNORED for _, mask in seen), what="the end of the watch"
        )
        with pytest.raises(HostError, match="cannot watch .*plugins: No such file"):
            watcher.watch(folder, lambda *_: None)
        folder.mkdir()
        watcher.watch(folder, lambda name, mask: seen.append((name, mask)))
        (folder / "again").touch()
        await until(lambda: any(name == "again" for name, _ in seen))
        watcher.close()

    async def test_it_begins_once_the_kernel_gives_an_instance(self, tmp_path: Path) -> None:
        # Nodes run out of them. As in those cases no descriptor is to be had: EMFILE.
        seen, before = list[str](), resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            watcher = PathWatcher()
            with pytest.raises(HostError, match=r"cannot use inotify: .*max_user_instances"):
                watcher.watch(tmp_path, lambda name, _: seen.append(name))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        watcher.watch(tmp_path, lambda name, _: seen.append(name))
        (tmp_path / "kubelet.sock").touch()
        await until(lambda: "kubelet.sock" in seen)
        watcher.close()

    async def test_a_file_tells_of_each_write(self, tmp_path: Path) -> None:
        events = tmp_path / "cgroup.events"
        events.write_text("populated 1\n")
        watcher, seen = PathWatcher(), list[int]()
        end = watcher.watch(events, lambda _, mask: seen.append(mask))
        watcher.watch(events, lambda _, mask: seen.append(mask))
        events.write_text("populated 0\n")
        await until(lambda: len(seen) >= 2)
        end()
        end()
        (tmp_path / "unrelated").touch()
        seen.clear()
        events.write_text("populated 1\n")
        await until(lambda: seen)
        watcher.close()


@pytest.mark.skipif(
    not os.access("/sys/class/mem/null/uevent", os.W_OK),
    reason="only root can make the kernel send an event",
)
class TestUevents:
    async def test_the_kernels_events_arrive(self) -> None:
        heard: list[tuple[str, str]] = []
        events = Uevents(lambda subsystem, action: heard.append((subsystem, action)))
        _send_an_event()
        await until(lambda: ("mem", "change") in heard)
        events.close()
        events.close()

    async def test_a_flood_that_the_kernel_drops_some_of_is_told_and_the_next_arrive(self) -> None:
        heard: list[tuple[str, str]] = []
        events = Uevents(lambda subsystem, action: heard.append((subsystem, action)))
        for _ in range(5000):  # nobody reads meanwhile, and there is room for about 2500
            _send_an_event()
        await until(lambda: ("", "lost") in heard and ("mem", "change") in heard)
        heard.clear()
        _send_an_event()
        await until(lambda: ("mem", "change") in heard)
        events.close()


def _send_an_event() -> None:
    try:
        Path("/sys/class/mem/null/uevent").write_text("change")
    except OSError as error:
        pytest.skip(f"this kernel sends no event here: {error}")


class TestPeer:
    def test_the_listener_of_a_socket_is_known(self, short_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(short_path / "kubelet.sock"))
            assert peer_of(short_path / "kubelet.sock", REAL) is None
            server.listen()
            ticks = REAL.start_ticks(os.getpid())
            assert ticks is not None
            assert peer_of(short_path / "kubelet.sock", REAL) == ProcessId(os.getpid(), ticks)

    def test_nobody_listens_where_there_is_no_socket(self, short_path: Path) -> None:
        assert peer_of(short_path / "nothing.sock", REAL) is None
        (short_path / "file").touch()
        assert peer_of(short_path / "file", REAL) is None
        assert peer_of(short_path / ("x" * 200), REAL) is None


class TestExclusiveOpen:
    def test_a_node_that_is_no_vfio_group_is_never_opened(self, tmp_path: Path) -> None:
        tree, proc = HostTree(tmp_path), ProcTree(tmp_path)
        tree.terminal("/dev/vfio/7")
        proc.devices(vfio=246)
        assert (
            exclusive_open(tree.root, [DeviceNode(path="/dev/vfio/7", rdev=1)])
            is OpenOutcome.UNAVAILABLE
        )
        assert (
            exclusive_open(tree.root, [DeviceNode(path="/dev/vfio/8", rdev=1)])
            is OpenOutcome.UNAVAILABLE
        )
        tree.close()

    def test_a_node_of_the_right_major_that_opens_is_free(self, tmp_path: Path) -> None:
        tree, proc = HostTree(tmp_path), ProcTree(tmp_path)
        rdev = tree.terminal("/dev/vfio/7")
        proc.devices(vfio=os.major(rdev))
        assert device_number(tree.root.node("/dev/vfio/7")) == rdev
        assert (
            exclusive_open(tree.root, [DeviceNode(path="/dev/vfio/7", rdev=rdev)])
            is OpenOutcome.SUCCEEDED
        )
        tree.close()

    def test_only_a_character_device_has_a_number(self, tmp_path: Path) -> None:
        tree = HostTree(tmp_path)
        (tmp_path / "dev/vfio/7").write_text("")
        assert device_number(tree.root.node("/dev/vfio/7")) is None
        assert device_number(tree.root.node("/dev/vfio/8")) is None
        tree.close()
