"""Privileges of real processes: the doctor's own, and those of a daemon that answers."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.needs import root_with
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.privileges import privileges_findings
from holdfast.host.files.paths import Mount, mount_of
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import convert

_LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _daemon(folder: Path, *less: str) -> Iterator[int]:
    """Let a process answer on the daemon's socket that has the privileges that *less* leaves it."""
    command = [*less, sys.executable, "-c", _LISTEN, str(folder / CONTROL_SOCKET)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"listening\n":
            pytest.skip(f"this machine lets nobody run {less}")
        try:
            yield process.pid
        finally:
            process.terminate()


def _found(folder: Path) -> dict[str, Finding]:
    node = Node(settings=convert({"stateDir": str(folder)}))
    return {finding.check: finding for finding in privileges_findings(node)}


def test_without_a_daemon_the_doctor_speaks_of_itself_and_says_so(short_path: Path) -> None:
    told = _found(short_path)

    assert "this is what the doctor itself may do" in told["subject"].reason
    assert Level.FAIL not in {finding.level for finding in told.values()}


def test_of_a_daemon_that_answers_its_own_privileges_are_told(short_path: Path) -> None:
    with _daemon(short_path) as pid:
        told = _found(short_path)

    assert told["subject"].reason.startswith(f"this is what the daemon, pid {pid}, may do: uid ")


@root_with("setpriv", to="run with one capability less")
@pytest.mark.parametrize(
    ("capability", "check", "lost"),
    [
        ("sys_ptrace", "sys-ptrace", "no scan proves a device free"),
        ("dac_read_search", "dac-read-search", "no scan proves a device free"),
        ("kill", "kill", "gets no SIGTERM"),
    ],
)
def test_a_daemon_with_one_capability_less_fails_by_its_name(
    capability: str, check: str, lost: str, short_path: Path
) -> None:
    less = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}")
    with _daemon(short_path, *less):
        told = _found(short_path)

    assert "no new privileges" not in told["subject"].reason
    assert told[check].level is Level.FAIL
    assert lost in told[check].reason
    assert "add " in told[check].remedy
    others = {"sys-ptrace", "dac-read-search", "kill"} - {check}
    assert {told[other].level for other in others} == {Level.OK}


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="it needs setpriv (util-linux)")
def test_what_explains_the_rest_is_told_of_the_daemon(short_path: Path) -> None:
    with _daemon(short_path, "setpriv", "--no-new-privs"):
        told = _found(short_path)

    assert f": uid {os.geteuid()}, " in told["subject"].reason
    assert "no new privileges" in told["subject"].reason


@root_with("unshare", to="be in a namespace of one's own")
def test_a_daemon_in_a_user_namespace_of_its_own_fails_by_its_name(short_path: Path) -> None:
    with _daemon(short_path, "unshare", "--user", "--map-root-user"):
        told = _found(short_path)

    assert told["user-namespace"].level is Level.FAIL
    assert told["user-namespace"].remedy == "remove hostUsers: false from the pod"


@root_with("unshare", to="have a read-only /sys")
def test_a_reset_policy_with_a_read_only_sys_fails_by_its_name(short_path: Path) -> None:
    script = 'mount --bind /sys /sys && mount -o remount,bind,ro /sys && exec "$@"'
    less = ("unshare", "--mount", "sh", "-c", script, "sh")
    settings = {"stateDir": str(short_path), "reclaim": {"reset": "afterForcedRelease"}}
    with _daemon(short_path, *less):
        found = list(privileges_findings(Node(settings=convert(settings))))

    told = {finding.check: finding for finding in found}
    assert told["sys-writable"].level is Level.FAIL
    assert "no PCI function is reset" in told["sys-writable"].reason
    assert "bus-writable" not in told


def test_a_path_is_on_the_deepest_mount_above_it_and_on_the_last_of_several_at_one_place() -> None:
    seen = (
        Mount(point="/", kind="ext4"),
        Mount(point="/var", kind="xfs"),
        Mount(point="/var", kind="tmpfs"),
        Mount(point="/variable", kind="nfs"),
    )
    for path, kind in [("/", "ext4"), ("/etc", "ext4"), ("/var", "tmpfs"), ("/var/lib/x", "tmpfs")]:
        mount = mount_of(seen, path)
        assert mount is not None
        assert mount.kind == kind
    assert mount_of((), "/") is None
