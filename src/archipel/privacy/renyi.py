# SPDX-License-Identifier: Apache-2.0
"""Rényi divergences of releases, which add up, and the ε and δ that follow from them.

Mironov, CSF 2017, https://arxiv.org/abs/1702.07476. Through dp-accounting: Poisson samples with
Gaussian noise (Mironov, Talwar, Zhang, https://arxiv.org/abs/1908.10530), samples of fixed size
(Wang, Balle, Kasiviswanathan, https://arxiv.org/abs/1808.00087), the conversion (Canonne, Kamath,
Steinke, https://arxiv.org/abs/2004.00010, Proposition 12).

- The discrete Gaussian on vectors has the Gaussian's divergence at whole orders, sampled or not:
  they are sums of E_Q (P/Q)^l, and for a shift v by whole steps the sum over the grid of
  e^(−|x − l v|² / 2 sigma²) is that for l = 0. So E_Q (P/Q)^l = e^(l (l − 1) |v|² / 2 sigma²).
- Shares of noise (`shares.py`) that are sampled cost at most what all of them do: the divergence of
  two mixtures is at most the largest of their parts'. Two contributions, each at most l in L1, are
  2 l apart.
- Poisson samples with one replaced have the bound of fixed size: the view without the participant
  is nearer to both views with it than these are to each other.
- Heads of fair coins have a largest and a least number, so their divergence is infinite.
- What is ε-private and sampled at rate q is ln(1 + q (e^ε − 1))-private.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import expm1, inf, log1p
from typing import Any

import numpy as np

from archipel.privacy.curves import Array
from archipel.privacy.release import (
    DISTANCE,
    Binomial,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Neighbours,
    Pure,
    Release,
    Shuffled,
    Skellam,
)
from archipel.privacy.shares import gaussian_rdp, in_l1, skellam_rdp

_ROUNDING = 1e-14  # of a divergence that is computed as a logarithm near 0


def renyi_epsilon(releases: Sequence[Release], neighbours: Neighbours, delta: float) -> float:
    """An upper bound of ε at `delta`."""
    if _endless(releases):
        return inf
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders = _orders()
    return float(compute_epsilon(orders, divergences(releases, neighbours, orders), delta)[0])


def renyi_delta(releases: Sequence[Release], neighbours: Neighbours, epsilon: float) -> float:
    """An upper bound of δ at `epsilon`."""
    if _endless(releases):
        return 1.0
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    orders = _orders()
    return float(compute_delta(orders, divergences(releases, neighbours, orders), epsilon)[0])


def _endless(releases: Sequence[Release]) -> bool:
    return any(isinstance(each.mechanism, Binomial) for each in releases)


def _orders() -> Array:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return np.array(DEFAULT_RDP_ORDERS, dtype=np.float64)


def divergences(releases: Sequence[Release], neighbours: Neighbours, orders: Array) -> Array:
    """The divergence of all releases together, at each order."""
    each = [r.times * (_one(r, DISTANCE[neighbours], orders) + _ROUNDING) for r in releases]
    return np.asarray(np.sum(each, axis=0))


def _one(release: Release, far: int, orders: Array) -> Array:
    mechanism = release.mechanism
    match mechanism:
        case Gaussian(noise):
            return _gaussian(noise, release, far, orders)
        case DiscreteGaussian(shares=1):
            found = _gaussian(mechanism.noise, release, far, orders)
            return np.where(orders == np.round(orders), found, inf)
        case DiscreteGaussian(sigma, contribution, size, shares):
            l2, l1 = far * contribution, far * in_l1(contribution, size)
            cost = (gaussian_rdp(float(a), sigma, shares, l2, l1, size) for a in orders)
            return np.where(sigma < 0.5, inf, np.fromiter(cost, np.float64))
        case Skellam(variance, contribution, size, shares):
            l2, l1 = far * contribution, far * in_l1(contribution, size)
            return np.array([skellam_rdp(float(a), variance * shares, l2, l1) for a in orders])
        case Laplace(noise) if release.sampling is None:
            from dp_accounting.dp_event import LaplaceDpEvent

            return _accounted(LaplaceDpEvent(noise / far), far, orders)
        case Laplace(noise):
            return _pure(far / noise, release.rate, orders)
        case Binomial():
            return np.full_like(orders, inf)
        case Pure(epsilon):
            return _pure(far * epsilon, release.rate, orders)
        case Shuffled(epsilon0):  # without what shuffling adds
            return _pure(epsilon0, release.rate, orders)


def _gaussian(noise: float, release: Release, far: int, orders: Array) -> Array:
    from dp_accounting.dp_event import (
        GaussianDpEvent,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
    )

    if release.sampling is None:
        mu = far / noise
        return orders * (mu * mu) / 2
    event = GaussianDpEvent(noise / far)
    if far == 1:
        return _accounted(PoissonSampledDpEvent(release.rate, event), far, orders)
    return _accounted(SampledWithoutReplacementDpEvent(1, release.rate, event), far, orders)


def _accounted(event: Any, far: int, orders: Array) -> Array:
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    relation = (
        NeighboringRelation.ADD_OR_REMOVE_ONE if far == 1 else NeighboringRelation.REPLACE_ONE
    )
    with _quiet(logging.getLogger("absl")), np.errstate(all="ignore"):
        found = RdpAccountant(list(orders), relation).compose(event).rdp
    return np.where(np.isnan(found), inf, np.maximum(found, 0.0))


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Without a line for each order that does not converge: it is left out, which is safe."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _pure(epsilon: float, rate: float, orders: Array) -> Array:
    """The divergence of randomised response, the worst that is epsilon-private."""
    if rate < 1:
        epsilon = log1p(rate * expm1(epsilon)) if epsilon < 700 else epsilon
    total = np.logaddexp(orders * epsilon, (1 - orders) * epsilon)
    return np.asarray((total - np.logaddexp(0.0, epsilon)) / (orders - 1))
