# SPDX-License-Identifier: Apache-2.0
"""ClippedGossip.  He, Karimireddy, Jaggi 2022, https://arxiv.org/abs/2202.01545, Algorithm 1:

    x_i <- x_i + sum_j w_ij clip(x_j - x_i, tau_i),    clip(z, tau) = z min(1, tau / |z|)

with a radius that is given, or tau_i^2 = 1 / delta sum_(j in S) w_ij |x_j - x_i|^2: delta is the
weight that may lie, S the nearest, oneself among them, with a weight of 1 - delta in all.

Departures: the theorem's sum is over the honest, whom nobody knows; the nearest stand for them, the
last one with the weight that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.rules.rows import TooFew, liars, squares, weighed


@dataclass(frozen=True)
class ClippedGossip:
    """A step towards each neighbour, none longer than the nearest ones are away."""

    f: int | float  # neighbours that may lie, the heaviest; or delta, the weight that may

    def mixed(self, mine: Vector, theirs: Tensor, weights: Tensor) -> Vector:
        """`[p], [d, p], [d] -> [p]`."""
        count = liars(self, self.f, len(theirs) + 1)
        heaviest = weights.sort(descending=True).values
        delta = self.f if isinstance(self.f, float) else float(heaviest[:count].sum())
        if delta <= 0:
            return _moved(mine, theirs, weights, torch.ones_like(weights))
        apart = squares(theirs, mine)
        near = apart.argsort(stable=True)
        trusted = float(weights.sum()) - delta  # of neighbours; oneself has the rest
        if trusted <= 1e-9:
            raise TooFew(self, f"f = {self.f}", count + 2, len(theirs) + 1)
        before = weights[near].cumsum(0) - weights[near]
        inside = torch.minimum(weights[near], (trusted - before).clamp(min=0))
        radius = ((inside * apart[near]).sum() / delta).sqrt()
        return _moved(mine, theirs, weights, _scale(apart, radius))


@dataclass(frozen=True)
class FixedClippedGossip:
    """A step towards each neighbour, none longer than a radius that is given."""

    radius: float  # tau

    def mixed(self, mine: Vector, theirs: Tensor, weights: Tensor) -> Vector:
        """`[p], [d, p], [d] -> [p]`."""
        if not 0 < self.radius < float("inf"):
            raise ArchipelError(
                f"round.rule: FixedClippedGossip.radius = {self.radius}: give a number above 0."
            )
        apart = squares(theirs, mine)
        return _moved(mine, theirs, weights, _scale(apart, torch.tensor(self.radius)))


def _scale(apart: Tensor, radius: Tensor) -> Tensor:
    """`[d]`: min(1, tau / |z|) of squared lengths."""
    return (radius.double() / apart.sqrt().clamp(min=1e-300)).clamp(max=1.0)


def _moved(mine: Vector, theirs: Tensor, weights: Tensor, scale: Tensor) -> Vector:
    """x_i + sum_j w_ij s_j (x_j - x_i), where no difference of large numbers is taken."""
    share = weights * scale
    return mine * (1 - float(share.sum())) + weighed(share[None], theirs)[0]
