"""What can be wrong with the state folder, on copied trees, on live folders and beside a daemon."""

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.needs import root_with
from fakes.nodetree import NodeTree
from fakes.stage import stage
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.state import state_findings
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.ledger.rows import SCHEMA_VERSION
from holdfast.ledger.store import Store
from holdfast.model.node.filesystems import unfit
from holdfast.settings import convert

_FOLDER = "var/lib/holdfast"
_needs_mounts = root_with("unshare", to="mount something for oneself")


def _live(folder: Path, **settings: object) -> dict[str, Finding]:
    node = Node(settings=convert({"stateDir": str(folder), **settings}))
    return {finding.check: finding for finding in state_findings(node)}


def _ledger(node: NodeTree) -> Path:
    folder = node.folder / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    Store(folder).close()
    return folder / "ledger.db"


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    return {each.name: (each.stat().st_size, each.stat().st_mtime_ns) for each in folder.iterdir()}


def test_before_the_first_start_there_is_nothing_to_mend(node: NodeTree) -> None:
    told = node.told()

    assert told.bad("state") == {}
    assert "the first start of the daemon makes it" in told.of("state", "folder")["reason"]


def test_a_state_folder_in_order_has_nothing_to_mend_and_is_not_touched(node: NodeTree) -> None:
    ledger = _ledger(node)
    before = _look(ledger.parent)

    told = node.told()

    assert told.bad("state") == {}
    assert "is on ext4" in told.of("state", "filesystem")["reason"]
    assert _look(ledger.parent) == before


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tmpfs", "is emptied by a reboot"),
        ("overlay", "the next container would start without the ledger"),
        ("nfs4", "locks and writes on nfs4"),
        ("fuse.sshfs", "locks and writes on fuse.sshfs"),
    ],
)
def test_a_state_folder_where_a_ledger_cannot_live_fails(
    kind: str, words: str, node: NodeTree
) -> None:
    _ledger(node)
    node.mounts("/ ext4", f"/var/lib/holdfast {kind}")

    found = node.told().of("state", "filesystem")

    assert found["level"] == "FAIL"
    assert words in found["reason"]
    assert "set stateDir to a folder on a local disk" in found["remedy"]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"])
def test_a_local_disk_is_fit_for_a_ledger(kind: str) -> None:
    assert unfit(kind) == ""


def test_without_the_nodes_mounts_the_filesystem_is_not_told_for_good(node: NodeTree) -> None:
    _ledger(node)
    node.remove("proc/1/mountinfo")
    assert node.told().of("state", "filesystem")["level"] == "WARN"


def test_what_is_no_folder_fails(node: NodeTree) -> None:
    node.write(_FOLDER, "")
    assert node.told().of("state", "folder")["level"] == "FAIL"


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 8])
def test_a_ledger_of_another_holdfast_fails_and_stays_as_it_is(
    node: NodeTree, version: int
) -> None:
    ledger = _ledger(node)
    with sqlite3.connect(ledger) as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = ledger.read_bytes()

    found = node.told().of("state", "ledger")

    assert found["level"] == "FAIL"
    assert f"it has version {version}, this holdfast knows {SCHEMA_VERSION}" in (found["reason"])
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"no database at all, and long enough " * 9, b"SQLite format 3\0"]
)
def test_a_damaged_ledger_fails_with_what_to_do(content: bytes, node: NodeTree) -> None:
    _ledger(node).write_bytes(content)

    found = node.told().of("state", "ledger")

    assert found["level"] == "FAIL"
    assert "move the file away" in found["remedy"]


def test_another_programs_database_fails(node: NodeTree) -> None:
    ledger = _ledger(node)
    ledger.unlink()
    with sqlite3.connect(ledger) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()

    assert "another program's database" in node.told().of("state", "ledger")["reason"]


def test_a_ledger_that_a_crash_left_is_read_with_its_wal_and_not_touched(
    node: NodeTree, tmp_path: Path
) -> None:
    ledger = _ledger(node)
    copied = tmp_path / "crashed"
    with sqlite3.connect(ledger, isolation_level=None) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")  # only the WAL has it
        shutil.copytree(ledger.parent, copied)
    db.close()
    shutil.rmtree(ledger.parent)
    copied.rename(ledger.parent)
    ledger.with_name("ledger.db-shm").unlink()
    before = _look(ledger.parent)
    assert before["ledger.db-wal"][0] > 0

    found = node.told().of("state", "ledger")

    assert f"it has version {SCHEMA_VERSION + 1}" in found["reason"]
    assert _look(ledger.parent) == before


def test_a_ledger_that_was_kept_beside_is_told_until_it_is_removed(node: NodeTree) -> None:
    ledger = _ledger(node)
    kept = [ledger.with_name(f"{ledger.name}.unreadable-{each}") for each in ("1", "1-wal", "2")]
    for each in kept:
        each.write_bytes(b"")

    found = node.told().of("state", "ledger")

    assert found["level"] == "WARN"
    assert "could not read ledger.db.unreadable-1, ledger.db.unreadable-2 and" in found["reason"]
    for each in kept:
        each.unlink()
    assert node.told().of("state", "ledger")["level"] == "OK"


@pytest.mark.parametrize("left", ["ledger.seal", "ledger.db.unreadable-1"])
def test_a_ledger_that_is_gone_is_told(node: NodeTree, left: str) -> None:
    ledger = _ledger(node)
    (ledger.parent / "ledger.db.unreadable-1").write_text("")
    for each in ledger.parent.iterdir():
        if each.name != left:
            each.unlink()

    found = node.told().of("state", "ledger")

    assert found["level"] == "WARN"
    assert "there was a ledger in" in found["reason"]
    assert "do not restart a daemon that runs" in found["remedy"]


def test_a_ledger_with_a_thing_that_makes_no_sense_fails_as_the_daemon_refuses_it(
    node: NodeTree,
) -> None:
    ledger = _ledger(node)
    with sqlite3.connect(ledger) as db:
        db.execute("INSERT INTO things VALUES ('drain', 'node', '{}')")
    db.close()

    found = node.told().of("state", "ledger")

    assert found["level"] == "FAIL"
    assert "its drain node makes no sense" in found["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a folder away needs root")
@pytest.mark.parametrize(
    ("owner", "mode", "level"), [(65534, 0o777, "WARN"), (0, 0o500, "WARN"), (0, 0o700, "OK")]
)
def test_a_folder_that_only_a_privileged_root_can_write_to_is_warned_of(
    owner: int, mode: int, level: str, tmp_path: Path
) -> None:
    os.chown(tmp_path, owner, -1)
    tmp_path.chmod(mode)

    assert _live(tmp_path)["writable"].level == level


def _mounted(script: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run the real command on a folder that *script* mounts something on, here and nowhere else."""
    command = f"{script} && exec {sys.executable} -m holdfast doctor -o json --set stateDir=$0"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        pytest.skip(f"this machine lets nobody mount: {done.stderr}")
    found = json.loads(done.stdout)["findings"]
    return {each["check"]: each for each in found if each["area"] == "state"}


@_needs_mounts
def test_a_folder_that_is_mounted_read_only_fails(tmp_path: Path) -> None:
    found = _mounted("mount --bind $0 $0 && mount -o remount,bind,ro $0", tmp_path)

    assert found["writable"]["level"] == "FAIL"
    assert "mounted read-only" in found["writable"]["reason"]


@_needs_mounts
def test_a_full_disk_fails_and_a_filesystem_in_memory_too(tmp_path: Path) -> None:
    found = _mounted("mount -t tmpfs -o size=512k tmpfs $0", tmp_path)

    assert (found["filesystem"]["level"], found["space"]["level"]) == ("FAIL", "FAIL")
    assert "512 KiB is left" in found["space"]["reason"]
    assert "free space" in found["space"]["remedy"]


@_needs_mounts
def test_a_disk_that_is_nearly_full_is_warned_of(tmp_path: Path) -> None:
    found = _mounted("mount -t tmpfs -o size=8m tmpfs $0", tmp_path)

    assert (found["space"]["level"], "8 MiB are left" in found["space"]["reason"]) == ("WARN", True)


async def test_beside_a_running_daemon_its_ledger_is_read_and_it_is_named(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        told = _live(node.state)

    assert told["daemon"].reason == f"the daemon runs on {node.state}, pid {os.getpid()}"
    assert told["ledger"].level is Level.OK
    down = _live(node.state)
    assert down["daemon"].reason == f"no daemon runs on {node.state}"


def test_who_holds_the_folder_and_answers_nobody_is_named(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Procfs(HostRoot.under()).flock_holder(tmp_path / "lock") is None:
            pytest.skip("this kernel names locks on this filesystem by other numbers")
        found = _live(tmp_path)["daemon"]

    assert found.level is Level.WARN
    assert f"pid {os.getpid()} holds {tmp_path / 'lock'}, but nobody answers" in found.reason
    assert _live(tmp_path)["daemon"].level is Level.OK


def test_who_holds_the_folder_and_cannot_be_seen_has_no_pid(tmp_path: Path) -> None:
    (lock := tmp_path / "lock").touch()
    found = lock.stat()
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 0 {file} 0 EOF\n")
    told = _live(tmp_path, host={"proc": str(tmp_path)})["daemon"].reason
    assert told.startswith(f"a process that cannot be seen from here holds {lock}, but")
