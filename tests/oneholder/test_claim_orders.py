"""Two pods on one claim: a part of the orders that `make one-holder` plays, the same each time."""

import asyncio
import contextlib
import random
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from oneholder.node import Broken, ClaimNode
from oneholder.orders import MOST_PASSES, Leaves, Order, Pause, Step, orders, play
from oneholder.pods import PlayedPod
from oneholder.virtualtime import VirtualLoop

_JOINS = (Step.FIRST, Step.CRASH, Step.ENDS, Step.JOINS, Step.KUBELET, Step.FORCED)
_MEANWHILE = (Step.FIRST, Step.ENDS, Step.CRASH, Step.JOINS, Step.KUBELET, Step.FORCED)
_CALLED = (Step.FIRST, Step.ENDS, Step.JOINS, Step.CRASH, Step.FORCED, Step.KUBELET)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [False, True])
def test_what_is_promised_of_a_claim_holds_wherever_the_daemon_is_killed(*, lost: bool) -> None:
    order = Order(steps=_JOINS, lost=lost)
    points = play(order).points
    assert points > 20
    for crash in range(points + 1):
        tried = replace(order, crash=crash)
        assert not play(tried).broken, str(tried)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pause", list(Pause))
def test_a_pod_that_joins_while_the_former_one_is_unprepared_keeps_the_claim(pause: Pause) -> None:
    order = Order(steps=_CALLED, leaves=Leaves.ORPHAN, pause=pause)
    assert not play(order).broken, str(order)


@pytest.mark.timeout(600)
def test_a_pod_that_joins_while_the_daemon_is_down_and_kubelet_restarts_keeps_the_claim() -> None:
    for passes in range(MOST_PASSES):
        order = Order(steps=_MEANWHILE, leaves=Leaves.ORPHAN, pause=Pause.NONE, passes=passes)
        assert not play(order).broken, str(order)


async def _joined_on_the_way(loop: VirtualLoop, root: Path, passes: int) -> list[str]:
    """Return what was broken where a pod joins so many turns of the loop after the other's end."""
    node = ClaimNode(loop, root, loses_ledger=False)
    former, joins = (PlayedPod(name=each, claim="shared", lingers=True) for each in ("one", "two"))
    try:
        await node.start()
        node.submit(former)
        await asyncio.sleep(5.0)
        node.delete(former)
        for _ in range(passes):
            await asyncio.sleep(0)
        node.submit(joins)
        await asyncio.sleep(5.0)
        with contextlib.suppress(Broken):
            node.check(calm=node.daemon.calm)
    finally:
        await node.close()
    return list(node.broken)


@pytest.mark.parametrize("passes", range(16))
def test_a_pod_that_joins_while_the_call_for_the_end_is_on_its_way_keeps_the_claim(
    passes: int, tmp_path: Path
) -> None:
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(_joined_on_the_way(loop, tmp_path, passes)) == []


@pytest.mark.timeout(600)
def test_some_orders_of_all_keep_what_is_promised() -> None:
    for order in islice(orders(1, random.Random(1)), 0, None, 18):
        assert not play(order).broken, str(order)
