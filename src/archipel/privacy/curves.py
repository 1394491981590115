# SPDX-License-Identifier: Apache-2.0
"""Privacy curves δ(ε) of single releases, exact, for every real ε.

δ(ε) = sup over events S of P(S) − e^ε Q(S), with P and Q what is seen of two neighbours.
Balle, Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8 (Gaussian noise).
Balle, Barthe, Gaboardi, NeurIPS 2018, https://arxiv.org/abs/1807.01647, Theorem 2 (sampling).
Zhu, Dong, Wang, AISTATS 2022, https://arxiv.org/abs/2106.08567 (curves that compose).

Sampling. P and Q are the mechanism's curve δ, the same in both directions; q is the rate.

- Poisson, one removed: (1 − q) Q + q P against Q. With α = e^ε and β = (α − 1 + q) / q it is
  sup P q − Q (α − 1 + q) = q δ(ln β) where β > 0, else 1 − α. One added: the same two, the other
  way round: sup Q (1 − α (1 − q)) − P α q.
- Fixed size, one replaced: with A the view where it is not sampled, and B, B' where it is, the two
  neighbours show (1 − q) A + q B and (1 − q) A + q B'. For ε ≥ 0 joint convexity gives q δ(ln β),
  with δ the curve of replacing one: a sample without it becomes one with it by replacing another
  member. For ε < 0 the roles are exchanged: 1 − e^ε + e^ε δ(−ε). Both halves hold for every pair of
  neighbours, and together are the curve of one pair, so it composes; two datasets that are worst
  for one round need not be (Lebeda et al., https://arxiv.org/abs/2405.20769).
- Poisson, one replaced: the same bound, since A and B are then nearer to each other. Gaussian noise
  has a better one: v and −v of norm 1, N(0) (1 − q) + N(v) q against N(0) (1 − q) + N(−v) q.
  This is the worst pair: for ε ≥ 0, δ = q sup N(v) − e^t ((1 − b) N(0) + b N(v')) is the mean under
  N(v) of a convex function of (1 − b) L + b L', two lognormal ratios of mean 1. In convex order
  their sum is largest where both variances are, |v|² and |v − v'|², and both rise together:
  v' = −v.

Departures: none in the formulas; logarithms keep tails exact where the printed forms cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import ceil, exp, inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, log_ndtr, ndtr

from archipel.privacy.release import (
    DISTANCE,
    Binomial,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Neighbours,
    Poisson,
    Pure,
    Release,
    Shuffled,
    Skellam,
)

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]  # ε -> δ


# -- Gaussian noise --------------------------------------------------------------------------------


def gaussian_delta(mu: float, epsilon: ArrayLike) -> Array:
    """δ of N(mu, 1) against N(0, 1): mu is the distance in standard deviations.

    >>> float(gaussian_delta(1.0, 1.0).round(6))
    0.126937
    """
    t = np.asarray(epsilon, dtype=np.float64)
    if mu == 0 or mu == inf:
        return np.maximum(0.0, -np.expm1(t)) if mu == 0 else np.ones_like(t)
    with np.errstate(over="ignore", invalid="ignore"):
        upper = log_ndtr(mu / 2 - t / mu)
        lower = log_ndtr(-mu / 2 - t / mu) + t
        out = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return np.where(upper == -inf, 0.0, out)


# -- other noise -----------------------------------------------------------------------------------


def laplace_delta(epsilon0: float, epsilon: ArrayLike) -> Array:
    """δ of Laplace noise moved by epsilon0 of its scales.

    The whole l1 distance in one coordinate is the worst. With a >= b in two coordinates, δ(ε) for
    ε >= 0 is the mean over b's loss L of (1 − e^((ε − L − a) / 2))_+, and L <= b always.
    """
    t = np.asarray(epsilon, dtype=np.float64)
    inside = -np.expm1((np.minimum(t, epsilon0) - epsilon0) / 2)
    return np.where(t < -epsilon0, -np.expm1(np.minimum(t, 0.0)), inside)


def pure_delta(epsilon0: float, epsilon: ArrayLike) -> Array:
    """δ of randomised response, the worst of all that is epsilon0-private [Kairouz 2015]."""
    t = np.asarray(epsilon, dtype=np.float64)
    inside = -np.expm1(np.minimum(t, epsilon0) - epsilon0) / (1 + exp(-epsilon0))
    return np.where(t < -epsilon0, -np.expm1(np.minimum(t, 0.0)), inside)


def shuffled_delta(epsilon0: float, reports: int, values: int | None, epsilon: ArrayLike) -> Array:
    """δ of shuffled reports, one replaced: of a pair of mirror images (`shuffling.py`)."""
    from archipel.privacy.shuffling import Randomiser, deltas  # takes long to import

    t = np.asarray(epsilon, dtype=np.float64)
    half = deltas(Randomiser(epsilon0, values), reports, np.abs(t))
    low = np.minimum(t, 0.0)
    return np.where(t < 0, np.exp(low) * half - np.expm1(low), half)


def discrete_gaussian_delta(sigma: float, shift: int, epsilon: ArrayLike) -> Array:
    """δ of the discrete Gaussian moved by `shift` steps [Canonne 2020, Theorem 7].

    The loss at x is (shift² − 2 x shift) / 2 sigma², so the event is x < shift/2 − ε sigma²/shift.
    """
    t = np.asarray(epsilon, dtype=np.float64)
    below = np.ceil(np.clip(shift / 2 - t * sigma**2 / shift, -1e15, 1e15)) - 1
    upper, lower = _discrete_cdf(sigma, below), _discrete_cdf(sigma, below - shift)
    with np.errstate(over="ignore", invalid="ignore"):
        out = upper - np.where(lower > 0, np.exp(t) * lower, 0.0)
    return np.maximum(out, 0.0)


def _discrete_cdf(sigma: float, x: Array) -> Array:
    """P(X <= x) of the discrete Gaussian at whole x.

    From sigma = 1000 by Euler's and Maclaurin's sum at x + 1/2, exact in double precision.
    """
    if sigma > 1000:
        u = np.clip((x + 0.5) / sigma, -50, 50)
        density = np.exp(-u * u / 2) / sqrt(2 * np.pi)
        first, third = u / (24 * sigma**2), 7 * (u**3 - 3 * u) / (5760 * sigma**4)
        return np.asarray(np.clip(ndtr(u) + density * (first - third), 0.0, 1.0))
    reach = ceil(38 * sigma) + 1
    weights = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    at = np.clip(x + reach + 1, 0, len(weights)).astype(np.int64)
    return np.asarray(sums[at] / sums[-1])


def binomial_delta(coins: int, shift: int, epsilon: ArrayLike) -> Array:
    """δ of the number of heads of fair coins, moved by `shift`.

    P(k) / P(k − shift) falls in k, so the event is a range from 0. Up to shift − 1 heads, nothing
    of the other is seen: that mass stays at every ε.
    """
    t = np.asarray(epsilon, dtype=np.float64)
    if shift > coins:
        return np.ones_like(t)
    loss, p, q = _heads(coins, shift)
    seen = np.searchsorted(-loss, -t, side="left")  # losses above t, which fall
    other = np.where(seen > 0, q[np.maximum(seen - 1, 0)], 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        out = p[shift + seen - 1] - np.where(other > 0, np.exp(t) * other, 0.0)
    return np.clip(out * (1 + 1e-9), 0.0, 1.0)


@lru_cache(maxsize=8)
def _heads(coins: int, shift: int) -> tuple[Array, Array, Array]:
    """ln P(k) / P(k − shift) from k = shift on, P(K <= k), and P(K <= k − shift) from there on."""
    k = np.arange(coins + 1)
    logs = gammaln(coins + 1) - gammaln(k + 1) - gammaln(coins - k + 1) - coins * log(2)
    below = logs[: coins + 1 - shift]
    return logs[shift:] - below, np.cumsum(np.exp(logs)), np.cumsum(np.exp(below))


# -- sampling --------------------------------------------------------------------------------------


def removed(curve: Curve, rate: float, t: Array) -> Array:
    """δ of a Poisson sample, one removed: q δ(ln β)."""
    inside = rate * curve(_thicker(rate, t))
    return np.where(t > np.log1p(-rate), inside, -np.expm1(np.minimum(t, 0.0)))


def added(curve: Curve, rate: float, t: Array) -> Array:
    """δ of a Poisson sample, one added: removed, the other way round."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        rest = rate * np.exp(t) - np.expm1(t)  # 1 − α (1 − q)
    right = rest > 0
    rest = np.where(right, rest, 1.0)
    return np.where(right, rest * curve(t + log(rate) - np.log(rest)), 0.0)


def replaced(curve: Curve, rate: float, t: Array) -> Array:
    """δ of a sample of fixed size, one replaced."""
    half = rate * curve(_thicker(rate, np.abs(t)))
    low = np.minimum(t, 0.0)
    return np.where(t < 0, np.exp(low) * half - np.expm1(low), half)


def _thicker(rate: float, t: Array) -> Array:
    """ln β = ln((e^t − 1 + q) / q), for t above ln(1 − q)."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(t, 1.0)) / rate, -1.0))
        far = t + np.log1p(-(1 - rate) * np.exp(-np.maximum(t, 1.0))) - log(rate)
    return np.where(t > 1, far, near)


def opposite(mu: float, rate: float, t: Array) -> Array:
    """δ of N(0) (1 − q) + N(mu) q against N(0) (1 − q) + N(−mu) q: Poisson, one replaced.

    For t >= 0: their ratio rises in x and is e^t at w = e^(mu x) with a w² − 2 h w − e^t a = 0,
    where a = q e^(−mu²/2) and 2 h = (1 − q) (e^t − 1). For t < 0 the roles are exchanged.
    """
    high = np.abs(t)
    log_a = log(rate) - mu * mu / 2
    with np.errstate(divide="ignore"):
        log_h = log((1 - rate) / 2) + high + np.log(-np.expm1(-high))
    log_root = np.logaddexp(2 * log_h, 2 * log_a + high) / 2
    x = (np.logaddexp(log_h, log_root) - log_a) / mu
    fresh = ndtr(mu - x) - np.exp(high + log_ndtr(-mu - x))
    same = np.exp(high + log_ndtr(-x)) * -np.expm1(-high)
    half = np.maximum(rate * fresh - (1 - rate) * same, 0.0)
    low = np.minimum(t, 0.0)
    return np.asarray(np.where(t < 0, np.exp(low) * half - np.expm1(low), half))


# -- a release -------------------------------------------------------------------------------------


def curves(release: Release, neighbours: Neighbours) -> tuple[Curve, Curve]:
    """Both directions of a release: the curve of P against Q, and of Q against P."""
    far = DISTANCE[neighbours]
    match release.mechanism:
        case Gaussian(noise):
            curve: Curve = partial(gaussian_delta, far / noise)
        case Laplace(noise):
            curve = partial(laplace_delta, far / noise)
        case DiscreteGaussian(sigma, contribution):
            curve = partial(discrete_gaussian_delta, sigma, far * ceil(contribution))
        case Binomial(coins, contribution):
            curve = partial(binomial_delta, coins, far * contribution)
        case Pure(epsilon):
            curve = partial(pure_delta, far * epsilon)
        case Shuffled(epsilon0, reports, values):
            curve = partial(shuffled_delta, epsilon0, reports, values)
        case Skellam():
            raise AssertionError("it has no curve of its own: see losses.has_losses")
    rate = release.rate
    if release.sampling is None:
        return curve, curve
    if neighbours == "add_or_remove":
        return partial(removed, curve, rate), partial(added, curve, rate)
    if isinstance(release.sampling, Poisson) and isinstance(release.mechanism, Gaussian):
        both: Curve = partial(opposite, 1 / release.mechanism.noise, rate)
    else:
        both = partial(replaced, curve, rate)
    return both, both
