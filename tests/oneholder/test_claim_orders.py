"""Two pods on one claim: a part of the orders that `make one-holder` plays, the same each time."""

import random
from itertools import islice

import pytest
from msgspec.structs import replace

from oneholder.orders import LOOKS, MOST_PASSES, Leaves, Order, Pause, Step, orders, play

_JOINS = (Step.FIRST, Step.CRASH, Step.ENDS, Step.JOINS, Step.KUBELET, Step.FORCED)
_MEANWHILE = (Step.FIRST, Step.ENDS, Step.CRASH, Step.JOINS, Step.KUBELET, Step.FORCED)
_CALLED = (Step.FIRST, Step.ENDS, Step.JOINS, Step.CRASH, Step.FORCED, Step.KUBELET)
_TWICE = (Step.FIRST, Step.CRASH, Step.FORCED, Step.JOINS, Step.ENDS, Step.KUBELET)


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
@pytest.mark.parametrize("steps", [_MEANWHILE, _CALLED])
def test_a_pod_that_joins_while_the_former_one_is_unprepared_keeps_the_claim(
    steps: tuple[Step, ...],
) -> None:
    order = Order(steps=steps, leaves=Leaves.ORPHAN)
    paused = (replace(order, pause=each) for each in Pause)
    at_once = (replace(order, pause=Pause.NONE, passes=each) for each in range(1, MOST_PASSES))
    for tried in (*paused, *at_once):
        assert not play(tried).broken, str(tried)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reads", [0.0, 3.0])
def test_a_pod_that_joins_during_two_calls_for_the_end_keeps_the_claim(reads: float) -> None:
    order = Order(steps=_TWICE, leaves=Leaves.ORPHAN, pause=Pause.WITHIN_A_CALL, reads=reads)
    played = {looks: play(replace(order, looks=looks)) for looks in LOOKS}
    assert not {looks: each.broken for looks, each in played.items() if each.broken}
    assert any(each.forced for each in played.values())


@pytest.mark.timeout(600)
def test_some_orders_of_all_keep_what_is_promised() -> None:
    for order in islice(orders(1, random.Random(1)), 0, None, 18):
        assert not play(order).broken, str(order)
