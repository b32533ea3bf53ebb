"""The plan of a reclaim: which step comes next, from what was done so far and when."""

from enum import Enum

from msgspec import Struct

_MOST_DOUBLINGS = 30  # far beyond any pause; a float would overflow after days of retries


class ReclaimStep(Enum):
    """What to do next for a device that is being reclaimed."""

    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"
    QUARANTINE = "quarantine"
    RETRY = "retry"


class ReclaimTimes(Struct, frozen=True, kw_only=True):
    """Durations of a reclaim, in seconds."""

    term_grace: float = 10.0
    """From SIGTERM to SIGKILL."""
    kill_grace: float = 10.0
    """From SIGKILL to quarantine."""
    retry_first: float = 5.0
    retry_last: float = 300.0


class Attempt(Struct, frozen=True, kw_only=True):
    """One try to end what holds a device; times are monotonic seconds, None: not done.

    It lives in memory alone. A daemon that starts anew begins a new attempt: asking a process that
    was asked already to end does no harm.
    """

    number: int = 1
    terminated_at: float | None = None
    killed_at: float | None = None
    quarantined_at: float | None = None


def next_step(attempt: Attempt, times: ReclaimTimes, now: float) -> ReclaimStep:
    """Return the step that is due at *now* while something still holds the device."""
    if attempt.quarantined_at is not None:
        due = now - attempt.quarantined_at >= retry_pause(attempt.number, times)
        return ReclaimStep.RETRY if due else ReclaimStep.WAIT
    if attempt.terminated_at is None:
        return ReclaimStep.TERMINATE
    if attempt.killed_at is None:
        late = now - attempt.terminated_at >= times.term_grace
        return ReclaimStep.KILL if late else ReclaimStep.WAIT
    late = now - attempt.killed_at >= times.kill_grace
    return ReclaimStep.QUARANTINE if late else ReclaimStep.WAIT


def retry_pause(number: int, times: ReclaimTimes) -> float:
    """Return how many seconds to wait after the failure of attempt *number*, the first being 1."""
    doublings = min(number - 1, _MOST_DOUBLINGS)
    return min(times.retry_first * float(2**doublings), times.retry_last)
