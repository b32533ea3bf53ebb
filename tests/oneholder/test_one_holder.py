"""The promise itself: whatever happens in whatever order, no two pods have one piece of hardware.

The same worlds are tried each time. With ONE_HOLDER_EXAMPLES that many are, and others each time.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from oneholder.twodoors import TwoDoors
from oneholder.world import OneHolder

_EXAMPLES = int(os.environ.get("ONE_HOLDER_EXAMPLES", "120"))


@pytest.mark.timeout(900)  # when it fails, the search for the shortest story takes its time
@pytest.mark.parametrize("world", [OneHolder, TwoDoors])
def test_no_two_pods_ever_have_one_piece_of_hardware_whenever_the_daemon_is_killed(
    world: type[OneHolder],
) -> None:
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=_EXAMPLES,
            derandomize="ONE_HOLDER_EXAMPLES" not in os.environ,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert world is OneHolder or TwoDoors.prepared > 10, "no claim was ever prepared"
