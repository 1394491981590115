# SPDX-License-Identifier: Apache-2.0
"""Mechanisms: noise that knows the sensitivity it covers, and what it costs.

Each is made from its noise or, with `calibrated`, from what it may cost; `add` or `choose` uses it;
`delta(epsilon)`, `epsilon(delta)` and `rdp(alpha)` say what one use costs, with what rounding to a
grid adds to the sensitivity. The first two also count what samplers add (`grid.counted`); Renyi
divergences are those of the ideal noise.

`Gaussian`: Balle, Wang, ICML 2018 (`analytic.py`). `Laplace`: Dwork et al., TCC 2006, and Mironov,
CSF 2017, Proposition 6, for its Renyi divergence; that is convex in the shift and 0 at 0, so a
shift shared out among several numbers costs no more than one of the same L1 norm in a single one.
`DiscreteGaussian`: Canonne, Kamath, Steinke, NeurIPS 2020. It and `Skellam` may be the sum of
shares (`shares.py`). `Exponential`: McSherry, Talwar, FOCS 2007, and for its Renyi divergence Dong,
Durfee, Rogers, ICML 2020, with Cesar, Rogers, ALT 2021: epsilon^2 / 8-zCDP.

Departures: where one integer is released, delta is summed from the chances themselves, which fall
so that the largest shift costs most; else it is converted from Renyi divergences by Proposition 12
of Canonne, Kamath, Steinke.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import expm1, inf, log1p, sqrt
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.privacy import grid
from archipel.privacy.analytic import delta_of, mu_of, smallest
from archipel.privacy.checks import check_count, check_delta, check_order, positive
from archipel.privacy.costs import (
    Ideal,
    converted,
    delta_at,
    epsilon_at,
    left,
    pure,
    summed,
    too_many,
)
from archipel.privacy.noise import CLOSE, discrete_gaussian, exponential, skellam
from archipel.privacy.shares import gaussian_rdp, in_l1, skellam_rdp
from archipel.privacy.sources import Source

_STEP = 2.0**-32  # of a grid, in scales, at most
_UP = 1 + 2.0**-50  # more than rounding loses in a few operations
_SUMMED = 1e4  # deviation of integer noise up to which chances are added up


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on a grid, for real numbers.

    >>> round(Gaussian.calibrated(epsilon=1.0, delta=1e-5, sensitivity=1.0).sigma, 6)
    3.730632
    """

    sigma: float
    sensitivity: float  # in L2, before rounding: the clip, or twice it where a row is replaced
    size: int = 1  # numbers that are released

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)
        positive("sensitivity", self.sensitivity)
        check_count("size", self.size)

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, sensitivity: float, size: int = 1
    ) -> Gaussian:
        """Return the mechanism with the least noise that costs no more than (epsilon, delta)."""
        own, rest = left(positive("epsilon", epsilon), check_delta(delta), size)
        mu = mu_of(own, rest) - _STEP * sqrt(size)
        if mu <= 0:
            raise too_many(size, epsilon)
        return cls(positive("sensitivity", sensitivity) / mu * _UP, sensitivity, size)

    @property
    def mu(self) -> float:
        """How many sigma neighbours are apart on the grid: 1 / the noise multiplier."""
        apart = grid.widened(self.sensitivity, grid.grid(self.sigma), self.size)
        return apart / self.sigma

    def rdp(self, alpha: float) -> float:
        """Return the Renyi divergence of order alpha."""
        return check_order(alpha) * self.mu**2 / 2

    def delta(self, epsilon: float) -> float:
        """Return delta of one use at this epsilon."""
        return delta_at(partial(delta_of, self.mu), epsilon, self.size)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of one use at this delta; inf where there is none."""
        return epsilon_at(partial(delta_of, self.mu), delta, self.size)

    def add(self, values: Tensor, source: Source) -> Tensor:
        """Release values `[size]` of one party, or `[..., m, size]`, each party's for itself."""
        _check_size(values, self.size)
        return grid.gaussian(values, self.sigma, source)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on a grid, for real numbers.

    >>> round(Laplace.calibrated(epsilon=0.5, sensitivity=1.0).scale, 6)
    2.0
    """

    scale: float
    sensitivity: float  # in L1, before rounding
    size: int = 1  # numbers that are released

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("sensitivity", self.sensitivity)
        check_count("size", self.size)

    @classmethod
    def calibrated(cls, epsilon: float, sensitivity: float, size: int = 1) -> Laplace:
        """Return the mechanism with the least noise that costs no more than epsilon.

        Besides the delta that samplers add, 1e-30 a number (`grid.counted`).
        """
        check_count("size", size)
        share = positive("epsilon", epsilon) - 2 * size * CLOSE - _STEP * size
        if share <= 0:
            raise too_many(size, epsilon)
        return cls(positive("sensitivity", sensitivity) / share * _UP, sensitivity, size)

    @property
    def shift(self) -> float:
        """How many scales neighbours are apart on the grid: epsilon of the ideal noise."""
        return grid.widened(self.sensitivity, grid.grid(self.scale), self.size, 1) / self.scale

    def rdp(self, alpha: float) -> float:
        """Return the Renyi divergence of order alpha."""
        a, t = check_order(alpha), self.shift
        if a == inf:
            return t
        # log((a e^((a-1) t) + (a-1) e^(-a t)) / (2a-1)) / (a-1), with e^((a-1) t) taken out
        rest = log1p((a - 1) / (2 * a - 1) * expm1(-(2 * a - 1) * t))
        return max(0.0, t + rest / (a - 1))

    def delta(self, epsilon: float) -> float:
        """Return delta of one use; below its own epsilon, that of the worst one as private."""
        return delta_at(partial(pure, self.shift), epsilon, self.size)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of one use at this delta; inf where there is none."""
        return epsilon_at(partial(pure, self.shift), delta, self.size)

    def add(self, values: Tensor, source: Source) -> Tensor:
        """Release values `[size]` of one party, or `[..., m, size]`, each party's for itself."""
        _check_size(values, self.size)
        return grid.laplace(values, self.scale, source)


@dataclass(frozen=True)
class DiscreteGaussian:
    """Discrete Gaussian noise, for integers; or the sum of several such, a share of each party."""

    sigma: float  # of one share
    sensitivity: float  # in L2
    size: int = 1  # integers that are released
    shares: int = 1  # how many are added up at least
    sensitivity_1: float | None = None  # in L1; None for what follows from that in L2

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)
        _check_integers(self.sensitivity, self.sensitivity_1, self.size, self.shares)
        if self.shares > 1 and self.sigma < 0.5:
            raise ArchipelError(
                f"sigma = {self.sigma}: shares of discrete Gaussian noise add up from 0.5 on; give "
                "more, or a finer grid."
            )

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, sensitivity: float, size: int = 1, shares: int = 1
    ) -> DiscreteGaussian:
        """Return the mechanism with the least noise that costs no more than (epsilon, delta)."""

        def of(sigma: float) -> DiscreteGaussian:
            return cls(max(0.5 if shares > 1 else 1e-3, sigma), sensitivity, size, shares)

        return _least(of, positive("epsilon", epsilon), check_delta(delta))

    def rdp(self, alpha: float) -> float:
        """Return the Renyi divergence of order alpha."""
        l2, l1 = self.sensitivity, _in_l1(self.sensitivity, self.sensitivity_1, self.size)
        return gaussian_rdp(check_order(alpha), self.sigma, self.shares, l2, l1, self.size)

    def _ideal(self) -> Ideal:
        if self.size == self.shares == 1 and self.sigma < _SUMMED:
            return summed(
                lambda k: np.exp(-((k / self.sigma) ** 2) / 2), self.sigma, self.sensitivity
            )
        return converted(self.rdp)

    def delta(self, epsilon: float) -> float:
        """Return delta of one use at this epsilon."""
        return delta_at(self._ideal(), epsilon, self.size * self.shares)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of one use at this delta; inf where there is none."""
        return epsilon_at(self._ideal(), delta, self.size * self.shares)

    def add(self, values: Tensor, source: Source) -> Tensor:
        """Add a share to integers `[size]` of one party, or to each party's of `[..., m, size]`."""
        _check_size(values, self.size, integers=True)
        return grid.added(values, discrete_gaussian(source, self.sigma, self.size))


@dataclass(frozen=True)
class Skellam:
    """Skellam noise, for integers; a sum of shares is one of the sum of their variances."""

    variance: float  # of one share
    sensitivity: float  # in L2
    size: int = 1  # integers that are released
    shares: int = 1  # how many are added up at least
    sensitivity_1: float | None = None  # in L1; None for what follows from that in L2

    def __post_init__(self) -> None:
        positive("variance", self.variance)
        _check_integers(self.sensitivity, self.sensitivity_1, self.size, self.shares)

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, sensitivity: float, size: int = 1, shares: int = 1
    ) -> Skellam:
        """Return the mechanism with the least noise that costs no more than (epsilon, delta)."""

        def of(variance: float) -> Skellam:
            return cls(max(1e-3, variance), sensitivity, size, shares)

        return _least(of, positive("epsilon", epsilon), check_delta(delta))

    @property
    def sigma(self) -> float:
        """The deviation of all shares together."""
        return sqrt(self.variance * self.shares)

    def rdp(self, alpha: float) -> float:
        """Return the Renyi divergence of order alpha."""
        l2, l1 = self.sensitivity, _in_l1(self.sensitivity, self.sensitivity_1, self.size)
        return skellam_rdp(check_order(alpha), self.variance * self.shares, l2, l1)

    def _ideal(self) -> Ideal:
        from scipy.special import ive  # takes long to import

        if self.size == 1 and self.sigma < _SUMMED:
            return summed(
                lambda k: np.asarray(ive(np.abs(k), self.sigma**2)), self.sigma, self.sensitivity
            )
        return converted(self.rdp)

    def delta(self, epsilon: float) -> float:
        """Return delta of one use at this epsilon."""
        return delta_at(self._ideal(), epsilon, self.size * self.shares)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of one use at this delta; inf where there is none."""
        return epsilon_at(self._ideal(), delta, self.size * self.shares)

    def add(self, values: Tensor, source: Source) -> Tensor:
        """Add a share to integers `[size]` of one party, or to each party's of `[..., m, size]`."""
        _check_size(values, self.size, integers=True)
        return grid.added(values, skellam(source, self.variance, self.size))


@dataclass(frozen=True)
class Exponential:
    """A choice that is likelier the higher its score: P(i) ~ exp(eps scores[i] / 2 sensitivity)."""

    eps: float  # what it costs
    sensitivity: float  # of each score

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        positive("sensitivity", self.sensitivity)

    def rdp(self, alpha: float) -> float:
        """Return the Renyi divergence of order alpha."""
        return min(check_order(alpha) * self.eps**2 / 8, self.eps)

    def delta(self, epsilon: float) -> float:
        """Return delta of one use; below its own epsilon, that of the worst one as private."""
        return delta_at(partial(pure, self.eps), epsilon, 1)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of one use at this delta; inf where there is none."""
        return epsilon_at(partial(pure, self.eps), delta, 1)

    def choose(self, scores: Sequence[float], source: Source) -> int:
        """Return the index of a choice."""
        return int(exponential(source, scores, self.eps, self.sensitivity)[0, 0])


# -- what they share -------------------------------------------------------------------------------

_Integers = TypeVar("_Integers", DiscreteGaussian, Skellam)


def _least(of: Callable[[float], _Integers], epsilon: float, delta: float) -> _Integers:
    """The mechanism of the least scale that costs no more."""
    return of(smallest(lambda scale: of(scale).delta(epsilon) <= delta))


def _in_l1(l2: float, l1: float | None, size: int) -> float:
    """The L1 norm of `size` integers; |k| <= k^2."""
    most = in_l1(l2, size)
    return most if l1 is None else min(l1, most)


def _check_integers(l2: float, l1: float | None, size: int, shares: int) -> None:
    positive("sensitivity", l2)
    if l1 is not None:
        positive("sensitivity_1", l1)
    check_count("size", size)
    check_count("shares", shares)


def _check_size(values: Tensor, size: int, integers: bool = False) -> None:
    if values.shape[-1:] != (size,):
        raise ArchipelError(
            f"values {[*values.shape]}: the mechanism covers {size} numbers; give as many, or make "
            "one of their size."
        )
    if integers and values.dtype != torch.int64:
        raise ArchipelError(f"values of {values.dtype}: give int64, rounded to integers.")
