# SPDX-License-Identifier: Apache-2.0
"""How well an attack did: curves at few false alarms, intervals, and distances of records.

A rate is given with Clopper and Pearson's 95 % interval (Biometrika 1934). Records that are asked
about in several worlds count once in it: their answers hang together, and an interval that took
them for new ones would be too narrow. What is left is taken as independent, which records of one
run are not quite.
"""

from __future__ import annotations

from math import exp, log, log10
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from archipel.privacy.meaning import FALSE_ALARMS

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_FEW = 100  # on a side of an area under the curve
_WIDE = 1.959963984540054
NEAR = 0.3  # of a standard deviation, over a record's features: as near as this is found


class Curve(NamedTuple):
    """True positives by false positives, both rising from 0 to 1."""

    false: Floats
    true: Floats

    def at(self, false: float) -> float:
        """The true positives at so many false ones, at most."""
        return float(self.true[np.searchsorted(self.false, false, side="right") - 1])

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true, self.false))


def curve(scores: Tensor, member: Tensor) -> Curve:
    """The curve of a score by which members are told: `[n]`, bool `[n]`.

    Equal scores are accused together.

    >>> found = curve(torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
    >>> found.at(0.01), found.area
    (1.0, 1.0)
    """
    score, truth = scores.double().numpy(), member.numpy().astype(bool)
    score = np.where(np.isfinite(score), score, -np.inf)
    order = np.argsort(-score, kind="stable")
    true = np.cumsum(truth[order]) / max(1, truth.sum())
    false = np.cumsum(~truth[order]) / max(1, (~truth).sum())
    last = np.flatnonzero(np.append(score[order][1:] != score[order][:-1], True))
    return Curve(np.append(0.0, false[last]), np.append(0.0, true[last]))


def clopper_pearson(found: float, of: int, level: float = 0.95) -> Interval:
    """The interval of a rate of which `found` (a part of a number is rounded) came of so many.

    >>> [round(each, 4) for each in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    k, tail = round(found), (1 - level) / 2
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, of - k + 1))
    high = 1.0 if k >= of else float(beta.ppf(1 - tail, k + 1, of - k))
    return low, high


def area_interval(area: float, members: int, others: int) -> Interval:
    """Of an area under the curve: Hanley and McNeil, Radiology 1982.

    With few on a side it is no narrower than that of a rate of so many: near 1, and at it, their
    variance is too small.

    >>> [round(each, 2) for each in area_interval(1.0, 12, 12)]
    [0.74, 1.0]
    """
    q1, q2, a = area / (2 - area), 2 * area**2 / (1 + area), area
    variance = a * (1 - a) + (members - 1) * (q1 - a**2) + (others - 1) * (q2 - a**2)
    half = _WIDE * (max(variance, 0.0) / max(1, members * others)) ** 0.5
    low, high = max(0.0, area - half), min(1.0, area + half)
    fewest = min(members, others)
    if fewest < _FEW:
        rate = clopper_pearson(area * fewest, max(1, fewest))
        low, high = min(low, rate[0]), max(high, rate[1])
    return low, high


def epsilon_at_least(true: Interval, false: Interval, delta: float) -> float:
    """The ε that such rates show: any smaller one would be broken, by both intervals.

    >>> round(epsilon_at_least((0.5, 0.6), (0.0, 0.01), 0.0), 3)
    3.912
    """
    over = true[0] - delta
    return max(0.0, log(over / false[1])) if over > 0 and false[1] > 0 else 0.0


class Judged(NamedTuple):
    """An attack on membership, judged."""

    curve: Curve
    found: float  # true positives at 1 % false ones
    interval: Interval
    area: float
    area_interval: Interval
    epsilon: float  # that it shows at the least, with the δ of the promise
    within: bool | None  # whether what was found is under the ceiling; None without one


def judge(
    scores: Tensor, member: Tensor, distinct: int, epsilon: float | None, delta: float
) -> Judged:
    """Judge scores of all worlds `[S, N]`, of `distinct` records, beside a promise."""
    found = curve(scores.flatten(), member.flatten())
    members = max(1, round(distinct * float(member.double().mean())))
    others = max(1, distinct - members)
    rate = found.at(FALSE_ALARMS)
    interval = clopper_pearson(rate * members, members)
    false = clopper_pearson(FALSE_ALARMS * others, others)
    within = None
    if epsilon is not None:
        within = interval[0] <= min(1.0, exp(min(epsilon, 700)) * false[1] + delta)
    area = found.area
    shown = epsilon_at_least(interval, false, delta)
    sides = area_interval(area, members, others)
    return Judged(found, rate, interval, area, sides, shown, within)


class Matched(NamedTuple):
    """Records that were there beside those an attack made, the nearest of which is taken."""

    distance: Floats  # [r] root mean square over features, in their standard deviations
    peak: Floats  # [r] peak signal to noise ratio, dB
    nearest: Tensor  # [r] which of those the attack made

    @property
    def found(self) -> int:
        return int((self.distance < NEAR).sum())


def match(true: Tensor, made: Tensor, scale: Tensor, span: float) -> Matched:
    """Give every record the nearest of those an attack made: `[r, ...], [c, ...]`.

    `scale` is the features' standard deviation, `span` their range, for the ratio.
    """
    flat, ours = true.flatten(1).double(), made.flatten(1).double()
    sd = scale.flatten().double()
    told = sd > 0  # a feature that never changes tells nothing
    far = torch.cdist(flat[:, told] / sd[told], ours[:, told] / sd[told]) / int(told.sum()) ** 0.5
    distance, nearest = far.min(dim=1)
    error = (flat - ours[nearest]).square().mean(dim=1)
    peak = np.array([10 * log10(span**2 / max(float(each), 1e-30)) for each in error])
    return Matched(distance.numpy(), peak, nearest)
