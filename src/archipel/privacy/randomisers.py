# SPDX-License-Identifier: Apache-2.0
"""Local randomisers: what a party says of itself is ε0-private, whoever hears it.

`Response`: k-ary randomised response, Warner, JASA 1965; Kairouz, Oh, Viswanath, NeurIPS 2014,
https://arxiv.org/abs/1407.1338. A value is told with chance p = e^ε0 / (e^ε0 + k - 1), and each
other one with q = 1 / (e^ε0 + k - 1).

`OneBit`: a number in [low, high] is rounded to one of both ends so that it is right on average, and
the end is told by binary randomised response. Ding, Kulkarni, Yekhanin, NeurIPS 2017,
https://arxiv.org/abs/1712.01524.

`Coordinates`: a vector in [-bound, bound]^p. s coordinates are drawn uniformly, with replacement,
and each is told by one bit at ε0 / s: s = ε0 / 2.5, rounded down, but 1 to p of them. Wang et al.,
ICDE 2019, https://arxiv.org/abs/1907.00001, Algorithm 4, with one bit in place of their
piecewise mechanism.

Each has an estimator that is unbiased for any data, and `variance` says how far it is off.

Departures: coordinates are drawn with replacement. Chances of 64-bit words are rounded so that a
report is never likelier to be true than ε0 allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor

import numpy as np
from numpy.typing import ArrayLike

from archipel.errors import ArchipelError
from archipel.privacy.checks import check_count, positive
from archipel.privacy.curves import Array
from archipel.privacy.shuffling import Randomiser
from archipel.privacy.sources import Source
from archipel.privacy.uniform import below
from archipel.rng import Ints

_PER_BIT = 2.5  # of ε0, for each coordinate that is told [Wang et al., equation 12]


def _happens(source: Source, chance: float, count: int) -> Array:
    """Events `[m, count]`, rounded up: at least this likely, and by 2^-50 of it at most more."""
    limit = min(ceil(chance * 2**64 * (1 + 2.0**-50)), 2**64 - 1)
    words = source.words(np.full(source.parties, count)).reshape(source.parties, count)
    found: Array = words < np.uint64(limit)
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
        found: Array = (counts - len(told) * self.other) / (self.truth - self.other)
        return found

    def variance(self, counts: ArrayLike) -> Array:
        """Of each number of `estimate`, where so many parties have each value, `[k] -> [k]`."""
        held, p, q = np.asarray(counts, np.float64), self.truth, self.other
        found: Array = (held * p * (1 - p) + (held.sum() - held) * q * (1 - q)) / (p - q) ** 2
        return found


@dataclass(frozen=True)
class OneBit:
    """A number by one bit."""

    epsilon0: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        positive("epsilon0", self.epsilon0)
        if not self.low < self.high:
            raise ArchipelError(f"low = {self.low}, high = {self.high}: give low below high.")

    @property
    def randomiser(self) -> Randomiser:
        return Randomiser(self.epsilon0, values=2)

    @property
    def flipped(self) -> float:
        """q: how likely a bit is the wrong one."""
        return 1 / (exp(self.epsilon0) + 1)

    def report(self, numbers: ArrayLike, source: Source) -> Ints:
        """What each party tells of its number, 0 or 1, `[m] -> [m]`; it is clipped before."""
        x = np.clip(np.asarray(numbers, np.float64), self.low, self.high)
        return _bits((x - self.low) / (self.high - self.low), self.flipped, source, 1)[:, 0]

    def estimate(self, reports: ArrayLike) -> float:
        """The mean of the numbers, `[n] -> one`."""
        q = self.flipped
        share = (float(np.mean(np.asarray(reports))) - q) / (1 - 2 * q)
        return self.low + (self.high - self.low) * share

    def variance(self, numbers: ArrayLike) -> float:
        """Of `estimate`, where parties have these numbers."""
        x = (np.asarray(numbers, np.float64) - self.low) / (self.high - self.low)
        q, width = self.flipped, self.high - self.low
        one = q + (1 - 2 * q) * x  # how likely a bit is 1
        return width**2 * float(np.sum(one * (1 - one))) / (len(x) * (1 - 2 * q)) ** 2


def _bits(shares: Array, flipped: float, source: Source, count: int) -> Ints:
    """Bits that are 1 with chance `shares`, and the other one with chance `flipped`."""
    words = source.words(np.full(source.parties, count)).reshape(source.parties, count)
    ones = (words >> np.uint64(11)) * 2.0**-53 < shares.reshape(source.parties, -1)
    found: Ints = (ones ^ _happens(source, flipped, count)).astype(np.int64)
    return found


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
        found: Array = self.size / self.told * self.scale * total
        return found

    def variance(self, vectors: ArrayLike) -> Array:
        """Of each number of `estimate`, where parties have these vectors, `[n, p] -> [p]`.

        One draw stands for p B (±1) where it is of this coordinate, and for 0 else: p B^2 - x^2.
        """
        x = np.asarray(vectors, np.float64)
        found: Array = np.sum(self.size * self.scale**2 - x**2, axis=0) / self.told
        return found
