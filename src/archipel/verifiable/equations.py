# SPDX-License-Identifier: Apache-2.0
"""What a verifier checks, as sums of multiples of points that must be the identity: many at once.

Bellare, Garay, Rabin, EUROCRYPT 1998, https://doi.org/10.1007/BFb0054130, the small exponents test:
each equation is multiplied by a random number of 128 bits and all are added up. If one is wrong,
the sum is the identity with probability 2^-128 at most. Generators that equations share are counted
once, which is where nearly all of the work goes. A wrong one is found by halving.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from archipel.verifiable.group import IDENTITY, Point, total

_WEIGHT = 128  # bits


class Equation(NamedTuple):
    """Σ scalars[i] points[i] = identity."""

    scalars: Sequence[int]
    points: Sequence[Point]


def hold(equations: Sequence[Equation]) -> bool:
    """Whether all hold."""
    sums: dict[int, int] = {}  # by the point as an object: generators are kept
    points: dict[int, Point] = {}
    for equation in equations:
        weight = secrets.randbits(_WEIGHT) | 1 << _WEIGHT
        for value, point in zip(equation.scalars, equation.points, strict=True):
            at = id(point)
            points[at] = point
            sums[at] = sums.get(at, 0) + weight * value
    return total([sums[at] for at in points], list(points.values())) == IDENTITY


def wrong(groups: Sequence[Sequence[Equation]]) -> list[int]:
    """Which groups have an equation that does not hold."""
    if hold([equation for group in groups for equation in group]):
        return []
    if len(groups) == 1:
        return [0]
    half = len(groups) // 2
    return [*wrong(groups[:half]), *(half + i for i in wrong(groups[half:]))]
