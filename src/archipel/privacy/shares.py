# SPDX-License-Identifier: Apache-2.0
"""Noise in shares: what a sum costs to which each of n parties added integer noise of its own.

Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387, Proposition 14: Rényi divergence
of a sum of discrete Gaussian shares. Agarwal, Kairouz, Liu, NeurIPS 2021,
https://arxiv.org/abs/2110.04995, Theorem 3.1: that of Skellam noise, whose sums are Skellam noise.
Both in steps of the grid: |v|_2 and |v|_1 are by how much neighbours' sums may differ.

A sum of discrete Gaussian shares is also, but for a factor next to 1, a continuous Gaussian that
somebody rounded, so that all that is known of those holds (`as_gaussian`); converting Rényi
divergences would cost 8 % more noise. With r(s, c) = Σ_k exp(−(k − c)² / 2 s²) over the integers k,
Poisson's summation gives r(s, c) = √(2π) s (1 ± θ) for every real c, where

    θ(s²) = 2 Σ_{j ≥ 1} exp(−2 π² s² j²).

1. Draw Y ~ N(v, S² − η²) and then an integer X with P(X = x | Y) = exp(−(x − Y)² / 2 η²) / r(η, Y).
   The numerator, integrated over Y, is exp(−(x − v)² / 2 S²) times a constant; the denominator is
   constant up to 1 ± θ(η²). Both sides are distributions, so P(X = x) is that of the discrete
   Gaussian N_Z(v, S²), v whole, up to a factor e^(±κ), κ = ln((1 + θ) / (1 − θ)).
2. In the same way Σ_y exp(−y² / 2 a²) exp(−(x − y)² / 2 b²) is exp(−x² / 2 (a² + b²)) r(s, c),
   s² = a² b² / (a² + b²). Shares of σ added one by one have s² = σ² k / (k + 1), k = 1 … n − 1, and
   their sum is N_Z(0, n σ²) up to e^(±τ), τ = Σ_k ln((1 + θ_k) / (1 − θ_k)) ~ 4 Σ_k exp(−2 π² s²).
3. Shares are drawn right up to a factor e^(±n CLOSE) (`noise.py`).

So in d numbers the noisy sum is, up to a factor e^(±a), a = d (κ + τ + n CLOSE), made from
N(v, (n σ² − η²) I) by somebody who does not know v: (ε, δ) of that Gaussian is (ε + 2 a, δ e^a) of
ours, over several releases the factors multiply, and sampling mixes both sides alike. η² = 2 makes
κ 3e-17. It is the convolution lemma of lattice cryptography (Peikert, CRYPTO 2010, Theorem 3.1).

Departures: Skellam's bound is proved for whole orders, and other orders take the next one's.
"""

from __future__ import annotations

from math import ceil, inf, pi, sqrt

import numpy as np

from archipel.privacy.noise import CLOSE, PLAIN

ROUNDED = 2.0  # η²: variance that a continuous Gaussian lacks, before it is rounded


def in_l1(l2: float, size: int) -> float:
    """The largest L1 norm of `size` integers of this L2 norm: |k| <= k²."""
    return l2 * min(sqrt(size), l2)


def tau(sigma: float, shares: int) -> float:
    """How far a sum of discrete Gaussian shares is from a discrete Gaussian, in each number."""
    k = np.arange(1, shares)
    return 10 * float(np.exp(-2 * (pi * sigma) ** 2 * k / (k + 1)).sum())


def gaussian_rdp(alpha: float, sigma: float, shares: int, l2: float, l1: float, size: int) -> float:
    """The Rényi divergence of a sum of discrete Gaussian shares, in `size` numbers."""
    total, apart = sqrt(shares) * sigma, tau(sigma, shares)
    l2, l1 = l2 / total, l1 / total
    if apart == 0:
        return alpha * l2**2 / 2
    return min(
        alpha * l2**2 / 2 + apart * size,
        alpha / 2 * (l2**2 + 2 * l1 * apart + apart**2 * size),
        alpha / 2 * (l2 + sqrt(size) * apart) ** 2,
    )


def skellam_rdp(alpha: float, variance: float, l2: float, l1: float) -> float:
    """The Rényi divergence of Skellam noise, of the variance of all shares together."""
    if alpha == inf:
        return inf
    a, v = ceil(alpha), variance
    more = min(((2 * a - 1) * l2**2 + 6 * l1) / (4 * v**2), 3 * l1 / (2 * v))
    return a * l2**2 / (2 * v) + more


def as_gaussian(sigma: float, shares: int, size: int) -> tuple[float, float]:
    """The deviation of a continuous Gaussian that costs as much, and a, the factor's logarithm.

    >>> deviation, apart = as_gaussian(10.0, 100, 10**6)
    >>> round(deviation, 4), apart < 1e-9
    (99.99, True)
    """
    left = shares * sigma**2 - ROUNDED
    if left < 20 * ROUNDED or sigma < 0.5:  # divergences tell more of so little noise
        return 0.0, inf
    k = np.arange(1, shares)
    squares = np.concatenate([[ROUNDED], sigma**2 * k / (k + 1)])
    series = np.exp(-2 * pi**2 * squares * np.array([[1], [4], [9]]))  # j²
    each = 2 * series.sum(axis=0) * (1 + 1e-9)  # what is left of it is less, since s² >= 1/8
    if float(each.max()) >= 1:
        return 0.0, inf
    drawn = shares * CLOSE if sigma >= PLAIN else 0.0
    return sqrt(left), size * (float((np.log1p(each) - np.log1p(-each)).sum()) + drawn)
