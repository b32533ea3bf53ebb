"""What looks that only time calls for may cost, and whose come first."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.inuse.budget import Budget, Share
from holdfast.runtime.watched import Watched


def budget(whole: float, *, gaps_for: float | None = None) -> Budget:
    look: Any = SimpleNamespace(full_scan_cpu_seconds=whole, gaps_for=gaps_for)
    return Budget(cast("Any", look), rescan=Watched(60.0))


def test_who_waits_comes_first_and_the_clock_last() -> None:
    shares = [each.value for each in Share]
    assert shares == sorted(shares, reverse=True)
    assert list(Share) == [Share.EXITS, Share.START, Share.HOLDERS, Share.CLOCK]


@pytest.mark.parametrize(
    ("whole", "start", "clock"),
    [
        (0.0, 0.0, 60.0),
        (0.02, 4.0, 60.0),
        (0.2, 40.0, 400.0),
        (1.0, 60.0, 2000.0),
    ],
)
def test_the_more_a_look_at_all_processes_costs_the_rarer_it_is(
    whole: float, start: float, clock: float
) -> None:
    spent = budget(whole)
    assert spent.start == pytest.approx(start)
    assert spent.clock == pytest.approx(clock)


@pytest.mark.parametrize(
    ("gaps_for", "clock"), [(None, 400), (0, 10), (10, 20), (30, 40), (390, 400), (9000, 400)]
)
def test_after_a_look_with_gaps_the_next_is_soon_and_then_ever_later(
    gaps_for: float | None, clock: float
) -> None:
    spent = budget(0.2, gaps_for=gaps_for)
    assert spent.clock == pytest.approx(clock)
    assert spent.start == pytest.approx(40)


@pytest.mark.parametrize(
    ("cost", "held", "to_free"), [(0, 5, 1), (0.002, 5, 2), (0.02, 20, 5), (9, 60, 5)]
)
def test_looks_at_known_holders_are_rarer_where_nobody_waits(
    cost: float, held: float, to_free: float
) -> None:
    spent = budget(0.0)
    assert spent.holders == 5
    spent.holders_cost(cost)
    assert spent.holders == pytest.approx(held)
    assert spent.holders_to_free(cost) == pytest.approx(to_free)
