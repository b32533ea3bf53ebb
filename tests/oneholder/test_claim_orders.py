"""Two pods on one claim: a part of the orders that `make one-holder` plays, the same each time."""

import random
from itertools import islice

import pytest
from msgspec.structs import replace

from oneholder.orders import MOST_PASSES, Leaves, Order, Pause, Step, orders, play

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


@pytest.mark.timeout(600)
def test_some_orders_of_all_keep_what_is_promised() -> None:
    for order in islice(orders(1, random.Random(1)), 0, None, 18):
        assert not play(order).broken, str(order)
