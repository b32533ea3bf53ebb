"""A problem is logged when it becomes so, when it becomes another, and when it is over."""

import pytest
import structlog
from structlog.testing import capture_logs

from holdfast.runtime.problem import LogLimit, Problem
from manual_clock import ManualClock

log = structlog.get_logger(__name__)


def test_a_problem_is_logged_when_it_changes_and_once_when_it_is_over() -> None:
    problem = Problem(log, "cannot read", over="read again", what="x")

    with capture_logs() as logs:
        for text in ("", "gone", "gone", "denied", "", "", "gone"):
            problem.set(text)
            assert problem.text == text

    warned = {"event": "cannot read", "what": "x", "log_level": "warning"}
    over = {"event": "read again", "what": "x", "log_level": "info"}
    assert logs == [
        {**warned, "reason": "gone"},
        {**warned, "reason": "denied"},
        over,
        {**warned, "reason": "gone"},
    ]


def test_without_a_name_for_its_end_nothing_is_logged_then_and_the_next_one_is() -> None:
    problem = Problem(log, "cannot read")

    with capture_logs() as logs:
        for text in ("gone", "", "gone"):
            problem.set(text)

    assert [each["event"] for each in logs] == ["cannot read", "cannot read"]


def test_what_is_raised_in_a_block_is_noted_if_it_is_one_of_the_kinds_named() -> None:
    problem = Problem(log, "cannot read")

    with problem.noting(ValueError, OSError):
        raise OSError("gone")
    assert problem.text == "gone"
    with pytest.raises(KeyError), problem.noting(ValueError, OSError):
        raise KeyError("another")
    assert problem.text == "gone"
    with problem.noting(ValueError, OSError):
        pass
    assert not problem.text


def test_fields_of_one_event_are_of_that_one_alone_and_may_give_another_reason() -> None:
    problem = Problem(log, "cannot read", over="read again", text="not tried yet")

    with capture_logs() as logs:
        problem.set("", was="not tried yet")
        problem.set("cannot read: gone", reason="gone", next="try again")

    assert logs == [
        {"event": "read again", "was": "not tried yet", "log_level": "info"},
        {"event": "cannot read", "reason": "gone", "next": "try again", "log_level": "warning"},
    ]


def test_ten_lines_about_a_thing_come_at_once_and_then_one_each_half_minute() -> None:
    clock = ManualClock()
    limit = LogLimit(clock)

    assert [limit.allows("x") for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.allows("y"), "of another thing nothing was said yet"
    for seconds, allowed in ((29, False), (1, True), (1, False), (29, True)):
        clock.shift(seconds)
        assert limit.allows("x") is allowed


def test_what_was_said_of_a_thing_is_forgotten_in_time() -> None:
    clock = ManualClock()
    limit = LogLimit(clock)
    for number in range(100):
        limit.allows(number)
    clock.shift(600)

    assert [limit.allows(0) for _ in range(11)] == [True] * 10 + [False]
    assert len(limit._lines) == 1, "and costs no memory then"
