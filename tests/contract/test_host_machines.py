"""Which processes are monitors of virtual machines, however many files they have open."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import HostError
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from simulated.proctree import ProcTree

REAL = HostRoot.under()
_MANY_FILES = """
import os, sys
for _ in range(900):
    os.dup(0)
"""
_LONG_PATH = """
import os, shutil, sys, tempfile
top = tempfile.mkdtemp()
os.chdir(top)
for _ in range(25):
    os.mkdir("x" * 200)
    os.chdir("x" * 200)
kept = os.open("file", os.O_CREAT | os.O_RDWR)
shutil.rmtree(top)
"""
"""More than 4096 bytes, which no link of /proc tells."""
_MACHINE = """
import fcntl, mmap
machine = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE01, 0)  # KVM_CREATE_VM
cpu = fcntl.ioctl(machine, 0xAE41, 0)  # KVM_CREATE_VCPU
mapped = mmap.mmap(cpu, mmap.PAGESIZE)
"""
_SAY_SO = """
print("made", flush=True)
sys.stdin.read()
"""


def _runs_a_machine(program: str) -> bool:
    command = [sys.executable, "-c", program + _SAY_SO]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            pytest.skip("no virtual machine can be made here")
        found = Procfs(REAL).runs_a_machine(child.pid)
        child.communicate()
        return found


@pytest.mark.parametrize("program", [_MANY_FILES, _LONG_PATH])
def test_a_process_without_a_machine_runs_none_whatever_it_has_open(program: str) -> None:
    assert not _runs_a_machine(program)


def test_a_real_machine_is_known_by_its_few_files() -> None:
    assert _runs_a_machine("import os, sys\n" + _MACHINE)


def test_a_real_machine_behind_many_files_is_known_by_its_processors() -> None:
    assert _runs_a_machine(_MANY_FILES + _MACHINE)


def _tree(folder: Path, files: int, maps: str) -> Procfs:
    tree = ProcTree(folder)
    home = tree.process(70)
    for number in range(files):
        (home / f"fd/{number}").symlink_to("/dev/null")
    (home / "maps").write_text(maps)
    return Procfs(tree.root)


@pytest.mark.parametrize("before", [0, 65_536 - 20, 65_536 * 3 - 9])
def test_a_processor_anywhere_among_the_mappings_is_one(tmp_path: Path, before: int) -> None:
    procfs = _tree(tmp_path, 129, f"{'x' * before}anon_inode:kvm-vcpu:0\n")
    assert procfs.runs_a_machine(70)


def test_of_few_files_the_files_alone_tell(tmp_path: Path) -> None:
    assert not _tree(tmp_path, 128, "anon_inode:kvm-vcpu:0\n").runs_a_machine(70)


def test_more_mappings_than_are_read_are_no_answer(tmp_path: Path) -> None:
    procfs = _tree(tmp_path, 129, "")
    maps = tmp_path / "proc/70/maps"
    with maps.open("r+") as file:
        file.truncate(1 << 23)
    assert "too many" in _why_untold(procfs)
    maps.unlink()
    maps.mkdir()
    assert "cannot read the mappings" in _why_untold(procfs)
    maps.rmdir()
    assert _why_untold(procfs) == "", "it is gone"


def _why_untold(procfs: Procfs) -> str:
    """Return why it cannot be told whether process 70 runs a machine; empty: it runs none."""
    try:
        assert not procfs.runs_a_machine(70)
    except HostError as error:
        return str(error)
    return ""
