# SPDX-License-Identifier: Apache-2.0
"""Local randomisers: what a party says of itself is ε0-private, whoever hears it.

`Response`: k-ary randomised response, Warner, JASA 1965; Kairouz, Oh, Viswanath, NeurIPS 2014,
https://arxiv.org/abs/1407.1338. A value is told with chance p = e^ε0 / (e^ε0 + k - 1), and each
other one with q = 1 / (e^ε0 + k - 1).

`Levels`: a number in [low, high] is rounded to one of k levels so that it is right on average, and
the level is told by k-ary randomised response. Balle, Bell, Gascón, Nissim, CRYPTO 2019,
https://arxiv.org/abs/1903.02837, Algorithm 2; with two levels it is one bit, Ding, Kulkarni,
Yekhanin, NeurIPS 2017, https://arxiv.org/abs/1712.01524.

`Coordinates`: a vector in [-bound, bound]^p. s coordinates are drawn uniformly, with replacement,
and each is told by one bit at ε0 / s: s = ε0 / 2.5, rounded down, but 1 to p of them. Wang et al.,
ICDE 2019, https://arxiv.org/abs/1907.00782, Algorithm 4, with one bit in place of their
piecewise mechanism.

Each has an estimator that is unbiased for any data, and `variance` says how far it is off.

Departures: coordinates are drawn with replacement. Chances of 64-bit words are rounded so that a
report is never likelier to be true than ε0 allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, exp, floor, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archipel.errors import ArchipelError
from archipel.privacy.checks import check_count, positive
from archipel.privacy.curves import Array
from archipel.privacy.shuffling import Randomiser, epsilon0_for, honest
from archipel.privacy.sources import Source
from archipel.privacy.uniform import below, permutation
from archipel.rng import Ints

Flags = NDArray[np.bool_]

_PER_BIT = 2.5  # of ε0, for each coordinate that is told [Wang et al., equation 12]


def _happens(source: Source, chance: float, count: int) -> Flags:
    """Events `[m, count]`, rounded up: at least this likely, and by 2^-50 of it at most more."""
    limit = min(ceil(chance * 2**64 * (1 + 2.0**-50)), 2**64 - 1)
    words = source.words(np.full(source.parties, count)).reshape(source.parties, count)
    found: Flags = words < np.uint64(limit)
    return found


@dataclass(frozen=True)
class Response:
    """k-ary randomised response.

    >>> round(Response(epsilon0=1.0, values=2).truth, 4)
    0.7311
    """

    epsilon0: float
    values: int  # k

    def __post_init__(self) -> None:
        Randomiser(self.epsilon0, self.values)

    @property
    def randomiser(self) -> Randomiser:
        return Randomiser(self.epsilon0, self.values)

    @property
    def truth(self) -> float:
        """p: how likely the value itself is told."""
        return exp(self.epsilon0) * self.other

    @property
    def other(self) -> float:
        """q: how likely each other value is."""
        return 1 / (exp(self.epsilon0) + self.values - 1)

    def report(self, values: ArrayLike, source: Source) -> Ints:
        """What each party tells of its value in 0 ... k - 1, `[m] -> [m]`."""
        held = np.asarray(values)
        if held.dtype.kind not in "iu" or (
            held.size and not 0 <= held.min() <= held.max() < self.values
        ):
            raise ArchipelError(f"values: give whole numbers from 0 to {self.values - 1}.")
        uniform = _happens(source, self.values * self.other, 1)[:, 0]
        drawn = below(source, self.values, 1)[:, 0]
        return np.where(uniform, drawn, held.astype(np.int64))

    def estimate(self, reports: ArrayLike) -> Array:
        """How many parties have each value, `[n] -> [k]`; unbiased, so it may be below 0."""
        told = np.asarray(reports)
        counts = np.bincount(told, minlength=self.values)[: self.values]
        return np.asarray((counts - len(told) * self.other) / (self.truth - self.other), np.float64)

    def variance(self, counts: ArrayLike) -> Array:
        """Of each number of `estimate`, where so many parties have each value, `[k] -> [k]`."""
        held, p, q = np.asarray(counts, np.float64), self.truth, self.other
        found: Array = (held * p * (1 - p) + (held.sum() - held) * q * (1 - q)) / (p - q) ** 2
        return found


@dataclass(frozen=True)
class Levels:
    """A number by the level that it is rounded to: one bit, unless there are more levels.

    >>> Levels(epsilon0=1.0).levels
    2
    """

    epsilon0: float
    low: float = 0.0
    high: float = 1.0
    levels: int = 2  # k, at equal distances from low to high

    def __post_init__(self) -> None:
        Randomiser(self.epsilon0, self.levels)
        if not self.low < self.high:
            raise ArchipelError(f"low = {self.low}, high = {self.high}: give low below high.")

    @property
    def randomiser(self) -> Randomiser:
        return Randomiser(self.epsilon0, self.levels)

    @property
    def uniform(self) -> float:
        """γ: how likely a report is a level that was drawn."""
        return self.levels / (exp(self.epsilon0) + self.levels - 1)

    def report(self, numbers: ArrayLike, source: Source) -> Ints:
        """What each party tells of its number, a level from 0 on, `[m] -> [m]`; it is clipped."""
        share = (np.asarray(numbers, np.float64) - self.low) / (self.high - self.low)
        steps = np.clip(np.nan_to_num(share), 0.0, 1.0) * (self.levels - 1)
        low = np.floor(steps)
        rounded = low.astype(np.int64) + _bits(steps - low, 0.0, source, 1)[:, 0]
        return Response(self.epsilon0, self.levels).report(rounded, source)

    def estimate(self, reports: ArrayLike) -> float:
        """The mean of the numbers, `[n] -> one`."""
        told = float(np.mean(np.asarray(reports))) / (self.levels - 1)
        share = (told - self.uniform / 2) / (1 - self.uniform)
        return self.low + (self.high - self.low) * share

    def variance(self, numbers: ArrayLike) -> float:
        """Of `estimate`, where parties have these numbers."""
        x = (np.asarray(numbers, np.float64) - self.low) / (self.high - self.low)
        k, g = self.levels, self.uniform
        part = x * (k - 1) % 1
        rounded = x**2 + part * (1 - part) / (k - 1) ** 2  # the mean square of the level
        drawn = 1 / 4 + (k + 1) / (12 * (k - 1))
        told = (1 - g) * rounded + g * drawn - ((1 - g) * x + g / 2) ** 2
        return (self.high - self.low) ** 2 * float(np.sum(told)) / (len(x) * (1 - g)) ** 2

    @property
    def deviation(self) -> float:
        """Of a mean over one party, whatever its number is; over n of them it is √n less."""
        asked = self.low + (self.high - self.low) * np.linspace(0, 1, 20 * (self.levels - 1) + 1)
        return sqrt(max(self.variance(np.array([each])) for each in asked))


def _bits(shares: Array, flipped: float, source: Source, count: int) -> Ints:
    """Bits that are 1 with chance `shares`, and the other one with chance `flipped`."""
    words = source.words(np.full(source.parties, count)).reshape(source.parties, count)
    ones = (words >> np.uint64(11)) * 2.0**-53 < shares.reshape(source.parties, -1)
    if flipped:
        ones ^= _happens(source, flipped, count)
    return ones.astype(np.int64)


@dataclass(frozen=True)
class Coordinates:
    """A vector by a few of its coordinates, one bit each: 2 j + bit says that of coordinate j."""

    epsilon0: float
    size: int  # p
    bound: float = 1.0  # of every coordinate

    def __post_init__(self) -> None:
        positive("epsilon0", self.epsilon0)
        positive("bound", self.bound)
        check_count("size", self.size)

    @property
    def randomiser(self) -> Randomiser:
        return Randomiser(self.epsilon0)

    @property
    def told(self) -> int:
        """s: coordinates in a report."""
        return max(1, min(self.size, floor(self.epsilon0 / _PER_BIT)))

    @property
    def scale(self) -> float:
        """What one bit stands for, with both its chances counted: bound / (1 - 2 q)."""
        grown = exp(self.epsilon0 / self.told)
        return self.bound * (grown + 1) / (grown - 1)

    def report(self, vectors: ArrayLike, source: Source) -> Ints:
        """What each party tells of its vector, `[m, p] -> [m, s]`; coordinates are clipped."""
        x = np.nan_to_num(np.asarray(vectors, np.float64), posinf=0.0, neginf=0.0)
        if x.shape != (source.parties, self.size):
            raise ArchipelError(
                f"vectors of shape {x.shape}: give {source.parties} of {self.size} coordinates."
            )
        chosen = below(source, self.size, self.told)
        share = (np.clip(np.take_along_axis(x, chosen, 1) / self.bound, -1, 1) + 1) / 2
        flipped = 1 / (exp(self.epsilon0 / self.told) + 1)
        return 2 * chosen + _bits(share, flipped, source, self.told)

    def estimate(self, reports: ArrayLike) -> Array:
        """The sum of the vectors, `[n, s] -> [p]`."""
        said = np.asarray(reports, np.int64).reshape(-1)
        total = np.bincount(said // 2, 2.0 * (said % 2) - 1, minlength=self.size)[: self.size]
        return np.asarray(self.size / self.told * self.scale * total, np.float64)

    def variance(self, vectors: ArrayLike) -> Array:
        """Of each number of `estimate`, where parties have these vectors, `[n, p] -> [p]`.

        One draw stands for p B (±1) where it is of this coordinate, and for 0 else: p B^2 - x^2.
        """
        x = np.asarray(vectors, np.float64)
        found: Array = np.sum(self.size * self.scale**2 - x**2, axis=0) / self.told
        return found


# -- one question, from the data to the answer -----------------------------------------------------


class Told(NamedTuple):
    """What came of a question that everybody answered through a shuffler."""

    value: Array  # the mean, or the number of parties with each value
    deviation: Array  # of it, at most
    epsilon0: float  # of each report by itself


def best_levels(epsilon: float, reports: int, delta: float, most: int = 32) -> Levels:
    """Levels of numbers in [0, 1] with the least error, for reports that cost (ε, δ) shuffled."""
    ways = (
        Levels(epsilon0_for(epsilon, reports, delta, k), levels=k)
        for k in sorted({min(k, most) for k in (2, 3, 4, 6, 8, 12, 16, 24, 32)})
    )
    return min(ways, key=lambda way: way.deviation)


def shuffled_mean(
    numbers: ArrayLike,
    epsilon: float,
    delta: float,
    parties: Source,
    shuffler: Source,
    low: float = 0.0,
    high: float = 1.0,
    share: float = 1.0,
) -> Told:
    """The mean of numbers in [low, high], one of each party; `share` of the parties is honest."""
    held = np.asarray(numbers, np.float64)
    found = best_levels(epsilon, honest(len(held), share), delta)
    way = replace(found, low=low, high=high)
    reports = way.report(held, parties)[permutation(shuffler, len(held))]
    error = way.deviation / sqrt(len(held))
    return Told(np.array(way.estimate(reports)), np.array(error), way.epsilon0)


def shuffled_histogram(
    values: ArrayLike,
    among: int,
    epsilon: float,
    delta: float,
    parties: Source,
    shuffler: Source,
    share: float = 1.0,
) -> Told:
    """How many parties have each value 0 ... among - 1; `share` of the parties is honest."""
    held = np.asarray(values)
    way = Response(epsilon0_for(epsilon, honest(len(held), share), delta, among), among)
    reports = way.report(held, parties)[permutation(shuffler, len(held))]
    worst = max(way.variance([len(held), 0])[0], way.variance([0, len(held)])[0])
    return Told(way.estimate(reports), np.full(among, sqrt(worst)), way.epsilon0)
