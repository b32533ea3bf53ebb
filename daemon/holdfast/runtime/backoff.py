"""How long to wait before trying again, without end."""

import random
from collections.abc import Iterator


def backoff(first: float, last: float) -> Iterator[float]:
    """Yield delays in seconds for ever: about *first*, doubling each time, never above *last*.

    Each is drawn from the upper half of its step, so that the daemons of a thousand nodes do not
    try again at the same moment.
    """
    step = min(first, last)
    while True:
        yield random.uniform(step / 2, step)  # noqa: S311 - spreads load, guards no secret
        step = min(step * 2, last)
