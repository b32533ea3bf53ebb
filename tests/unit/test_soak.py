"""What the soak calls growth."""

import random

import pytest

from bench.trend import rise


def test_a_line_that_rises_grows_by_what_it_rises_over_the_whole_time() -> None:
    assert rise([(at, 50.0 + at / 60) for at in range(0, 601, 5)]) == pytest.approx(10.0)


def test_a_line_that_rises_is_seen_through_noise() -> None:
    noise = random.Random(1)
    points = [(at, at / 60 + noise.uniform(-2.0, 2.0)) for at in range(0, 601, 5)]
    assert 5.0 < rise(points) <= 12.0


def test_what_goes_up_and_down_does_not_grow() -> None:
    assert abs(rise([(at, 50.0 + at % 2) for at in range(600)])) < 0.1


def test_noise_is_no_growth() -> None:
    noise = random.Random(2)
    assert rise([(at, noise.uniform(0.0, 100.0)) for at in range(600)]) < 1.0


def test_one_step_is_no_growth() -> None:
    assert rise([(at, 50.0 if at < 300 else 60.0) for at in range(600)]) == 0.0


@pytest.mark.parametrize("points", [[], [(0.0, 7.0)]])
def test_one_point_does_not_grow(points: list[tuple[float, float]]) -> None:
    assert rise(points) == 0.0
