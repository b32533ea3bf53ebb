"""How a figure grows with the devices of a node."""

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import linear_regression

from msgspec import Struct

from bench.figures import Figure

SIZES = (8, 64, 256, 1024)
"""Devices of one resource: the chips of a host, a server's functions, and far more."""


class Growth(Struct, frozen=True, kw_only=True):
    """One figure at several sizes: `figures` has it by the size."""

    name: str
    figures: Mapping[int, Figure]
    above_floor: bool = False
    """Whether only what is above the floor is compared."""
    reach: float | None = None

    def exponent(self) -> Figure:
        """Return the slope of the line through all sizes, and from each size to the next."""
        points = [
            (math.log(size), math.log(max(self._cost(each), 1e-6)))
            for size, each in sorted(self.figures.items())
        ]
        steps = [(y - b) / (x - a) for (a, b), (x, y) in pairwise(points)]
        slope, _ = linear_regression(*zip(*points, strict=True))
        sizes = ", ".join(map(str, sorted(self.figures)))
        told = ", ".join(f"{each:.2f}" for each in steps)
        return Figure(
            name=f"{self.name}_exponent",
            unit="",
            samples=[slope],
            reach=self.reach,
            note=f"0 is flat, 1 linear, 2 quadratic; at {sizes} devices; from one to the next {told}",
        )

    def _cost(self, figure: Figure) -> float:
        below = figure.floor.p50 if self.above_floor and figure.floor is not None else 0.0
        return figure.p50 - below
