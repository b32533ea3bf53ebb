"""An NVML that does not come back from a call, on a whole node: nothing else stops, nothing is free.

The daemon, pynvml, kubelet's protocol and the probes are real; the library hangs as it is told to.
"""

import asyncio
import signal
from typing import Any

from msgspec.structs import replace

from fakes.gpustage import GpuStage, wants
from fakes.http import served
from fakes.stage import pod
from ports import free_port
from simulated.nvml import cards, uuid

_STEP = 1.0
"""How long each call hangs, in seconds: some calls make one reading, which is far above _PATIENCE."""
_PATIENCE = "500ms"


async def _hang(node: GpuStage, port: int) -> None:
    """Let all calls about GPU 0 hang, and return when /readyz says so."""
    node.gpus.change(0, lambda card: replace(card, hangs={"*": _STEP}))
    await _named(node, port)


async def _named(node: GpuStage, port: int) -> None:
    async def named() -> bool:
        status, text = await asyncio.to_thread(served, port, "/readyz")
        return status == 503 and any(
            line.startswith("FAILED lane nvml") and "a call has hung" in line
            for line in text.splitlines()
        )

    await node.stage.until(named, "/readyz to name the lane of NVML")


async def test_while_nvml_hangs_no_gpu_becomes_free_and_tpus_go_on(gpu_stage: Any) -> None:
    port = free_port()
    http = {"address": "127.0.0.1", "port": port}
    async with gpu_stage(callTimeout=_PATIENCE, others={"http": http}) as node:
        await node.arrive(2)
        former = await node.stage.run(wants("former", 2))
        await _hang(node, port)
        await node.stage.end(former)
        gpus = {uuid(0): "releasing", uuid(1): "releasing"}
        await node.stage.until_locks(gpus)
        first = await node.stage.run(pod("tpu", runs_for=0.5, orphan=1))
        orphan = await node.stage.orphan(first)
        following = await node.stage.run(pod("next-tpu"))
        assert orphan not in node.stage.orphans(first), "it was ended, and its chip reclaimed"
        await node.stage.end(following)
        await node.stage.until_locks(gpus)
        await node.stage.for_some_beats()
        assert await node.stage.locks() == gpus
        assert (await asyncio.to_thread(served, port, "/livez"))[0] == 200
        await _named(node, port)
        await node.until_said(0, "no answer within")

        node.gpus.change(0, lambda card: replace(card, hangs={}))
        await node.stage.until_free()
        await node.until_healthy(0, 1)
        await node.stage.until_problem("lane nvml", "")


async def test_a_gpu_that_hangs_before_it_was_ever_seen_keeps_no_other_device_back(
    gpu_stage: Any,
) -> None:
    port = free_port()
    http = {"address": "127.0.0.1", "port": port}
    async with gpu_stage(callTimeout=_PATIENCE, others={"http": http}) as node:
        node.gpus.arrive(1, hangs={"*": _STEP})
        await _hang(node, port)
        made = await node.stage.run(pod("tpu"))
        await node.stage.end(made)
        await node.stage.until_free()
        node.gpus.change(0, lambda card: replace(card, hangs={}))
        await node.until_healthy(0)


async def test_a_wait_for_events_that_does_not_end_is_said_and_costs_no_gpu_its_health(
    gpu_stage: Any,
) -> None:
    async with gpu_stage() as node:
        await node.arrive(2)
        node.gpus.show(replace(node.gpus.stub, stall="wait"))
        await node.until_said(1, "NVML hangs in the wait for events")
        # A restart in its process waits for each thread, and that one would never come.
        before = node.stage.settings.get("tpu", {})
        for tpu, problem in (
            ({"vbarUrl": "http://127.0.0.1:8353"}, "wait for events of GPUs"),
            (before, ""),
        ):
            node.stage.configure(tpu=tpu)
            node.stage.process.send_signal(signal.SIGHUP)
            await node.stage.until_problem("configuration", problem)
        assert node.healthy() == {uuid(0), uuid(1)}
        made = await node.stage.run(wants("pod", 2))
        await node.stage.end(made)
        await node.stage.until_free()

        node.gpus.show(replace(node.gpus.stub, stall=""))
        node.gpus.xid(uuid(1), 79)
        await node.until_healthy(0)
        await node.stage.until(lambda: _silent(node, 0), "nothing to be said of the other")


async def test_an_end_of_events_that_does_not_come_is_said(gpu_stage: Any) -> None:
    """Another layout is listened to anew, for which the subscription so far has to end."""
    async with gpu_stage() as node:
        await node.arrive(2)
        node.gpus.show(replace(node.gpus.stub, cards=cards(3), stall="end"))
        await node.until_said(1, "NVML hangs in the wait for events")
        assert node.healthy() >= {uuid(0), uuid(1)}

        node.gpus.show(replace(node.gpus.stub, stall=""))
        await node.stage.until(lambda: _silent(node, 1), "the end of the hang")
        node.gpus.xid(uuid(1), 79)
        await node.stage.until(lambda: uuid(1) not in node.healthy(), "the Xid")


async def _silent(node: GpuStage, index: int) -> bool:
    return not await node.reasons(index)
