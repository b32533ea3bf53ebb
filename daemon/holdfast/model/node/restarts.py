"""How often the daemon restarts for a changed configuration.

While it restarts, kubelet grants none of its devices for a moment. So a label or a file that goes
to and fro must not have it restart all the time.
"""

from collections.abc import Sequence

MOST = 5
"""Restarts within `WINDOW` seconds, of which the next one waits for the first to be longer ago."""
WINDOW = 60.0


def why_not_again(restarts: Sequence[float], now: float) -> str:
    """Return why the daemon does not restart at *now*, empty where it may.

    *restarts* are the moments at which it did, in seconds of the same clock.
    """
    if sum(now - each < WINDOW for each in restarts) < MOST:
        return ""
    return (
        f"it restarted {MOST} times in {WINDOW:g} s for other changes, and takes up this one "
        "later; see what keeps changing the configuration or the node's label"
    )
