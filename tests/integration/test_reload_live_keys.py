"""On a running daemon the new value of a live key counts from the reload on, and no stream ends."""

import subprocess
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.gpustage import sharing, wants
from fakes.stage import pod, stage
from holdfast.app.daemon import _pulse
from holdfast.app.wiring.live import LiveSettings
from holdfast.runtime.watched import Watched
from holdfast.settings import convert
from holdfast.settings.sources import LoadedSettings
from holdfast.telemetry.readyz import Board
from simulated.nvml import uuid
from waiting import beside, until


async def test_other_times_and_another_length_of_the_history_count_at_once(
    short_path: Path,
) -> None:
    reclaim, allocate = {"mode": "observe"}, {"pendingTimeout": "1h"}
    async with stage(
        short_path,
        chips=2,
        own_process=True,
        withholdAfter="1h",
        reclaim=reclaim,
        allocate=allocate,
    ) as node:
        # After which patience what is in release is withheld.
        old = await node.run(pod("old", orphan=1))
        (chip,) = node.ids(old)
        (other,) = node.healthy() - {chip}
        await node.end(old)
        await node.until_locks({chip: "releasing"})
        assert len(node.healthy()) == 2
        await node.reload(withholdAfter="10ms")
        await node.until(lambda: chip not in node.healthy(), "the chip to be withheld")
        await node.reload(withholdAfter="1h")
        await node.until(lambda: len(node.healthy()) == 2, "the chip to be offered again")

        # After which time an answer that is nobody's is over.
        await node.allocate(other)
        await node.until_locks({chip: "releasing", other: "held"})
        await node.reload(allocate={"pendingTimeout": "10ms"})
        await node.until_locks({chip: "releasing"})

        # How much of the past is kept.
        assert len(await node.asked("history", limit=1000)) > 2
        await node.reload(history={"perDevice": 1})

        async def cut() -> bool:
            return len(await node.asked("history", limit=1000)) == 2

        await node.until(cut, "the history to be cut")


async def test_the_probes_go_by_a_shorter_patience_only_once_the_loop_has_shown_itself() -> None:
    stall, live = (
        Watched(3600.0),
        LiveSettings(LoadedSettings(settings=convert({"liveness": {"loopStall": 3600}}))),
    )
    at_beats: list[float] = []

    class Noting(Board):
        def beat(self) -> None:
            at_beats.append(stall.value)
            super().beat()

    async with beside(_pulse(Noting(), stall, live)):
        await until(lambda: at_beats == [3600.0])
        live.in_use.set(convert({"liveness": {"loopStall": 1800}}))
        await stall.until(lambda now: now == 1800.0)
        assert at_beats[:2] == [3600.0, 3600.0]


async def test_other_rules_for_gpus_count_at_once(gpu_stage: Any) -> None:
    async with gpu_stage(healthQuiet="1h") as node:
        await node.arrive(3)
        gpu = node.stage.settings["gpu"]
        node.gpus.xid(uuid(1), 79)
        node.gpus.xid(uuid(2), 63)
        await node.until_healthy(0)

        # What is heard of, and for how long.
        gpu = {**gpu, "disableHealthChecks": "79, nonsense"}
        await node.stage.reload(gpu=gpu)
        await node.until_healthy(0, 1)
        assert "words that name no Xid" in node.stage.log
        gpu = {**gpu, "healthQuiet": "10ms"}
        await node.stage.reload(gpu=gpu)
        await node.until_healthy(0, 1, 2)
        node.gpus.xid(uuid(0), 79)
        node.gpus.xid(uuid(1), 48)
        await node.until_healthy(0, 2)
        gpu = {**gpu, "enableHealthChecks": "79"}
        await node.stage.reload(gpu=gpu)
        node.gpus.xid(uuid(0), 79)
        await node.until_healthy(2)

        # Who may keep one open.
        with subprocess.Popen(["sleep", "600"]) as agent:
            node.stage.node.add_process(agent.pid, "/system.slice")
            uses = (("compute", agent.pid, 1 << 30),)
            node.gpus.change(2, lambda card: replace(card, processes=uses))
            waits = await node.stage.submit(wants("behind-the-agent", 1))
            await node.stage.waiting(waits, f"pid {agent.pid}")
            await node.stage.reload(gpu={**gpu, "monitors": ["sleep"]})
            await node.stage.running(waits)
            agent.kill()


async def test_a_driver_is_looked_for_and_listed_after_another_time(gpu_stage: Any) -> None:
    async with gpu_stage(look="1h", rescan="1h") as node:
        gpu = node.stage.settings["gpu"]
        node.gpus.arrive(2)
        await node.stage.reload(gpu={**gpu, "look": "50ms"})
        await node.until_healthy(0, 1)
        node.gpus.show(replace(node.gpus.stub, cards=node.gpus.stub.cards[:1]))
        await node.stage.reload(gpu={**gpu, "look": "50ms", "rescan": "50ms"})
        await node.until_healthy(0)


async def test_more_than_one_replica_can_be_refused_at_once(gpu_stage: Any) -> None:
    async with gpu_stage(others={"sharing": sharing(2)}) as node:
        node.gpus.arrive(1)
        await node.stage.until(lambda: len(node.healthy()) == 2, "two replicas")
        await node.stage.reload(sharing=sharing(2, failRequestsGreaterThanOne=True))
        refused = await node.stage.kubelet.submit(wants("greedy", 2))
        assert "maximum request size for shared resources is 1; found 2" in refused.message
