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

from collections.abc import Callable
from math import exp, frexp, ldexp, sqrt

import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.privacy.checks import positive
from archipel.privacy.noise import CLOSE, MISSED, discrete_gaussian, discrete_laplace
from archipel.privacy.sources import Source
from archipel.rng import Ints

_FINE = 32  # a grid has 2^32 steps in a scale at least
_BLOCK = 1 << 14  # numbers at a time: they stay in the cache
_LARGEST = 1 << 62  # of a value, in steps of the grid: noise added to it does not overflow


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
    steps = values.detach().to(torch.float64, copy=True).div_(step)  # exact, by a power of two
    return steps.clamp_(-_LARGEST, _LARGEST).round_().long()


def gaussian(values: Tensor, sigma: float, source: Source) -> Tensor:
    """Add Gaussian noise on the grid of sigma to values `[p]` of one party, or `[..., m, p]`."""
    return _added(discrete_gaussian, values, sigma, source)


def laplace(values: Tensor, scale: float, source: Source) -> Tensor:
    """Add Laplace noise on the grid of its scale to values `[p]` of one party, or `[..., m, p]`."""
    return _added(discrete_laplace, values, scale, source)


def _added(
    noise: Callable[[Source, float, int], Ints], values: Tensor, scale: float, source: Source
) -> Tensor:
    if not values.is_floating_point():
        raise ArchipelError(
            f"values of {values.dtype}: give floating-point numbers; integers have mechanisms of "
            "their own, DiscreteGaussian and Skellam."
        )
    _check(values, source.parties)
    step, p = grid(scale), values.shape[-1]
    drawn = torch.from_numpy(noise(source, scale / step, p)).to(values.device).view(-1)
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    if not values.numel():
        return out
    rows, releases = (each.reshape(-1, len(drawn)) for each in (values.detach(), out))
    for row, released in zip(rows, releases, strict=True):  # of a sweep
        parts = (each.split(_BLOCK) for each in (row, drawn, released))
        for x, k, y in zip(*parts, strict=True):
            y.copy_(rounded(x, step).add_(k).double().mul_(step))  # of the integers alone
    return out


def added(values: Tensor, noise: Ints) -> Tensor:
    """Add noise `[m, p]` to integers `[p]` of one party, or `[..., m, p]`, alike along the rest."""
    _check(values, len(noise))
    drawn = torch.from_numpy(noise).to(values.device).view(values.shape[-2:])
    return values.clamp(-_LARGEST, _LARGEST).add_(drawn)


def _check(values: Tensor, parties: int) -> None:
    if values.dim() == 0 or parties != (values.shape[-2] if values.dim() > 1 else 1):
        raise ArchipelError(
            f"source of {parties} parties for values {[*values.shape]}: give values [p] of one "
            "party, or [..., m, p] of m."
        )
