"""One daemon on a node: the locks that keep a second one out, and what they outlive."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import yaml

from fakes.books import allocated, silicon
from fakes.commands import holdfast
from fakes.stage import stage
from holdfast.app.watches.proof import LedgerProof
from holdfast.errors import LedgerLostError, SecondDaemonError
from holdfast.ledger.disk import LOCK
from holdfast.ledger.instance import InstanceLock, PluginFolderLock
from holdfast.ledger.ledger import open_ledger
from holdfast.model.ids import BootId
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock

_HOLDER = """
import sys
from pathlib import Path
from holdfast.ledger.instance import InstanceLock, PluginFolderLock
kind = {"state": InstanceLock, "plugins": PluginFolderLock}[sys.argv[1]]
lock = kind(Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
_KINDS = {"state": InstanceLock, "plugins": PluginFolderLock}


@contextmanager
def _held_by_another(kind: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let a process of its own have a lock, until it is killed."""
    daemon = Path(__file__).parents[2] / "daemon"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, kind, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(daemon)},
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_second_daemon_is_refused_with_the_pid_of_the_first_until_that_is_killed(
    tmp_path: Path, kind: str
) -> None:
    with _held_by_another(kind, tmp_path) as holder:
        with pytest.raises(
            SecondDaemonError, match=rf"another holdfast is running on it \(pid {holder.pid}\)"
        ):
            _KINDS[kind](tmp_path)
        holder.kill()
        holder.wait()
        _KINDS[kind](tmp_path).close()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_lock_can_be_given_back(tmp_path: Path, kind: str) -> None:
    _KINDS[kind](tmp_path).close()
    with closing(_KINDS[kind](tmp_path)), pytest.raises(SecondDaemonError):
        _KINDS[kind](tmp_path)
    _KINDS[kind](tmp_path).close()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_lock_that_was_given_back_or_refused_leaves_nothing_open(
    tmp_path: Path, kind: str
) -> None:
    opened = sorted(Path("/proc/self/fd").iterdir())
    lock = _KINDS[kind](tmp_path)
    with pytest.raises(SecondDaemonError) as refused:
        _KINDS[kind](tmp_path)
    lock.close()
    lock.close()
    del refused
    assert sorted(Path("/proc/self/fd").iterdir()) == opened


def test_what_is_no_folder_is_not_locked_as_one(tmp_path: Path) -> None:
    file = tmp_path / "device-plugins"
    file.write_text("")
    with closing(PluginFolderLock(file)) as lock, closing(PluginFolderLock(file)):
        assert lock.problem == ""


def test_the_lock_of_kubelets_folder_is_none_of_the_files_that_kubelet_removes(
    tmp_path: Path,
) -> None:
    """A kubelet up to 1.32 removes each file but its checkpoint when it starts."""
    with closing(PluginFolderLock(tmp_path)):
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(SecondDaemonError):
            PluginFolderLock(tmp_path)


def test_the_lock_of_kubelets_folder_holds_through_another_mount_that_is_read_only(
    tmp_path: Path,
) -> None:
    """As between a container with a hostPath and a daemon on the node itself."""
    folder, other = tmp_path / "device-plugins", tmp_path / "mount"
    folder.mkdir()
    other.mkdir()
    if subprocess.run(["mount", "--bind", "-o", "ro", folder, other], check=False).returncode:
        pytest.skip("a mount of its own needs root")
    try:
        with closing(PluginFolderLock(folder)), pytest.raises(SecondDaemonError):
            PluginFolderLock(other)
        with closing(PluginFolderLock(other)), pytest.raises(SecondDaemonError):
            PluginFolderLock(folder)
    finally:
        subprocess.run(["umount", "--lazy", other], check=True)


def test_a_folder_that_kubelet_makes_later_is_locked_then(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    with closing(PluginFolderLock(folder)) as lock:
        folder.mkdir()
        PluginFolderLock(folder).close()
        lock.keep()
        with pytest.raises(SecondDaemonError):
            PluginFolderLock(folder)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_folder_that_was_made_anew_is_locked_again(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with closing(_KINDS[kind](folder)) as lock:
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        lock.keep()
        with pytest.raises(SecondDaemonError):
            _KINDS[kind](folder)
        _KINDS[kind](tmp_path / "moved").close()


def test_a_lock_file_that_was_removed_is_made_and_locked_again(tmp_path: Path) -> None:
    with closing(InstanceLock(tmp_path)) as lock:
        (tmp_path / LOCK).unlink()
        lock.keep()
        with pytest.raises(SecondDaemonError):
            InstanceLock(tmp_path)


async def test_a_daemon_whose_folder_another_one_has_taken_writes_nothing_more_and_ends(
    tmp_path: Path,
) -> None:
    state, plugins = tmp_path / "state", tmp_path / "device-plugins"
    plugins.mkdir()
    clock = ManualClock()
    with (
        closing(Lane("ledger", deadline=60.0)) as lane,
        closing(InstanceLock(state)) as instance,
        closing(PluginFolderLock(plugins)) as folder,
    ):
        ledger = await open_ledger(
            state, lane, clock=clock, boot=BootId("boot-1"), locks=(instance, folder)
        )
        proof = LedgerProof(ledger, clock=clock)
        await proof.prove()
        plugins.rename(tmp_path / "moved")
        plugins.mkdir()
        with _held_by_another("plugins", plugins):
            with pytest.raises(SecondDaemonError, match="kubelet's plugin folder"):
                await proof.run()
            with pytest.raises(LedgerLostError, match="another holdfast is running on it"):
                await ledger.apply(allocated(silicon(d1="a")))
        await ledger.close()


def test_a_state_folder_is_made_with_the_folders_above_it(tmp_path: Path) -> None:
    with closing(InstanceLock(tmp_path / "lib" / "holdfast")):
        assert (tmp_path / "lib" / "holdfast" / LOCK).exists()


async def test_a_second_daemon_is_refused_though_its_state_folder_is_another(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True) as node:
        config = yaml.safe_load((node.folder / "config.yaml").read_text())
        config["stateDir"] = str(node.folder / "another-state")
        (node.folder / "second.yaml").write_text(yaml.safe_dump(config))
        await node.for_some_beats()  # it tells the same devices once more after its start
        heard = node.heard()
        second = await holdfast("run", "--config", node.folder / "second.yaml")
        assert second.returncode == 1
        assert "cannot use kubelet's plugin folder" in second.stderr
        assert "another holdfast is running on it (pid " in second.stderr
        assert "Traceback" not in second.stderr
        assert node.heard() == heard
        assert len(node.healthy()) == 2
