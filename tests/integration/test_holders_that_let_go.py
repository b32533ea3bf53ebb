"""A holder that closes a device and lives on keeps it from nobody, whatever state its lock is in."""

from pathlib import Path

from fakes.opener import stranger
from fakes.stage import pod, stage

_KILLS = {
    "mode": "terminate",
    "letGoGrace": "100ms",
    "orphanGrace": "100ms",
    "termGrace": "100ms",
    "killGrace": "200ms",
    "retry": {"first": "1h", "last": "1h"},
}


async def test_a_foreign_holder_that_closes_the_device_and_lives_on_gives_it_back(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        with stranger(node.node, "/dev/vfio/10") as agent:
            await node.until_locks({only: "foreign"})
            agent.close_one()
            await node.until_free()
            await node.until(lambda: node.healthy() == {only}, "the device to be offered again")
            await node.run(pod("next"))
            assert agent.lives


async def test_a_device_that_its_pod_passed_on_is_released_when_the_other_closes_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        old = await node.run(pod("old"))
        with stranger(node.node, "/dev/vfio/10") as agent:
            await node.end(old)
            waits = await node.submit(pod("waits"))
            await node.waiting(waits, f"pid {agent.pid}")
            assert await node.locks() == {only: "releasing"}
            agent.close_one()
            await node.running(waits)
            assert agent.lives


async def test_a_quarantined_device_returns_when_the_last_holder_closes_it_and_lives_on(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_KILLS) as node:
        (only,) = node.healthy()
        old = await node.run(pod("old", runs_for=0.0, orphan=1))
        with stranger(node.node, "/dev/vfio/10") as agent:
            await node.until_locks({only: "quarantined"})
            assert not node.orphans(old)
            agent.close_one()
            await node.until_free()
            assert agent.lives


async def test_a_foreign_holder_that_lets_go_is_not_kept_in_mind_over_another_that_is_stuck(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        with stranger(node.node, "/dev/vfio/10") as agent:
            await node.until_locks({only: "foreign"})
            stuck = node.node.root.proc / "4000000"
            stuck.mkdir()
            (stuck / "fd").symlink_to("fd")  # cannot be inspected, for whatever reason
            (stuck / "stat").write_text(f"4000000 (stuck) S 1 {' '.join(['0'] * 48)}\n")
            agent.close_one()
            await node.until_free()
            (move,) = await node.ever("free")
            assert (
                "unverified: not every process can be seen: pid 4000000 (stuck)" in move["evidence"]
            )
            await node.until(lambda: node.healthy() == {only}, "kubelet to hear that it is free")
            await node.run(pod("next"))
            assert agent.lives
