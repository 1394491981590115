# SPDX-License-Identifier: Apache-2.0
"""Gaussian and Laplace noise for real numbers, on a grid.

Why a grid. Floating-point noise has holes: which low-order bits a sum x + z can have depends on x,
so that a single output can tell x from its neighbour [Mironov, CCS 2012; Jin et al., S&P 2022].
Here x is rounded to k = round(x / g), where the grid g is a power of two that is chosen from the
scale alone; an integer K of noise is drawn; and what leaves is a function of the integer k + K.

Why the continuous analysis holds. With s = sigma / g in [2^32, 2^33), P(K = k) ~ exp(-k^2 / 2 s^2).
With Z standard normal, round(s Z) has in its place the integral of that density from k - 1/2 to
k + 1/2, which is the same up to a factor 1 + c, |c| <= (k^2 / s^2 + 1) / 24 s^2 < 2^-60 up to
13 sigma. And since k is an integer, k + round(s Z) = round(k + s Z): post-processing of the
continuous Gaussian mechanism on k. What is proved of that one, by whatever accountant, holds here,
but for what is counted:

1. Rounding moves a number by g / 2 at most. Of d numbers, neighbours may thus be further apart than
   before, by g sqrt(d) in L2 and by g d in L1 (`widened`).
2. Chances are right up to a factor e^(+-eta), and but for xi of them: `CLOSE`, `MISSED` of
   `noise.py`, with c in eta. If P is the ideal noise of d numbers, and (epsilon, delta)-private,
   and Q is ours, then for any set S

       Q_x(S) <= e^(d eta) P_x(S) + d xi <= e^(d eta) (e^epsilon P_x'(S) + delta) + d xi
              <= e^(epsilon + 2 d eta) Q_x'(S) + e^(d eta) delta + (1 + e^(epsilon + 2 d eta)) d xi,

   which `counted` returns: for d = 10^6, epsilon grows by 1e-8 and delta by nothing one can see.

A normal deviate in double precision, rounded to a grid of 2^-32 sigma, would not do: it is off by
2^-53 of itself, which is 2^-21 of a step, and so are chances, by a factor of up to e^(+-2^-20).

Laplace noise needs no such argument: P(K = k) ~ exp(-|k| / s) on the integers is private by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, frexp, ldexp, sqrt

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.privacy.checks import positive
from archipel.privacy.noise import CLOSE, MISSED, discrete_gaussian, discrete_laplace
from archipel.privacy.sources import Source
from archipel.rng import Ints

_FINE = 32  # a grid has 2^32 steps in a scale at least
_LARGEST = 1 << 62  # of a value, in steps of the grid: noise added to it does not overflow

Draw = Callable[[Source, int], Ints]  # so many integers of noise


def grid(scale: float) -> float:
    """The grid for noise of this scale: the power of two with 2^32 steps in it, or some more.

    >>> grid(1.0) == grid(1.9) == 2.0**-32
    True
    """
    return ldexp(1.0, frexp(positive("scale", scale))[1] - 1 - _FINE)


def widened(sensitivity: float, step: float, size: int, norm: int = 2) -> float:
    """How far `size` numbers of neighbours are apart, rounded to a grid, in L1 or L2."""
    return sensitivity + step * (size if norm == 1 else sqrt(size))


def counted(epsilon: float, delta: float, numbers: int) -> tuple[float, float]:
    """What the ideal noise's (epsilon, delta) is of ours, where it is in so many numbers.

    >>> epsilon, delta = counted(1.0, 1e-5, 10**6)
    >>> round(epsilon - 1.0, 8), round(delta - 1e-5, 12)
    (1e-08, 0.0)
    """
    ours = epsilon + 2 * numbers * CLOSE
    missed = (1 + exp(min(ours, 100))) * numbers * MISSED  # more than e^100 of it is 1 as well
    return ours, min(1.0, delta * exp(numbers * CLOSE) + missed)


def rounded(values: Tensor, step: float) -> Tensor:
    """Values in steps of a grid, int64. What is 2^62 steps or more from 0 is put there.

    Refusing it would tell that it was there; putting it there moves neighbours no further apart.
    """
    if not bool(values.isfinite().all()):
        raise ArchipelError("values: some are not finite; clip them before noise is added.")
    steps = values.double() / step  # exact, since the step is a power of two
    return steps.clamp(-_LARGEST, _LARGEST).round().long()


def gaussian(values: Tensor, sigma: float, sources: Source | Sequence[Source]) -> Tensor:
    """Add Gaussian noise on the grid of sigma to values `[p]`, or `[..., m, p]` of m sources."""
    return _added(discrete_gaussian, values, sigma, sources)


def laplace(values: Tensor, scale: float, sources: Source | Sequence[Source]) -> Tensor:
    """Add Laplace noise on the grid of its scale to values `[p]`, or `[..., m, p]` of m sources."""
    return _added(discrete_laplace, values, scale, sources)


def _added(
    noise: Callable[[Source, float, int], Ints],
    values: Tensor,
    scale: float,
    sources: Source | Sequence[Source],
) -> Tensor:
    if not values.is_floating_point():
        raise ArchipelError(
            f"values of {values.dtype}: give floating-point numbers; integers have mechanisms of "
            "their own, DiscreteGaussian and Skellam."
        )
    step = grid(scale)

    def draw(source: Source, count: int) -> Ints:
        return noise(source, scale / step, count)

    total = added(rounded(values.detach(), step), draw, sources)
    return (total.double() * step).to(values.dtype)  # of the integers alone


def added(values: Tensor, draw: Draw, sources: Source | Sequence[Source]) -> Tensor:
    """Add noise to integers `[p]`, or to `[..., m, p]` of m sources, alike along the first axes."""
    each = list(sources) if isinstance(sources, Sequence) else [sources]
    shape = values.shape[-2:] if isinstance(sources, Sequence) else values.shape
    if len(shape) != 1 + isinstance(sources, Sequence) or shape[:-1].numel() != len(each):
        raise ArchipelError(
            f"sources: {len(each)} for values {[*values.shape]}; give one for values [p], or a "
            "list of m for values [..., m, p]."
        )
    noise = np.concatenate([np.empty(0, np.int64), *(draw(one, shape[-1]) for one in each)])
    return values.clamp(-_LARGEST, _LARGEST) + torch.from_numpy(noise).view(shape).to(values.device)
