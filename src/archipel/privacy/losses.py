# SPDX-License-Identifier: Apache-2.0
"""Privacy-loss distributions of releases, on a grid, composed by convolution.

The loss ln P(x)/Q(x) under P is a distribution that adds up over releases and has δ(ε) in it.
Here a release's curve is read off at the points of a grid and connected by straight lines in e^ε,
which lie above it since it is convex: the loss on the grid that has this curve is never smaller
(Doroshenko et al., PoPETs 2022, https://arxiv.org/abs/2207.04380, Algorithm 1). Grids are convolved
by Fourier transform (Koskela et al., AISTATS 2020, https://arxiv.org/abs/1906.03049).

Pessimistic throughout: what is cut off at the upper end counts as an infinite loss, what is cut off
at the lower end is rounded up, and `SLACK` of mass for each release covers rounding. dp-accounting,
which tests compare this with, has a fixed step, and so takes seconds where this takes a twentieth.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from archipel.privacy.curves import Array, Curve, curves
from archipel.privacy.release import DiscreteGaussian, Mechanism, Neighbours, Release, Skellam

SLACK = 2.0**-50  # of mass, for each release: what a Fourier transform rounds
_FINE = 0.04  # step of the grid in deviations of one release's loss
_POINTS, _LONGEST = 300_000, 1_000_000  # of a release's grid, and of that of all together
_FARTHEST = 1e5  # a loss beyond counts as infinite


class Loss(NamedTuple):
    """A loss distribution: `mass[i]` at (first + i) step, `infinite` at infinity."""

    step: float
    first: int
    mass: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        """δ(epsilon): the mean of (1 − e^(epsilon − loss))_+."""
        start = max(int(np.floor(epsilon / self.step)) - self.first + 1, 0)
        if start >= len(self.mass):
            return self.infinite
        above = (self.first + np.arange(start, len(self.mass))) * self.step - epsilon
        return self.infinite + float(-np.expm1(-np.maximum(above, 0.0)) @ self.mass[start:])

    def epsilon(self, delta: float) -> float:
        """The smallest ε from 0 with δ(ε) <= delta.

        Between two points of the grid, δ(ε) is infinite + Σ mass − e^ε Σ mass e^−loss.
        """
        if self.infinite > delta:
            return inf
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0, max(self.first + len(self.mass), 1)  # in steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.delta(middle * self.step) > delta else (low, middle)
        start = max(high - self.first, 0)  # the first point above low
        rest = self.mass[start:]
        lower = float(rest @ np.exp(-np.arange(len(rest)) * self.step))
        excess = self.infinite + float(rest.sum()) - delta
        if min(excess, lower) <= 0:  # by rounding
            return high * self.step
        return min((self.first + start) * self.step + log(excess / lower), high * self.step)


def has_losses(releases: Sequence[Release]) -> bool:
    """Whether each has a loss distribution; noise on whole vectors of a grid has bounds only."""

    def has(mechanism: Mechanism) -> bool:
        if isinstance(mechanism, DiscreteGaussian):
            return mechanism.dimensions == mechanism.shares == 1
        return not isinstance(mechanism, Skellam)

    return all(has(each.mechanism) for each in releases)


def losses(
    releases: Sequence[Release], neighbours: Neighbours, tail: float, coarse: float = 1.0
) -> list[Loss]:
    """The loss of all releases together, in one direction or two; none where it is infinite.

    At most `tail` of mass is cut off. `coarse` makes the grid wider: quicker, and never lower.
    """
    total = sum(each.times for each in releases)
    part = tail / (4 * total)
    pairs = [curves(each, neighbours) for each in releases]
    ends = [(_end(curve, part), _end(reverse, part)) for curve, reverse in pairs]
    if any(max(each) == inf for each in ends):
        return []
    step = coarse * _step(releases, pairs, ends, total)
    out = []
    for way in (0, 1):
        grids = [
            _on_grid(pair[way], -end[1 - way], end[way], step)
            for pair, end in zip(pairs, ends, strict=True)
        ]
        spans = [
            _bounds(grid.mass, each.times, part * each.times)
            for each, grid in zip(releases, grids, strict=True)
        ]
        length = sum(high - low for low, high in spans)
        if length > _LONGEST:
            return losses(releases, neighbours, tail, 1.1 * coarse * length / _LONGEST)
        whole = Loss(step, 0, np.ones(1), 0.0)
        for each, grid, span in zip(releases, grids, spans, strict=True):
            whole = _sum(whole, _power(grid, each.times, span, part * each.times), part)
        out.append(whole)
        if all(curve is reverse for curve, reverse in pairs):
            break
    return out


def _end(curve: Curve, mass: float) -> float:
    """Where a curve has fallen to `mass`."""

    def delta(t: float) -> float:
        return float(curve(np.array([t]))[0])

    high = 1e-9
    while delta(high) > mass:
        high *= 2
        if high > _FARTHEST:
            return inf
    low = high / 2
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > mass else (low, middle)
    return high


def _step(
    releases: Sequence[Release],
    pairs: Sequence[tuple[Curve, Curve]],
    ends: Sequence[tuple[float, float]],
    total: int,
) -> float:
    """The step of the grid: fine against the losses' deviation, about 2.5 δ(0) for one release.

    On the grid a release's loss has up to step²/4 more variance. Few releases need fine edges.
    """
    spread = [2.5 * float(curve(np.zeros(1))[0]) for curve, _ in pairs]
    variance = sum(each.times * s * s for each, s in zip(releases, spread, strict=True))
    fine = min(_FINE * sqrt(variance / total), min(max(each) for each in ends) / 2000)
    return max(fine, max(sum(each) for each in ends) / _POINTS)


def _on_grid(curve: Curve, low: float, high: float, step: float) -> Loss:
    """A curve's loss on whole multiples of `step` from `low` to `high`, connected by lines."""
    first, last = int(np.floor(low / step)), int(np.ceil(high / step))
    last = max(last, first + 1)
    points = np.arange(first, last + 1, dtype=np.float64) * step
    delta: Array = np.minimum.accumulate(np.nan_to_num(np.clip(curve(points), 0, 1), nan=1.0))
    fall, ratio = np.diff(delta), expm1(step)
    mass: Array = np.zeros_like(delta)
    mass[0] = 1 - delta[0]
    mass[1:] -= fall * (1 + ratio) / ratio  # of the line that ends here
    mass[:-1] += fall / ratio  # of the line that begins here
    mass = np.maximum(mass, 0.0)
    mass[-1] += max(1 - float(delta[-1]) - float(mass.sum()), 0.0)  # what rounding lost
    return Loss(step, first, mass, float(delta[-1]))


# -- composition -----------------------------------------------------------------------------------


def _power(loss: Loss, times: int, span: tuple[int, int], tail: float) -> Loss:
    """The sum of `times` independent losses, all but `tail` of which lies in `span`.

    The transform goes round: what lies beyond its ends comes back at the other one. Nothing is
    lost, what was low is high then, and the little that was high counts as infinite as well.
    """
    if times == 1:
        return loss
    low, high = span
    size = next_fast_len(max(high - low + 1, len(loss.mass)), real=True)
    round_trip = irfft(rfft(loss.mass, size) ** times, size)
    mass = np.maximum(np.roll(round_trip, -(low % size)), 0.0)
    infinite = -expm1(times * np.log1p(-loss.infinite)) if loss.infinite < 1 else 1.0
    return _cut(Loss(loss.step, loss.first * times + low, mass, infinite + tail), tail)


def _sum(a: Loss, b: Loss, tail: float) -> Loss:
    """The sum of two independent losses."""
    size = len(a.mass) + len(b.mass) - 1
    if min(len(a.mass), len(b.mass)) == 1:
        mass = np.convolve(a.mass, b.mass)
    else:
        fast = next_fast_len(size, real=True)
        mass = np.maximum(irfft(rfft(a.mass, fast) * rfft(b.mass, fast), fast)[:size], 0.0)
    infinite = a.infinite + b.infinite - a.infinite * b.infinite
    return _cut(Loss(a.step, a.first + b.first, mass, infinite), tail)


def _cut(loss: Loss, tail: float) -> Loss:
    """Without its ends: the upper one is infinite then, the lower one is rounded up."""
    above = np.cumsum(loss.mass[::-1])
    upper = len(loss.mass) - int(np.searchsorted(above, tail / 2, side="right"))
    lower = int(np.searchsorted(np.cumsum(loss.mass), tail / 2, side="right"))
    lower = min(lower, len(loss.mass) - 1)
    upper = max(upper, lower + 1)
    mass = loss.mass[lower:upper].copy()
    mass[0] += float(loss.mass[:lower].sum())
    lost = float(loss.mass[upper:].sum())
    return Loss(loss.step, loss.first + lower, mass, min(loss.infinite + lost, 1.0))


def _bounds(mass: Array, times: int, tail: float) -> tuple[int, int]:
    """Between which points all but `tail` of the sum of `times` lies [Chernoff].

    P(S >= x) <= e^(times K(t) − t x), with K of the mass gathered in bins, at their far edges.
    """
    width = -(-len(mass) // 4096)
    bins = np.pad(mass, (0, -len(mass) % width)).reshape(-1, width).sum(1)
    starts = np.flatnonzero(bins) * float(width)
    bins = bins[bins > 0]
    mean = float(bins @ starts) / float(bins.sum())
    spread = sqrt(max(float(bins @ (starts - mean) ** 2), 0.25))
    need = log(2 / tail)
    guess = sqrt(2 * need / times) / spread
    orders = guess * np.geomspace(1e-3, 1e3, 61)
    out = []
    for sign, edge in ((-1, starts), (1, starts + width - 1)):
        with np.errstate(under="ignore", over="ignore"):
            highest = float(np.max(sign * edge))
            scaled = np.exp(orders[:, None] * (sign * edge - highest)) @ bins
            grown = np.log(np.maximum(scaled, 1e-300)) + orders * highest
        least = float(np.min((times * grown + need) / orders))
        out.append(sign * min(least, times * highest))
    return int(np.floor(out[0])), int(np.ceil(out[1]))
