"""Waiting for a condition in the guest, where an emulated machine shares its host with much else."""

from collections.abc import Callable

import waiting

SLOW = 240.0
"""Seconds; only a failure meets them."""
LOOK = 0.2
"""Seconds between two looks. Each takes an emulated machine long, and the daemon runs on it, too."""


def wait_until(predicate: Callable[[], object], *, limit: float = SLOW, what: str = "") -> None:
    """Return once *predicate* is true; fail after *limit* seconds, saying *what* did not come."""
    waiting.wait_until(predicate, limit=limit, what=what, longest=LOOK)
