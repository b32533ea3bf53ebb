"""A problem is logged when it becomes so, when it becomes another, and when it is over."""

import structlog
from structlog.testing import capture_logs

from holdfast.runtime.problem import Problem

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


def test_fields_of_one_event_are_of_that_one_alone_and_may_give_another_reason() -> None:
    problem = Problem(log, "cannot read", over="read again", text="not tried yet")

    with capture_logs() as logs:
        problem.set("", was="not tried yet")
        problem.set("cannot read: gone", reason="gone", next="try again")

    assert logs == [
        {"event": "read again", "was": "not tried yet", "log_level": "info"},
        {"event": "cannot read", "reason": "gone", "next": "try again", "log_level": "warning"},
    ]
