"""Kata with devices plugged in cold: a pod's machine has them before any container of it starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.opener import Opener, opener
from fakes.stage import Stage, pod, stage
from simulated.pods import Pod

_QEMU = "qemu-system-x86"


@contextmanager
def _machine(node: Stage, of: Pod | None) -> Iterator[Opener]:
    """Have the virtual machine of a pod's sandbox open the device, as the group of a VFIO one."""
    with opener(node.node.node("/dev/vfio/10"), command=_QEMU) as machine:
        if of is None:
            node.node.add_process(machine.pid, "/kata_overhead/sandbox")
        else:
            node.node.add_pod(of.uid)
            node.node.enter(of.uid, "sandbox", machine.pid)
        yield machine


async def test_a_pod_whose_own_machine_has_its_device_starts_and_so_does_its_next_container(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        # The image is pulled while the machine is up already.
        kata = await node.submit(pod("kata", pull=1.0, opens=False, runs_for=0.5, restart="Always"))
        with _machine(node, kata) as machine:
            await node.until(lambda: kata.starts >= 2, lambda: f"it to start again; {kata.waiting}")
            moves = await node.asked("history", limit=100)
            told = f"only the virtual machine of pod {kata.uid} itself has it (pid {machine.pid})"
            assert [told in each["evidence"] for each in moves].count(True) >= 2
            assert not await node.ever("foreign")
            await node.end(kata)
        assert all("kata started on" in each for each in node.runtime.trespasses)
        node.runtime.trespasses.clear()  # it was its own machine that had it
        await node.until_free()


async def test_a_machine_that_got_the_device_after_a_start_is_waited_for_at_the_next(
    short_path: Path,
) -> None:
    """Plugged in hot, for the container that ended: it has not let go yet."""
    async with stage(short_path, chips=1) as node:
        kata = await node.run(pod("kata", opens=False, runs_for=2.0, restart="Always"))
        with _machine(node, kata) as machine:
            await node.waits_again(kata, starts=1)
            assert f"{_QEMU} (pid {machine.pid})" in kata.waiting
            machine.close_one()
            await node.until(lambda: kata.starts == 2, "it to start again")


async def test_a_machine_of_which_nothing_shows_whose_it_is_is_refused_with_what_to_set(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        kata = await node.submit(pod("kata", pull=1.0, opens=False))
        with _machine(node, None) as machine:
            said = await node.waiting(kata, f"pid {machine.pid}")
            assert "own virtual machine, set Kata's sandbox_cgroup_only = true" in said
            machine.close_one()
            await node.running(kata)


async def test_a_machine_that_got_the_device_before_the_former_pod_was_through_keeps_nobody_waiting(
    short_path: Path,
) -> None:
    """The kernel gives a group to one at a time: who has it shows that the former pod has not."""
    # A look may find the group open before it can find the machine, and is made again then; and the
    # former pod may end before its cgroup was seen.
    reclaim = {"mode": "observe", "foreignScan": "1s"}
    async with stage(short_path, chips=1, reclaim=reclaim) as node:
        (only,) = node.healthy()
        old = await node.run(pod("old"))
        node.kubelet.delete(old, grace=1.0)
        await node.until(lambda: old.stopped, "it to be stopped")
        with _machine(node, None) as former:  # keeps the lock until the next pod is there
            await node.until_locks({only: "releasing"})
            kata = await node.submit(pod("kata", opens=False))
            await node.waiting(kata, f"pid {former.pid}")
            with _machine(node, kata):
                former.close_one()
                await node.running(kata)
                assert await node.owners() == {only: kata.uid}
        node.runtime.trespasses.clear()  # it was its own machine that had it
