"""Whether a noisy quantity rises over time."""

import statistics
from collections.abc import Sequence
from itertools import combinations

_PARTS = 12
_SHARE = 0.1


def rise(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much what *points* (time, value) show rises steadily over their whole time.

    The time is divided into parts, and each part has the median of its values. Of the slopes from
    each part to each later one, nine of ten are steeper than the one that counts. So what goes up
    and down, or makes one step, does not rise.
    """
    if len(points) < 2:
        return 0.0
    size = max(1, -(-len(points) // _PARTS))
    parts = [points[place : place + size] for place in range(0, len(points), size)]
    middles = [
        (statistics.median(at for at, _ in part), statistics.median(value for _, value in part))
        for part in parts
    ]
    slopes = sorted((y - b) / (x - a) for (a, b), (x, y) in combinations(middles, 2))
    return slopes[int(len(slopes) * _SHARE)] * (points[-1][0] - points[0][0])
