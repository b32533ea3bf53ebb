"""A pod's cgroup that is ended as on a kernel without cgroup.kill, which came with Linux 5.14."""

import asyncio
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.ids import BootId, PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.reclaim.pods import CgroupOutcome, MayEnd, Pods
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from vm.guest.holding import FORKED
from vm.guest.node import GuestNode
from vm.guest.waits import wait_until


class _OldKernel(Cgroups):
    """This kernel without its cgroup.kill."""

    def kill(self, path: str, inode: int) -> NoReturn:
        raise HostError(f"cannot write cgroup.kill of {path}, inode {inode}: there is none")


def case_without_cgroup_kill_a_pod_is_ended_frozen(node: GuestNode) -> str:
    outcome, lived = _end(node, may_end=True)
    assert outcome is CgroupOutcome.FROZEN
    assert not lived
    return "frozen, SIGKILL to each by pidfd, thawed: the cgroup is empty, enable=0"


def case_without_cgroup_kill_a_pod_that_is_spared_goes_on(node: GuestNode) -> str:
    outcome, lived = _end(node, may_end=False)
    assert outcome is CgroupOutcome.SPARED
    assert lived
    return "frozen, judged otherwise, thawed: its processes go on, unsignalled"


def _end(node: GuestNode, *, may_end: bool) -> tuple[CgroupOutcome, bool]:
    """Return what came of it, and whether the pod's processes live on unfrozen."""
    chip, pod = node.chips[0], node.pod()
    node.hold(FORKED, chip, cgroup=pod.container()).release()
    wait_until(lambda: chip.enable == 1 and pod.populated)
    outcome = asyncio.run(_through_holdfast(PodUid(pod.uid), may_end=may_end))
    events = pod.path / "cgroup.events"
    if may_end:
        wait_until(lambda: not pod.populated and chip.enable == 0, what="the pod's end")
    wait_until(lambda: "frozen 0" in events.read_text(), what="the thaw")
    return outcome, pod.populated


async def _through_holdfast(pod: PodUid, *, may_end: bool) -> CgroupOutcome:
    with TemporaryDirectory() as state, closing(Lane("ledger", deadline=20.0)) as lane:
        ledger = await open_ledger(
            Path(state), lane, clock=SystemClock(), boot=BootId("boot"), locks=()
        )
        try:
            return await _noted_in(ledger, pod, may_end=may_end)
        finally:
            await ledger.close()


async def _noted_in(ledger: Ledger, pod: PodUid, *, may_end: bool) -> CgroupOutcome:
    root = HostRoot.under()
    procfs, lane = Procfs(root), Lane("pods", deadline=20.0)
    cgroups, pidfds = _OldKernel(root), Pidfds(procfs)
    pods = Pods(
        cgroups=cgroups,
        runtimes=RuntimeFiles(root),
        procfs=procfs,
        pidfds=pidfds,
        lane=lane,
        ledger=ledger,
    )
    found = cgroups.pod(pod)
    assert found is not None
    judged: list[int] = []

    def judge(members: tuple[Member, ...]) -> bool:
        """Agree before it is frozen; what counts here is the last word."""
        judged.append(len(members))
        return bool(members) and (may_end or len(judged) == 1)

    async def ask_again() -> MayEnd:
        return judge

    try:
        return await pods.kill(
            pod,
            path=found.cgroup,
            inode=found.inode,
            may_end=judge,
            as_one=bool,
            ask_again=ask_again,
        )
    finally:
        assert len(judged) == 2
        pidfds.close()
        lane.close()
