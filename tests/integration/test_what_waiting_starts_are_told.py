"""The texts with which a container start is refused: true, the same while nothing changes."""

import sqlite3
from contextlib import closing
from pathlib import Path

from fakes.stage import end, pod, stage


async def test_a_release_that_cannot_be_recorded_is_not_told_as_a_device_in_use(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
        old = await node.run(pod("old", runs_for=0.0, orphan=1))
        left = await node.orphan(old)
        following = await node.submit(pod("next"))
        await node.waiting(following, f"pid {left}")
        with closing(sqlite3.connect(node.state / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            end(left)
            told = await node.waiting(following, "its release cannot be recorded")
        assert "no process has it open" not in told
        await node.running(following)
