"""On a running daemon the new value of a live key counts from the reload on, and no stream ends."""

import asyncio
from pathlib import Path
from typing import Any

from fakes.stage import Stage, pod, stage
from holdfast.app.daemon import _pulse
from holdfast.app.wiring.live import LiveSettings
from holdfast.runtime.watched import Watched
from holdfast.settings import convert
from holdfast.telemetry.board import Board
from waiting import until


async def reload(node: Stage, **changes: Any) -> None:
    """Have *node* take up *changes*, which all are live."""
    node.configure(**changes)

    async def taken_up() -> bool:
        answer = await node.asked("reload")
        assert not answer["problem"]
        assert "restart" not in answer["changed"]
        return not answer["changed"]

    await node.until(taken_up, "the file to be taken up")
    assert "ListAndWatch stream closed" not in node.log


async def test_what_is_in_release_is_withheld_by_another_patience(short_path: Path) -> None:
    async with stage(
        short_path, chips=2, own_process=True, withholdAfter="1h", reclaim={"mode": "observe"}
    ) as node:
        old = await node.run(pod("old", orphan=1))
        (chip,) = node.ids(old)
        await node.end(old)
        await node.until_locks({chip: "releasing"})
        assert len(node.healthy()) == 2

        await reload(node, withholdAfter="10ms")
        await node.until(lambda: chip not in node.healthy(), "the chip to be withheld")

        await reload(node, withholdAfter="1h")
        await node.until(lambda: len(node.healthy()) == 2, "the chip to be offered again")


async def test_an_answer_that_is_nobodys_is_over_after_another_time(short_path: Path) -> None:
    async with stage(
        short_path, chips=1, own_process=True, allocate={"pendingTimeout": "1h"}
    ) as node:
        (chip,) = node.healthy()
        await node.allocate(chip)
        await node.until_locks({chip: "held"})

        await reload(node, allocate={"pendingTimeout": "10ms"})
        await node.until_free()


async def test_a_history_that_may_be_shorter_is_cut_at_once(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        for name in ("one", "two"):
            await node.end(await node.run(pod(name)))
            await node.until_free()
        assert len(await node.asked("history", limit=1000)) > 1

        await reload(node, history={"perDevice": 1})

        async def cut() -> bool:
            return len(await node.asked("history", limit=1000)) == 1

        await node.until(cut, "the history to be cut")


async def test_the_probes_go_by_a_shorter_patience_only_once_the_loop_has_shown_itself() -> None:
    stall, live = Watched(3600.0), LiveSettings(convert({"liveness": {"loopStall": 3600}}))
    at_beats: list[float] = []

    class Noting(Board):
        def beat(self) -> None:
            at_beats.append(stall.value)
            super().beat()

    pulse = asyncio.create_task(_pulse(Noting(), stall, live))
    await until(lambda: at_beats == [3600.0])
    live.put(convert({"liveness": {"loopStall": 1800}}))
    await stall.until(lambda now: now == 1800.0)
    assert at_beats[:2] == [3600.0, 3600.0]
    pulse.cancel()
    await asyncio.gather(pulse, return_exceptions=True)
