"""How often the daemon restarts for a changed configuration."""

import pytest

from holdfast.model.node.restarts import MOST, WINDOW, why_not_again

_NOW = 1000.0


@pytest.mark.parametrize(
    ("ages", "waits"),
    [
        ((), False),
        ((0.0,) * (MOST - 1), False),
        ((0.0,) * MOST, True),
        ((WINDOW - 0.1,) * MOST, True),
        ((WINDOW, *(0.0,) * (MOST - 1)), False),
    ],
)
def test_the_next_restart_waits_where_there_were_many_lately(
    ages: tuple[float, ...], waits: bool
) -> None:
    assert bool(why_not_again([_NOW - each for each in ages], _NOW)) is waits
