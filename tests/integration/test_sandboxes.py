"""A gVisor sandbox that keeps a device: named for what it is, and ended only when it may be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.sandboxes import GvisorSandbox, gvisor_sandbox
from fakes.stage import Stage, pod, stage
from simulated.pods import Pod

_GROUP = "/dev/vfio/10"
_UNREADABLE = "whose runtime's state cannot be read"


@asynccontextmanager
async def _leaky(folder: Path, **changes: str) -> AsyncIterator[tuple[Stage, Pod, GvisorSandbox]]:
    """Yield a node, a pod with its device, and the pod's sandbox that keeps the device."""
    at_once = {
        "mode": "terminate",
        "letGoGrace": "0s",
        "orphanGrace": "0s",
        "sandboxGrace": "300ms",
        "termGrace": "10s",
        "unseenGrace": "0s",
    }
    reclaim = {**at_once, **changes}
    async with stage(folder, chips=1, own_process=True, reclaim=reclaim) as node:
        former = await node.run(pod("leaky"))
        with gvisor_sandbox(node, former, node=_GROUP) as sandbox:
            yield node, former, sandbox


async def _end(node: Stage, former: Pod) -> None:
    """End a pod, in such a way that all of it is older than kubelet's last word of it."""
    await node.questions()
    await node.end(former)


async def _spared(node: Stage, sandbox: GvisorSandbox, why: str) -> str:
    """Let the next pod wait until the daemon has said *why* it ends nothing; return what it is told."""
    following = await node.submit(pod("next"))
    said = await node.waiting(following, " is still open in ", "gvisor#11545")
    log = node.folder / "daemon.log"
    await node.until(lambda: why in log.read_text(), f"the log to say {why}")
    await node.for_some_beats(12)
    assert sandbox.lives
    assert await node.ever("reclaiming") == []
    assert (await node.locks())[next(iter(node.ids(following)))] == "releasing"
    return said


async def _ended_as_one(node: Stage, sandbox: GvisorSandbox) -> None:
    """Return when all of the sandbox was ended at once."""
    await node.until(lambda: not sandbox.lives, "the sandbox to be ended")
    (move,) = await node.ever("reclaiming")
    assert all(f"pid {pid}" in move["evidence"] for pid in sandbox.pids)
    log = node.folder / "daemon.log"
    await node.until(
        lambda: "pod cgroup killed" in log.read_text(),
        lambda: "the end to be logged: " + log.read_text()[-3000:],
    )
    assert "signal sent" not in log.read_text()


async def test_a_leak_whose_runtimes_files_cannot_be_read_is_named_everywhere_and_spared(
    short_path: Path,
) -> None:
    async with _leaky(short_path) as (node, former, sandbox):
        await _end(node, former)
        said = await _spared(node, sandbox, _UNREADABLE)
        assert f"pid {sandbox.sentry}" in said
        assert ", gvisor#11545) and 1 more of default/leaky, which has ended; " in said
        rows = {row["pid"]: row for row in await node.asked("holders")}
        assert rows.keys() == set(sandbox.pids)
        assert all("gvisor#11545" in row["cause"] for row in rows.values())
        assert rows[sandbox.stub]["cause"].startswith("gVisor stub process")


async def test_a_sandbox_that_is_not_idle_for_long_enough_is_spared(short_path: Path) -> None:
    async with _leaky(short_path, sandboxGrace="1h") as (node, former, sandbox):
        sandbox.idle()
        await _end(node, former)
        await _spared(node, sandbox, "for less than 3600 s that nothing but pause runs")


async def test_an_idle_sandbox_under_a_living_shim_is_ended_as_one_after_its_grace(
    short_path: Path,
) -> None:
    async with _leaky(short_path) as (node, former, sandbox):
        sandbox.at_work()
        await _end(node, former)
        await _spared(node, sandbox, "its runtime still runs container work")
        sandbox.idle()
        await _ended_as_one(node, sandbox)
        (following,) = node.kubelet.pods.values()
        await node.running(following)


async def test_a_sandbox_that_lost_its_shim_is_ended_as_one(short_path: Path) -> None:
    async with _leaky(short_path, sandboxGrace="1h") as (node, former, sandbox):
        sandbox.end_shim()
        await _end(node, former)
        await _ended_as_one(node, sandbox)
        await node.until(node.healthy, "the device to be offered again")
        await node.run(pod("next"))


async def test_a_sandbox_that_lost_its_shim_is_spared_where_the_runtime_has_a_container_in_it(
    short_path: Path,
) -> None:
    async with _leaky(short_path) as (node, former, sandbox):
        sandbox.at_work()
        sandbox.end_shim()
        await _end(node, former)
        await _spared(node, sandbox, "its runtime still runs container work")
