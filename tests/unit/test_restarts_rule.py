"""How often the daemon restarts for a changed configuration."""

import pytest

from holdfast.model.node.restarts import FIRST, FREE, LONGEST, MOST, WINDOW, pause, why_not_again

_NOW = 10_000.0


@pytest.mark.parametrize(
    ("ages", "waits"),
    [
        ((), False),
        ((0.0,) * (FREE - 1), False),
        ((0.0,) * FREE, True),
        ((FIRST - 0.1,) * FREE, True),
        ((FIRST,) * FREE, False),
        ((FIRST,) * (FREE + 1), True),
        ((WINDOW, *(0.0,) * (FREE - 1)), False),
        ((WINDOW - 0.1, *(0.0,) * (FREE - 1)), True),
        ((LONGEST - 0.1,) * MOST, True),
        ((LONGEST,) * MOST, False),
    ],
)
def test_the_next_restart_waits_the_longer_the_more_there_were_lately(
    ages: tuple[float, ...], waits: bool
) -> None:
    assert bool(why_not_again([_NOW - each for each in ages], _NOW)) is waits


def test_the_pause_doubles_and_more_than_are_remembered_make_it_no_longer() -> None:
    assert [pause(each) for each in range(FREE)] == [0.0] * FREE
    assert [pause(FREE + each) for each in range(4)] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert pause(MOST - 1) < pause(MOST) == pause(MOST + 5) == LONGEST


def test_the_reason_stays_the_same_while_it_waits_so_that_it_is_told_once() -> None:
    restarts = [_NOW - 5.0] * FREE
    told = why_not_again(restarts, _NOW)
    assert told == why_not_again(restarts, _NOW + 3.0)
    assert f"restarted {FREE} times within an hour for other changes, so it waits 15 s" in told


def test_what_changes_each_second_restarts_it_six_times_in_ninety_seconds() -> None:
    restarts: list[float] = []
    for now in range(90):
        if not why_not_again(restarts[-MOST:], now):
            restarts.append(now)
    assert restarts == [0.0, 1.0, 2.0, 3.0, 18.0, 48.0]
