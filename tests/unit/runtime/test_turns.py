"""Whose turn it is: a few at once, everybody in the end."""

from holdfast.runtime.clock import Turns
from manual_clock import ManualClock


def test_whoever_waited_longest_is_next_and_everybody_has_a_turn() -> None:
    clock = ManualClock()
    turns: Turns[int] = Turns(clock, at_most=3)
    rounds = []
    for _ in range(3):
        rounds.append(turns.next(range(7)))
        clock.shift(1.0)
    assert sorted(rounds[0] + rounds[1]) == list(range(6))
    assert 6 in rounds[2]
    assert set(rounds[2]) - {6} <= set(rounds[0])


def test_a_few_all_have_their_turn_each_time() -> None:
    turns: Turns[str] = Turns(ManualClock(), at_most=3)
    assert turns.next("abc") == ["a", "b", "c"]
    assert turns.next("abc") == ["a", "b", "c"]


def test_nobody_has_another_turn_before_the_pause_is_over() -> None:
    clock = ManualClock()
    turns: Turns[str] = Turns(clock, at_most=3, pause=10.0)
    assert turns.next("a") == ["a"]
    clock.shift(9.9)
    assert turns.next("ab") == ["b"]
    clock.shift(0.1)
    assert turns.next("ab") == ["a"]


def test_who_comes_back_has_waited_longest() -> None:
    clock = ManualClock()
    turns: Turns[str] = Turns(clock, at_most=3, pause=10.0)
    turns.next("a")
    assert turns.next("") == []
    assert turns.next("a") == ["a"]
