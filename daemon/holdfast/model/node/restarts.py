"""How often the daemon restarts for a changed configuration.

While it restarts, kubelet grants none of its devices for a moment. So a label or a file that goes
to and fro must not have it restart all the time: the pause after each restart grows.
"""

from collections.abc import Sequence

FREE = 4
"""Restarts within `WINDOW` after which the next one has to wait."""
FIRST = 15.0
"""Seconds for which it waits then; twice as long after each further one, up to `LONGEST`."""
LONGEST = 900.0
WINDOW = 3600.0
"""Seconds after which a restart counts no more."""
MOST = FREE + 6
"""Restarts that have to be remembered: more of them make no longer pause."""


def pause(restarts: int) -> float:
    """Return how many seconds have to pass after the last of so many *restarts*."""
    return 0.0 if restarts < FREE else min(LONGEST, FIRST * 2 ** (restarts - FREE))


def why_not_again(restarts: Sequence[float], now: float) -> str:
    """Return why the daemon does not restart at *now*, empty where it may.

    *restarts* are the moments at which it did, the latest last, in seconds of the same clock.
    """
    lately = [each for each in restarts if now - each < WINDOW]
    wanted = pause(len(lately))
    if not lately or now - lately[-1] >= wanted:
        return ""
    return (
        f"it restarted {len(lately)} times within an hour for other changes, so it waits {wanted:g}"
        " s after the last time and takes up this change then; see what keeps changing the "
        "configuration or the node's label"
    )
