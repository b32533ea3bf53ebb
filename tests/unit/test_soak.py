"""What the soak calls growth."""

from bench.soak import growth


def test_a_line_that_rises_grows_by_what_it_rises_over_the_whole_time() -> None:
    assert growth([(at, 50.0 + at / 60) for at in range(0, 601, 5)]) == 10.0


def test_what_goes_up_and_down_does_not_grow() -> None:
    assert abs(growth([(at, 50.0 + at % 2) for at in range(600)])) < 0.1
