"""Readiness checks: what makes one fail, and what of its reason everybody may know."""

import pytest

from holdfast.model.node.readiness import check, check_openly, check_result, longest_wait


@pytest.mark.parametrize(
    ("problem", "at", "reason", "public"),
    [
        ("", 990.0, "", ""),
        ("", 940.0, "", ""),
        ("", 939.0, "the last result is 61 s old, which is too old", ...),
        ("", None, "no result yet", ...),
        ("cannot read /etc/x", 990.0, "cannot read /etc/x", ""),
        ("cannot read /etc/x", None, "cannot read /etc/x", ""),
    ],
)
def test_a_result_fails_for_its_problem_when_it_is_old_and_when_there_is_none(
    problem: str, at: float | None, reason: str, public: object
) -> None:
    """Only the problem itself can name what is not everybody's business."""
    found = check_result("x", problem, at=at, now=1000.0, within=60.0)

    assert (found.passes, found.reason) == (not reason, reason)
    assert found.public == (reason if public is ... else public)
    assert found.seen == at


def test_a_problem_is_private_unless_it_is_said_to_be_public() -> None:
    assert (check("x", "pid 7").public, check_openly("x", "nobody").public) == ("", "nobody")
    assert check("x", "pid 7", public="one").public == "one"
    assert not check("x", "pid 7").passes
    assert not check_openly("x", "nobody").passes
    assert check("x", "").passes
    assert check_openly("x", "").passes


def test_what_repeats_may_miss_one_turn_and_take_as_long_as_its_calls_may() -> None:
    assert longest_wait(30.0) == 120.0
