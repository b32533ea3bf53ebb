"""The plan of a reclaim: whatever prefix of it was done, it comes to the same end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.reclaim.ending import Attempt, ReclaimStep, next_step, retry_pause

_SECOND = 1.0


def _next(attempt: Attempt, now: float) -> ReclaimStep:
    pause = retry_pause(attempt.number, first=5.0, last=300.0)
    return next_step(attempt, now, term_grace=10.0, kill_grace=10.0, pause=pause)


def _done(attempt: Attempt, step: ReclaimStep, now: float) -> Attempt:
    match step:
        case ReclaimStep.TERMINATE:
            return replace(attempt, terminated_at=now)
        case ReclaimStep.KILL:
            return replace(attempt, killed_at=now)
        case ReclaimStep.QUARANTINE:
            return replace(attempt, quarantined_at=now)
        case ReclaimStep.RETRY:
            return Attempt(number=attempt.number + 1)
        case ReclaimStep.WAIT:
            return attempt


def _walk(attempt: Attempt, *, now: float, steps: int) -> list[ReclaimStep]:
    """Return the next *steps* that are not waiting, doing each as it comes due."""
    found: list[ReclaimStep] = []
    while len(found) < steps:
        step = _next(attempt, now)
        if step is ReclaimStep.WAIT:
            now += _SECOND
            continue
        found.append(step)
        attempt = _done(attempt, step, now)
    return found


_PLAN = [ReclaimStep.TERMINATE, ReclaimStep.KILL, ReclaimStep.QUARANTINE, ReclaimStep.RETRY]


def test_what_holds_a_device_is_asked_then_ended_then_left_and_tried_again() -> None:
    assert _walk(Attempt(), now=0, steps=8) == _PLAN * 2


@pytest.mark.parametrize("done", range(5))
@pytest.mark.parametrize("remembered", [True, False])
def test_after_any_prefix_of_the_plan_the_rest_comes_to_the_same_end(
    done: int, remembered: bool
) -> None:
    """A daemon that starts anew has forgotten the attempt, and begins it again."""
    attempt, now = Attempt(), 0.0
    for step in _PLAN[:done]:
        while _next(attempt, now) is ReclaimStep.WAIT:
            now += _SECOND
        assert _next(attempt, now) is step
        attempt = _done(attempt, step, now)
    rest = _walk(attempt if remembered else Attempt(), now=now, steps=4)
    expected = _PLAN[done % 4 :] + _PLAN[: done % 4] if remembered else _PLAN
    assert rest == expected


@pytest.mark.parametrize(
    ("attempt", "now", "step"),
    [
        (Attempt(), 0, ReclaimStep.TERMINATE),
        (Attempt(terminated_at=0), 9.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=0), 10, ReclaimStep.KILL),
        (Attempt(terminated_at=0, killed_at=10), 19.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=0, killed_at=10), 20, ReclaimStep.QUARANTINE),
        (Attempt(terminated_at=100), 109.9, ReclaimStep.WAIT),
        (Attempt(terminated_at=100), 110, ReclaimStep.KILL),
        (Attempt(killed_at=10), 11, ReclaimStep.TERMINATE),
        (Attempt(quarantined_at=0), 4.9, ReclaimStep.WAIT),
        (Attempt(quarantined_at=0), 5, ReclaimStep.RETRY),
        (Attempt(quarantined_at=100), 104.9, ReclaimStep.WAIT),
        (Attempt(quarantined_at=100), 105, ReclaimStep.RETRY),
        (Attempt(number=3, quarantined_at=0), 19.9, ReclaimStep.WAIT),
        (Attempt(number=3, quarantined_at=0), 20, ReclaimStep.RETRY),
        (Attempt(number=7, quarantined_at=0), 299.9, ReclaimStep.WAIT),
        (Attempt(number=7, quarantined_at=0), 300, ReclaimStep.RETRY),
    ],
)
def test_each_step_is_due_at_its_time(attempt: Attempt, now: float, step: ReclaimStep) -> None:
    assert _next(attempt, now) is step


@given(st.integers(1, 10**9))
def test_a_device_is_tried_again_at_the_latest_after_the_longest_pause_however_often_it_was(
    number: int,
) -> None:
    attempt = Attempt(number=number, quarantined_at=0)
    assert _next(attempt, 300) is ReclaimStep.RETRY
    assert _next(attempt, 4) is ReclaimStep.WAIT


def test_a_process_is_never_killed_that_was_not_asked_before() -> None:
    for now in (0.0, 1e9):
        assert _next(Attempt(), now) is ReclaimStep.TERMINATE
