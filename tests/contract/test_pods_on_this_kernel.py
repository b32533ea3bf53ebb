"""When a pod is over by this kernel's own word, and how one is ended that forks on."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.cgroup2 import cgroup2, enter, fork_chains, host, populated
from fakes.ledgers import ledger_in
from fakes.reclaimscene import judging
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.reclaim.pods import CgroupOutcome, MayEnd, Pods
from holdfast.runtime.lane import Lane
from waiting import wait_until

UID = PodUid(str(uuid.uuid4()))
"""A pod of this run: another run's, or one that was killed, may have left cgroups in the tree."""
_DEAD_LEADER = """
import ctypes, sys, threading
sys.stdin.readline()
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({exit}, 0)
"""
_EXIT = {"x86_64": 60, "aarch64": 93}


@pytest.fixture
def pod() -> Iterator[Path]:
    with cgroup2(f"kubepods/pod{UID}") as made:
        (made / "main").mkdir()
        yield made


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_in(tmp_path / "state") as made:
        yield made


def _look(pod: Path) -> PodSighting:
    found = Cgroups(host(pod)).pod(UID)
    assert found is not None
    return found


@contextlib.contextmanager
def _asleep(*pass_fds: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], pass_fds=pass_fds) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_zombie_does_not_populate_its_cgroup(pod: Path) -> None:
    with _asleep() as child:
        enter(pod / "main", child.pid)
        assert (_look(pod).populated, _look(pod).processes) == (True, (child.pid,))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        facts = Procfs(host(pod)).process(child.pid)
        assert facts is not None
        assert facts.state == "Z"
        wait_until(lambda: not populated(pod), what="the kernel's word")
        assert (_look(pod).populated, _look(pod).processes) == (False, ())


@contextlib.contextmanager
def _dead_leader(pod: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a process live in *pod* whose leader has exited, as another thread has not.

    It exits there: one that has exited before stays where it was, and only its threads move.
    """
    program = _DEAD_LEADER.format(exit=_EXIT[os.uname().machine])
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        enter(pod / "main", child.pid)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        procfs = Procfs(host(pod))

        def leader_is_dead() -> bool:
            facts = procfs.process(child.pid)
            return facts is not None and facts.state == "Z"

        wait_until(leader_is_dead, what="the leader's exit")
        try:
            yield child
        finally:
            child.kill()


def test_a_process_whose_leader_has_exited_populates_its_cgroup(pod: Path) -> None:
    with _dead_leader(pod) as child:
        assert (_look(pod).populated, _look(pod).processes) == (True, (child.pid,))
        child.communicate()
    wait_until(lambda: not populated(pod), what="the end of its last thread")


def test_a_process_in_a_cgroup_below_populates_the_pod(pod: Path) -> None:
    below = pod / "main/nested/deeper"
    below.mkdir(parents=True)
    with _asleep() as child:
        enter(below, child.pid)
        assert _look(pod).populated


def test_an_empty_cgroup_is_one_whose_processes_have_closed_their_files(pod: Path) -> None:
    """A task leaves its cgroup after its files are closed: free means free from then on."""
    for _ in range(100):
        ours, theirs = os.pipe()
        with _asleep(theirs) as child:
            enter(pod / "main", child.pid)
            os.close(theirs)
            os.set_blocking(ours, False)
            child.kill()
            while populated(pod):
                pass
            assert os.read(ours, 1) == b"", "nobody has the other end open"
            os.close(ours)


def test_a_pod_that_forks_on_is_populated_at_each_look(pod: Path) -> None:
    with fork_chains(pod / "main"):
        cgroups = Cgroups(host(pod))
        for _ in range(200):
            found = cgroups.pod(UID)
            assert found is not None
            assert found.populated
        (pod / "cgroup.kill").write_text("1")
        wait_until(lambda: not populated(pod))


class _SlowToFreeze(Cgroups):
    """A cgroup is frozen only after it was waited for."""

    def freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        self._inode = inode
        if not frozen:
            super().freeze(path, inode, frozen=frozen)

    def await_frozen(self, path: str, *, patience: float) -> bool:
        super().freeze(path, self._inode, frozen=True)
        return super().await_frozen(path, patience=patience)


def _pods(pod: Path, lane: Lane, pidfds: Pidfds, ledger: Ledger) -> Pods:
    nothing: Any = None
    return Pods(
        cgroups=_SlowToFreeze(host(pod)),
        runtimes=nothing,
        procfs=Procfs(host(pod)),
        pidfds=pidfds,
        lane=lane,
        ledger=ledger,
    )


async def _kill(pods: Pods, pod: Path, may_end: MayEnd, *, as_one: MayEnd) -> CgroupOutcome:
    """End the pod's cgroup; *may_end* is the judge also when it is asked again."""
    return await pods.kill(
        UID,
        path=f"/{pod.relative_to(host(pod).cgroup)}",
        inode=pod.stat().st_ino,
        may_end=may_end,
        as_one=as_one,
        ask_again=judging(may_end),
    )


@pytest.mark.parametrize(
    ("as_one", "how"), [(True, CgroupOutcome.KILLED), (False, CgroupOutcome.FROZEN)]
)
async def test_nobody_forks_away_from_the_end_of_a_pod(
    pod: Path, lane: Lane, ledger: Ledger, as_one: bool, how: CgroupOutcome
) -> None:
    """What has another pid by the time that it is signalled is ended with its cgroup, or frozen."""
    pidfds = Pidfds(Procfs(host(pod)))
    judged: list[tuple[Member, ...]] = []

    def may_end(members: tuple[Member, ...]) -> bool:
        judged.append(members)
        return bool(members)

    with fork_chains(pod / "main"):
        # On a busy machine all that are listed may have ended by the time they are read.
        outcome = None
        while not (judged and judged[-1]):
            outcome = await _kill(
                _pods(pod, lane, pidfds, ledger), pod, may_end, as_one=lambda _: as_one
            )
        assert outcome is how
        wait_until(lambda: not populated(pod), what="the end of the chain")
        assert "frozen 0" in (pod / "cgroup.events").read_text()
    pidfds.close()
    assert all(each.process.pid > 1 for members in judged for each in members)


async def test_a_process_whose_leader_has_exited_is_ended_with_its_pod(
    pod: Path, lane: Lane, ledger: Ledger
) -> None:
    """The kernel's cgroup.kill does not end it, whoever it ends beside it."""
    pidfds = Pidfds(Procfs(host(pod)))
    with _dead_leader(pod), _asleep() as beside:
        enter(pod / "main", beside.pid)
        outcome = await _kill(_pods(pod, lane, pidfds, ledger), pod, bool, as_one=bool)
        assert outcome is CgroupOutcome.FROZEN
        wait_until(lambda: not populated(pod), what="the end of its last thread")
    pidfds.close()


async def test_a_pod_that_is_spared_once_it_is_frozen_goes_on(
    pod: Path, lane: Lane, ledger: Ledger
) -> None:
    pidfds = Pidfds(Procfs(host(pod)))
    frozen: list[bool] = []

    def may_end(_members: tuple[Member, ...]) -> bool:
        frozen.append("frozen 1" in (pod / "cgroup.events").read_text())
        return not frozen[-1]

    with fork_chains(pod / "main"):
        outcome = await _kill(
            _pods(pod, lane, pidfds, ledger), pod, may_end, as_one=lambda _: False
        )
        assert (outcome, frozen) == (CgroupOutcome.SPARED, [False, True])
        assert populated(pod)
        before = (pod / "main/cgroup.procs").read_text()
        wait_until(lambda: (pod / "main/cgroup.procs").read_text() != before, what="a fork")
    pidfds.close()
