"""When NVML is let go so that the driver can be unloaded: the table of cases for model.driver_leave."""

import pytest
from msgspec.structs import replace

from holdfast.model.nvidia.roots import PATIENCE, DriverFacts, NvmlRelease, leave

HERE = DriverFacts(present=True, load="550 load 7")
UP, STOPPING = replace(HERE, ready=True), replace(HERE, ready=False)
ANEW = replace(UP, load="560 load 8")
ABSENT = DriverFacts(present=False)
BY_HAND = NvmlRelease(reason="drained for removal", load=HERE.load)
BY_SIGN = NvmlRelease(reason="stopping", load=HERE.load, until=100.0)


@pytest.mark.parametrize(
    ("before", "driver", "was_ready", "leaves"),
    [
        pytest.param(None, UP, None, False, id="up"),
        pytest.param(None, STOPPING, True, True, id="its container takes back that it is up"),
        pytest.param(None, STOPPING, None, False, id="it never said that it was up"),
        pytest.param(None, STOPPING, False, False, id="it was not up"),
        pytest.param(None, HERE, True, False, id="nobody says any more whether it is up"),
        pytest.param(BY_SIGN, STOPPING, False, True, id="it is still stopping"),
        pytest.param(BY_SIGN, UP, False, False, id="it is up again"),
        pytest.param(BY_SIGN, ANEW, False, False, id="another driver is up"),
        pytest.param(BY_SIGN, replace(ANEW, ready=False), False, False, id="another, not up yet"),
        pytest.param(BY_SIGN, ABSENT, False, False, id="the driver is gone"),
        pytest.param(None, replace(ABSENT, ready=False), True, False, id="gone with its container"),
        pytest.param(BY_HAND, UP, True, True, id="by hand, until a person takes it back"),
        pytest.param(BY_HAND, STOPPING, True, True, id="by hand, whatever its container does"),
        pytest.param(BY_HAND, ANEW, True, False, id="by hand, and it was loaded anew"),
        pytest.param(BY_HAND, ABSENT, None, False, id="by hand, and it is gone"),
    ],
)
def test_nvml_is_let_go_while_the_driver_is_about_to_be_unloaded(
    before: NvmlRelease | None, driver: DriverFacts, was_ready: bool | None, leaves: bool
) -> None:
    assert (leave(before, driver, was_ready=was_ready, now=99.0) is not None) is leaves


def test_a_driver_that_stays_although_its_container_stopped_is_used_again() -> None:
    gone = leave(None, STOPPING, was_ready=True, now=5.0)
    assert gone is not None
    assert leave(gone, STOPPING, was_ready=False, now=5.0 + PATIENCE - 1) == gone
    assert leave(gone, STOPPING, was_ready=False, now=5.0 + PATIENCE) is None
