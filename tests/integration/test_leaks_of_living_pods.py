"""A living pod whose own gVisor sandbox keeps its device: it is told, or made a new sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.sandboxes import GvisorSandbox, end_programs, gvisor_sandbox
from fakes.stage import Stage, pod, stage
from simulated.pods import Phase, Pod

_GROUP = "/dev/vfio/10"


_RESTART = {
    "mode": "terminate",
    "leakedSandbox": "restart",
    "leakGrace": "100ms",
    "letGoGrace": "0s",
    "orphanGrace": "0s",
}


async def _leaky(node: Stage) -> Pod:
    """Run a pod whose program is started again whenever it ends."""
    made = await node.run(pod("leaky", restart="Always"))
    await node.questions()
    return made


@asynccontextmanager
async def _restarting(folder: Path) -> AsyncIterator[tuple[Stage, Pod, GvisorSandbox]]:
    """Yield a node that ends leaking sandboxes, a pod, and its own sandbox with its device."""
    async with stage(folder, chips=1, own_process=True, reclaim=_RESTART) as node:
        living = await _leaky(node)
        with gvisor_sandbox(node, living, node=_GROUP) as sandbox:
            yield node, living, sandbox


async def _kept(node: Stage, living: Pod, sandbox: GvisorSandbox, why: str) -> None:
    """Return when the daemon has said *why* it ends nothing, and kept to it for a while."""
    log = node.folder / "daemon.log"
    await node.until(
        lambda: f'"reason": "{why}' in log.read_text(),
        lambda: f"{why!r} to be said: {log.read_text()[-3000:]}",
    )
    await node.for_some_beats(12)
    assert sandbox.lives
    assert living.starts == 1
    assert set((await node.locks()).values()) == {"held"}


async def test_by_default_a_pod_is_told_of_its_own_leaking_sandbox_and_what_to_do(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={"mode": "terminate"}) as node:
        living = await _leaky(node)
        with gvisor_sandbox(node, living, node=_GROUP) as sandbox:
            sandbox.idle()
            end_programs(node, living, sandbox)
            said = await node.waits_again(living, starts=1)
            assert " is kept by a file that this pod's gVisor sandbox leaked: " in said
            assert f"pid {sandbox.sentry}" in said
            assert (
                "; delete the pod, or set reclaim.leakedSandbox: restart (holdfast holders)" in said
            )
            await node.for_some_beats(12)
            assert sandbox.lives
            assert living.phase is not Phase.FAILED
            assert set((await node.owners()).values()) == {living.uid}


async def test_with_restart_an_idle_leaking_sandbox_is_ended_and_its_pod_starts_again(
    short_path: Path,
) -> None:
    async with _restarting(short_path) as (node, living, sandbox):
        sandbox.idle()
        end_programs(node, living, sandbox)
        await node.until(lambda: not sandbox.lives, "the sandbox to be ended")
        await node.until(lambda: living.starts == 2, "the pod to start again")
        moves = [move["evidence"] for move in await node.ever("held")]
        (told,) = [text for text in moves if "ending the pod's own leaking sandbox" in text]
        assert all(f"pid {pid}" in told for pid in sandbox.pids)
        assert await node.ever("releasing") == []


async def test_with_restart_a_sandbox_in_which_another_container_runs_is_kept(
    short_path: Path,
) -> None:
    async with _restarting(short_path) as (node, living, sandbox):
        sandbox.at_work()
        end_programs(node, living, sandbox)
        await _kept(node, living, sandbox, "its runtime runs container work-of-leaky in it")


async def test_with_restart_a_sandbox_that_no_container_waits_for_is_left_alone(
    short_path: Path,
) -> None:
    async with _restarting(short_path) as (node, living, sandbox):
        sandbox.idle()
        # Its program runs on: the sandbox keeps the device, as it may.
        await node.for_some_beats(12)
        assert sandbox.lives
        assert living.phase is Phase.RUNNING
