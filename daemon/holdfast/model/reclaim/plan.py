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


class Attempt(Struct, frozen=True, kw_only=True):
    """One try to end what holds a device; times are monotonic seconds, None: not done.

    It lives in memory only. After a restart a new attempt begins: to ask a process twice to end
    does no harm.
    """

    number: int = 1
    terminated_at: float | None = None
    killed_at: float | None = None
    quarantined_at: float | None = None


def next_step(
    attempt: Attempt, now: float, *, term_grace: float, kill_grace: float, pause: float
) -> ReclaimStep:
    """Return the step that is due at *now* while something still holds the device.

    In seconds: *term_grace* is from SIGTERM to SIGKILL, *kill_grace* from SIGKILL to quarantine,
    and *pause* from quarantine to the next attempt.
    """
    if attempt.quarantined_at is not None:
        due = now - attempt.quarantined_at >= pause
        return ReclaimStep.RETRY if due else ReclaimStep.WAIT
    if attempt.terminated_at is None:
        return ReclaimStep.TERMINATE
    if attempt.killed_at is None:
        late = now - attempt.terminated_at >= term_grace
        return ReclaimStep.KILL if late else ReclaimStep.WAIT
    late = now - attempt.killed_at >= kill_grace
    return ReclaimStep.QUARANTINE if late else ReclaimStep.WAIT


def retry_pause(number: int, *, first: float, last: float) -> float:
    """Return how many seconds to wait after the failure of attempt *number*, the first being 1.

    The pause begins at *first* and doubles with each attempt, up to *last*.
    """
    doublings = min(number - 1, _MOST_DOUBLINGS)
    return min(first * float(2**doublings), last)
