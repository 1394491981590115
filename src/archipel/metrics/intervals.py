# SPDX-License-Identifier: Apache-2.0
"""How sure a metric is that was measured on a sample of the parties: 95 % intervals.

Parties are drawn and not points, so points of a party come together. What is a mean over points is
a ratio of two sums over parties, and its variance that of the ratio's linear part (Cochran,
Sampling Techniques, 1977, 6.3); any other metric is computed again on parties drawn from the sample
with replacement. Both shrink as the sample becomes the population, by sqrt(1 - m / N).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from archipel import rng
from archipel.measures import MEANS
from archipel.rng import Ints

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_WIDE = 1.959963984540054  # standard deviations on either side
_AGAIN = 200  # samples that are drawn from the sample
_BOTH = (0.025, 0.975)


def of_mean(values: Floats, of: int) -> Interval | None:
    """Of the mean over `of` parties, of which these are known: `[m]`."""
    values = values[~np.isnan(values)]
    m = len(values)
    if m < 2:
        return None
    half = _WIDE * _left(m, of) * float(values.std(ddof=1)) / m**0.5
    mean = float(values.mean())
    return mean - half, mean + half


def of_points(values: Floats, sizes: Ints, of: int) -> Interval | None:
    """Of a mean over all points of `of` parties, by the means and the points of these: `[m]`."""
    there = (sizes > 0) & ~np.isnan(values)
    v, n = values[there], sizes[there].astype(np.float64)
    m = len(v)
    if m < 2:
        return None
    ratio = float((n * v).sum() / n.sum())
    residual = n * (v - ratio)
    half = _WIDE * _left(m, of) * float((residual**2).sum() * m / (m - 1)) ** 0.5 / float(n.sum())
    return ratio - half, ratio + half


def again(
    score: Callable[[Ints], Mapping[str, float]], sizes: Ints, found: Mapping[str, float], of: int
) -> dict[str, Interval]:
    """Of metrics that are no means, computed by `score` from rows of the points of these parties.

    `found` are their values on all of the sample.
    """
    there = np.flatnonzero(sizes > 0)
    if len(there) < 2:
        return {}
    ends = np.cumsum(sizes)
    draws, scores = rng.generator("parties drawn again"), dict[str, list[float]]()
    for _ in range(_AGAIN):
        drawn = there[draws.integers(0, len(there), len(there))]
        for name, value in score(_rows(ends[drawn] - sizes[drawn], sizes[drawn])).items():
            scores.setdefault(name, []).append(value)
    left, made = _left(len(there), of), {}
    for name, middle in found.items():
        known = np.array(scores.get(name, []))
        known = known[np.isfinite(known)]
        if len(known) * 2 > _AGAIN and np.isfinite(middle):
            low, high = np.quantile(known, _BOTH)
            made[name] = (middle + left * float(low - middle), middle + left * float(high - middle))
    return made


def of_all(
    score: Callable[[Ints], Mapping[str, float]] | None,
    found: Mapping[str, float],
    parties: Mapping[str, Floats],
    sizes: Ints,
    of: int,
    points: bool,
) -> dict[str, Interval]:
    """Of all metrics; `points` says whether those of `MEANS` are means over points here.

    Without `score` the others have none: their points are gone.
    """
    means = {name for name in found if points and name in MEANS and name in parties}
    made = {name: of_points(parties[name], sizes, of) for name in means}
    rest = {name: value for name, value in found.items() if name not in means}
    drawn = again(score, sizes, rest, of) if score is not None and rest else {}
    return {name: each for name in found if (each := (made | drawn).get(name)) is not None}


def _rows(starts: Ints, sizes: Ints) -> Ints:
    """starts[0], starts[0] + 1, ...: so many from each."""
    before = np.cumsum(sizes) - sizes
    rows: Ints = np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))
    return rows


def _left(m: int, of: int) -> float:
    return float(max(0.0, 1 - m / max(of, m)) ** 0.5)
